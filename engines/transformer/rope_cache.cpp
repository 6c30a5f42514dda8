// SPDX-License-Identifier: Apache-2.0
#include "engines/transformer/rope_cache.hpp"

#include <algorithm>
#include <cmath>

namespace tidemill::engines {

RopeCache::RopeCache(const ModelConfig& config) : frequencies_(rope_frequencies(config)) {}

RopeTables RopeCache::tables(std::int64_t num_positions) {
  const auto half = static_cast<std::int64_t>(frequencies_.inverse.size());
  const auto present = static_cast<std::int64_t>(cosine_.size()) / half;
  if (num_positions > present) {
    // Doubling makes the total cost linear for a sequence that grows token by token.
    const std::int64_t new_count = std::max(num_positions, 2 * present);
    cosine_.reserve(static_cast<std::size_t>(new_count * half));
    sine_.reserve(static_cast<std::size_t>(new_count * half));
    const double scaling = double{frequencies_.attention_scaling};
    for (std::int64_t position = present; position < new_count; ++position) {
      for (const float frequency : frequencies_.inverse) {
        const double angle = static_cast<double>(position) * double{frequency};
        cosine_.push_back(static_cast<float>(std::cos(angle) * scaling));
        sine_.push_back(static_cast<float>(std::sin(angle) * scaling));
      }
    }
  }
  return {{cosine_.data(), num_positions, half, half}, {sine_.data(), num_positions, half, half}};
}

}  // namespace tidemill::engines
