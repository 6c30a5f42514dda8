// SPDX-License-Identifier: Apache-2.0
#include "engines/transformer/rope_cache.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace tidemill::engines {

RopeCache::RopeCache(const ModelConfig& config, Ops& ops)
    : ops_(ops),
      frequencies_(rope_frequencies(config)),
      cosine_(ops.memory()),
      sine_(ops.memory()) {}

RopeTables RopeCache::tables(std::int64_t num_positions) {
  if (num_positions > cosine_.rows()) {
    // Doubling makes the total cost linear for a sequence that grows token by token.
    compute(std::max(num_positions, 2 * cosine_.rows()));
  }
  return {cosine_.view().slice_rows(0, num_positions), sine_.view().slice_rows(0, num_positions)};
}

void RopeCache::compute(std::int64_t num_positions) {
  constexpr std::int64_t kRows = 256;  // at a time
  const auto half = std::ssize(frequencies_.inverse);
  const Matrix cosine = cosine_.reshape(num_positions, half);
  const Matrix sine = sine_.reshape(num_positions, half);
  const double scaling = double{frequencies_.attention_scaling};
  std::vector<float> cosines;
  std::vector<float> sines;
  for (std::int64_t first = 0; first < num_positions; first += kRows) {
    const std::int64_t count = std::min(kRows, num_positions - first);
    cosines.clear();
    sines.clear();
    for (std::int64_t position = first; position < first + count; ++position) {
      for (const float frequency : frequencies_.inverse) {
        const double angle = static_cast<double>(position) * double{frequency};
        cosines.push_back(static_cast<float>(std::cos(angle) * scaling));
        sines.push_back(static_cast<float>(std::sin(angle) * scaling));
      }
    }
    ops_.write(cosines, cosine.slice_rows(first, count));
    ops_.write(sines, sine.slice_rows(first, count));
  }
}

}  // namespace tidemill::engines
