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

Status RopeCache::reserve(std::int64_t num_positions) {
  const auto half = std::ssize(frequencies_.inverse);
  for (DeviceMatrix* table : {&cosine_, &sine_}) {
    TIDEMILL_RETURN_IF_ERROR(table->reserve(num_positions, half, BlockUse::kSparse));
    table->reshape(num_positions, half);
  }
  num_computed_ = 0;
  return {};
}

std::int64_t RopeCache::bytes_for(const ModelConfig& config, std::int64_t num_positions) {
  return 2 * num_positions * std::ssize(rope_frequencies(config).inverse) *
         std::int64_t{sizeof(float)};
}

RopeTables RopeCache::tables(std::int64_t num_positions) {
  if (num_positions > cosine_.rows()) {
    // Doubling makes the total cost linear for a sequence that grows token by token.
    const std::int64_t rows = std::max(num_positions, 2 * cosine_.rows());
    cosine_.reshape(rows, std::ssize(frequencies_.inverse));
    sine_.reshape(rows, std::ssize(frequencies_.inverse));
    num_computed_ = 0;
  }
  if (num_positions > num_computed_) {
    const std::int64_t rows = std::min(cosine_.rows(), std::max(num_positions, 2 * num_computed_));
    compute(num_computed_, rows);
    num_computed_ = rows;
  }
  return {cosine_.view().slice_rows(0, num_positions), sine_.view().slice_rows(0, num_positions)};
}

// Computes the entries of positions [first_position, num_positions).
void RopeCache::compute(std::int64_t first_position, std::int64_t num_positions) {
  constexpr std::int64_t kRows = 256;  // at a time
  const Matrix cosine = cosine_.view();
  const Matrix sine = sine_.view();
  const double scaling = double{frequencies_.attention_scaling};
  std::vector<float> cosines;
  std::vector<float> sines;
  for (std::int64_t first = first_position; first < num_positions; first += kRows) {
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
