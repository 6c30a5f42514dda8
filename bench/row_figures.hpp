// SPDX-License-Identifier: Apache-2.0
// Measures how rows of the stream "samples" get to another process of this host.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace tidemill::bench {

/// What is measured.
struct RowMeasure {
  std::vector<std::string> figures = {};  // names, as `row_figures` returns them; empty: all
  std::uint64_t rows = 1024;              // of one repetition of `store_putget*`; whole groups of 8
  std::uint64_t repetitions = 5;          // of them, after one that warms up
  std::uint64_t wakes = 2000;  // of `store_wake`, after a tenth as many to warm up; at most 900,000
};

/// A figure.
///
/// `store_putget`: how fast rows with nine columns of 32 KiB and three small ones pass from a
/// producer in the process of the stream to a consumer in another one, over shared memory. The
/// producer makes the cells and writes each byte, in memory that can be lent; the consumer leases
/// the rows, reads each byte, and acks them. Between two repetitions the rows are removed.
/// `store_putget_ragged`: likewise, with cells of 1 to 63 KiB. `store_wake`: the time from when a
/// producer begins to put one row until a consumer that is waiting for it in another process runs.
struct RowFigure {
  std::string name;
  std::uint64_t bytes = 0;  // of a repetition of `store_putget*`
  double seconds = 0.0;     // of a repetition; the median
  /// Writing the same bytes once and reading them, in one thread; the median.
  double copy_seconds = 0.0;
  double wake_p50_us = 0.0;   // of `store_wake`
  double wake_p99_us = 0.0;   // of `store_wake`
  double futex_p50_us = 0.0;  // from waking another process by a futex until it runs
  double futex_p99_us = 0.0;
};

/// Returns the names of all figures.
[[nodiscard]] std::vector<std::string> row_figures();

/// Measures figures. Starts processes by forking, so the caller must have no other thread.
/// Unknown names in `figures` are ignored.
/// Errors: `kUnavailable` if a process or socket cannot be made, or if the consumer has not read
/// the rows after two minutes.
[[nodiscard]] Result<std::vector<RowFigure>> measure_rows(const RowMeasure& how);

}  // namespace tidemill::bench
