// SPDX-License-Identifier: Apache-2.0
// Measures what consumers cost that wait for rows.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.hpp"

namespace tidemill::bench {

/// The name of the figure.
inline constexpr const char* kIdleFigure = "store_idle";
/// The share of a core that the consumers may use.
inline constexpr double kIdleTarget = 0.01;

/// What is measured.
struct IdleMeasure {
  std::uint64_t rows = 1'000'000;  // of the stream, of which none is ready for the consumers
  std::uint32_t consumers = 256;
  std::uint32_t seconds = 20;
};

/// `store_idle`: which share of a core a process uses that has a stream with many rows, and
/// consumers that wait for other rows and ask again as workers do.
struct IdleFigure {
  double core_share = 0.0;
  double lease_attempts_per_second = 0.0;  // of the stream
};

/// Measures the figure. Errors: `kInternal` if the stream refuses rows.
[[nodiscard]] Result<IdleFigure> measure_idle(const IdleMeasure& how);

}  // namespace tidemill::bench
