// SPDX-License-Identifier: Apache-2.0
// Greedy balancing with equal counts.
#include "storage/stream/balance.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

#include "base/check.hpp"

namespace tidemill::storage {

std::vector<std::vector<std::uint32_t>> balance(std::span<const std::uint64_t> tokens,
                                                std::uint32_t ranks) {
  TIDEMILL_CHECK(ranks > 0 && tokens.size() % ranks == 0) << tokens.size() << " over " << ranks;
  std::vector<std::uint32_t> order(tokens.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return tokens[a] > tokens[b]; });

  using Load = std::pair<std::uint64_t, std::uint32_t>;  // token sum, rank
  std::priority_queue<Load, std::vector<Load>, std::greater<>> open;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    open.emplace(0, rank);
  }
  const std::size_t share = tokens.size() / ranks;
  std::vector<std::vector<std::uint32_t>> assigned(ranks);
  for (const std::uint32_t unit : order) {
    const auto [sum, rank] = open.top();
    open.pop();
    assigned[rank].push_back(unit);
    if (assigned[rank].size() < share) {
      open.emplace(sum + tokens[unit], rank);
    }
  }
  for (std::vector<std::uint32_t>& units : assigned) {
    std::sort(units.begin(), units.end());
  }
  return assigned;
}

}  // namespace tidemill::storage
