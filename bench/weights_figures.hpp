// SPDX-License-Identifier: Apache-2.0
// Measures how weights get to other processes of this host.
#pragma once

#include <cstdint>

#include "base/result.hpp"

namespace tidemill::bench {

/// What is measured.
struct WeightsMeasure {
  std::uint64_t bytes = std::uint64_t{1} << 30U;  // of a snapshot
  std::uint64_t tensors = 64;
  std::uint32_t readers = 4;
  std::uint32_t repetitions = 5;
};

/// A snapshot that all readers have mapped. Medians of the repetitions.
struct WeightsFigure {
  double seconds = 0.0;       // from the first allocation until the last reader has resolved it all
  double copy_seconds = 0.0;  // of the copy alone into the same segments, in the same repetition
  std::uint64_t shared_bytes = 0;       // of the pool afterwards
  std::uint64_t bytes_of_one_more = 0;  // that a further reader adds
};

/// Measures snapshots in memory that was used before. Starts processes by forking, so the caller
/// must have no other thread.
/// Errors: `kUnavailable` if a process or a socket cannot be made; those of the pool.
[[nodiscard]] Result<WeightsFigure> measure_weights(const WeightsMeasure& how);

}  // namespace tidemill::bench
