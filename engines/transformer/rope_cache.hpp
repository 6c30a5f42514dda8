// SPDX-License-Identifier: Apache-2.0
// Rotation angles by position, made as far as they are needed.
#pragma once

#include <cstdint>
#include <vector>

#include "engines/formats/model_config.hpp"
#include "engines/formats/rope.hpp"
#include "engines/ops/ops.hpp"

namespace tidemill::engines {

/// Tables of cosines and sines that grow with the largest position seen.
///
/// The inverse frequencies are float32, as the reference computes them; the angle, its cosine and
/// sine and their scaling (yarn) are computed in double and rounded once. An entry never depends on
/// when it was made.
class RopeCache {
public:
  explicit RopeCache(const ModelConfig& config);

  /// Returns tables for positions [0, num_positions), borrowed until the next call.
  [[nodiscard]] RopeTables tables(std::int64_t num_positions);

private:
  RopeFrequencies frequencies_;
  std::vector<float> cosine_;  // (positions, C/2)
  std::vector<float> sine_;
};

}  // namespace tidemill::engines
