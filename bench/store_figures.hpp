// SPDX-License-Identifier: Apache-2.0
// Measures the control plane of a stream on one core.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tidemill::bench {

/// The rate that the figures `store_rows_*` have to reach, in rows per second.
inline constexpr double kStoreTargetRate = 1e6;

/// The order in which the rows of a table are finished.
enum class StoreOrder : std::uint8_t {
  kAdmission,
  kRandom,
};

/// What is measured.
struct StoreMeasure {
  std::vector<std::string> figures = {};  // names, as `store_figures` returns them; empty: all
  std::optional<StoreOrder> order = std::nullopt;  // none: each
  std::uint64_t rows_per_call = 64;                // of a write, of a lease and of an ack
  std::uint64_t measured_rows = 1'000'000;         // of each repetition
  std::uint64_t repetitions = 5;                   // after one that warms up
};

/// A figure.
///
/// `store_rows_*`: how fast rows pass through a task of a stream that holds `live_rows` rows. Each
/// row gets its completing column, is leased, and is acked, which ends it. `store_meta_*`: how fast
/// `live_rows` rows, written to an empty stream with nine columns in one call, are leased and acked
/// together. `tests/bench/peers/compare_store.py` compares the latter with TransferQueue.
struct StoreFigure {
  std::string name;
  StoreOrder order = StoreOrder::kAdmission;
  std::uint64_t live_rows = 0;
  double rows_per_second = 0.0;  // of the thread's time; the median of the repetitions
  double ns_per_row = 0.0;
  double target = 0.0;  // rows per second; 0: the target is relative to a peer
  double of_1k = 0.0;   // `ns_per_row` relative to that of 1,000 rows in the same order, or 0
};

/// Returns the names of all figures.
[[nodiscard]] std::vector<std::string> store_figures();

/// Measures figures. For `store_rows_*`, 1,000 rows are always measured too, for comparison.
[[nodiscard]] std::vector<StoreFigure> measure_store(const StoreMeasure& how);

}  // namespace tidemill::bench
