// SPDX-License-Identifier: Apache-2.0
#include "engines/transformer/rope_cache.hpp"

#include <algorithm>
#include <cmath>

namespace tidemill::engines {

RopeCache::RopeCache(const ModelConfig& config)
    : inverse_frequencies_(config.inv_freq), scaling_(config.attention_scaling) {}

RopeTables RopeCache::tables(std::int64_t num_positions) {
  const auto half = static_cast<std::int64_t>(inverse_frequencies_.size());
  const auto present = static_cast<std::int64_t>(cosine_.size()) / half;
  if (num_positions > present) {
    // Doubling keeps the cost of a sequence that grows token by token linear.
    const std::int64_t wanted = std::max(num_positions, 2 * present);
    cosine_.reserve(static_cast<std::size_t>(wanted * half));
    sine_.reserve(static_cast<std::size_t>(wanted * half));
    for (std::int64_t position = present; position < wanted; ++position) {
      for (const float frequency : inverse_frequencies_) {
        const double angle = static_cast<double>(position) * double{frequency};
        cosine_.push_back(static_cast<float>(std::cos(angle) * scaling_));
        sine_.push_back(static_cast<float>(std::sin(angle) * scaling_));
      }
    }
  }
  return {{cosine_.data(), num_positions, half, half}, {sine_.data(), num_positions, half, half}};
}

}  // namespace tidemill::engines
