// SPDX-License-Identifier: Apache-2.0
// Divides work among the workers of a device. Small work is done by few of them, because waking a
// worker has a cost.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engines/executor/workers.hpp"
#include "engines/ops/cpu/scratch.hpp"

namespace tidemill::engines::cpu {

/// The workers of a device, and scratch memory for each part of a loop.
///
/// Threads: as `Workers`.
class Team {
public:
  explicit Team(Workers& workers)
      : workers_(workers), scratch_(static_cast<std::size_t>(workers.size())) {}

  [[nodiscard]] int size() const noexcept { return workers_.size(); }

  /// Calls `body(part, begin, end)` for disjoint ranges that cover [0, n), and returns when all
  /// calls are done. `item_cost` is the estimated cost of one item. Part numbers are less than
  /// `size()`. Units: processor cycles.
  template <class Body>
  void parallel_for(std::int64_t n, std::int64_t item_cost, const Body& body) {
    const std::int64_t parts = parts_for(n, n * std::max<std::int64_t>(1, item_cost));
    workers_.parallel_for(parts, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t part = first; part < last; ++part) {
        body(part, n * part / parts, n * (part + 1) / parts);
      }
    });
  }

  /// Does the same for items of unequal cost, in parts of about equal cost.
  template <class Body>
  void parallel_for(std::span<const std::int64_t> item_costs, const Body& body) {
    std::int64_t total = 0;
    for (const std::int64_t cost : item_costs) {
      total += cost;
    }
    const std::int64_t n = std::ssize(item_costs);
    const std::int64_t parts = parts_for(n, total);
    std::vector<std::int64_t> cuts(static_cast<std::size_t>(parts) + 1, n);
    cuts[0] = 0;
    std::int64_t item = 0;
    std::int64_t before = 0;
    for (std::int64_t part = 1; part < parts; ++part) {
      // An item belongs to the part that contains its midpoint.
      while (item < n &&
             (2 * before + item_costs[static_cast<std::size_t>(item)]) * parts < 2 * total * part) {
        before += item_costs[static_cast<std::size_t>(item++)];
      }
      cuts[static_cast<std::size_t>(part)] = item;
    }
    workers_.parallel_for(parts, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t part = first; part < last; ++part) {
        body(part, cuts[static_cast<std::size_t>(part)], cuts[static_cast<std::size_t>(part) + 1]);
      }
    });
  }

  /// Returns the scratch memory of part `part`. The part may use it until the loop ends.
  [[nodiscard]] Scratch& scratch(std::int64_t part) {
    return scratch_[static_cast<std::size_t>(part)];
  }

private:
  // Approximate cycles to wake a sleeping worker.
  static constexpr std::int64_t kWakeCycles = 15000;

  [[nodiscard]] std::int64_t parts_for(std::int64_t n, std::int64_t total_cost) const noexcept {
    return std::clamp<std::int64_t>(total_cost / kWakeCycles, std::min<std::int64_t>(n, 1),
                                    std::min<std::int64_t>(n, workers_.size()));
  }

  Workers& workers_;
  std::vector<Scratch> scratch_;
};

}  // namespace tidemill::engines::cpu
