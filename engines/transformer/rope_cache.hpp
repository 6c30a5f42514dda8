// SPDX-License-Identifier: Apache-2.0
// Rotation tables, computed up to the largest position that has been needed.
#pragma once

#include <cstdint>

#include "engines/formats/model_config.hpp"
#include "engines/formats/rope.hpp"
#include "engines/ops/ops.hpp"
#include "engines/transformer/device_matrix.hpp"

namespace tidemill::engines {

/// Holds tables of cosines and sines up to the largest position that has been needed.
///
/// The inverse frequencies are float32, as the reference implementation computes them. The angle,
/// its cosine and sine, and their scaling (YaRN) are computed in double precision and rounded once.
/// An entry does not depend on when it is computed.
class RopeCache {
public:
  /// `ops` must outlive the cache.
  RopeCache(const ModelConfig& config, Ops& ops);

  /// Reserves memory for `num_positions` positions. They are computed when they are needed.
  /// Errors: those of `DeviceMemory::allocate`.
  [[nodiscard]] Status reserve(std::int64_t num_positions);
  /// Returns the memory that `reserve` takes. Units: bytes.
  [[nodiscard]] static std::int64_t bytes_for(const ModelConfig& config,
                                              std::int64_t num_positions);
  /// Returns tables for positions [0, num_positions), borrowed until the next call. Allocates
  /// memory if too little is reserved.
  [[nodiscard]] RopeTables tables(std::int64_t num_positions);

private:
  void compute(std::int64_t first_position, std::int64_t num_positions);

  Ops& ops_;
  RopeFrequencies frequencies_;
  DeviceMatrix cosine_;  // (positions, C/2)
  DeviceMatrix sine_;
  std::int64_t num_computed_ = 0;  // positions
};

}  // namespace tidemill::engines
