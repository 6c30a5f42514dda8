// SPDX-License-Identifier: Apache-2.0
// Which row belongs to a position of a run, epoch by epoch.
#pragma once

#include <cstdint>
#include <vector>

#include "storage/dataset/dataset_options.hpp"

namespace tidemill::storage {

/// Orders `num_rows` rows anew in each epoch. The epoch of a position is position / num_rows.
///
/// A pure function of (num_rows, order, seed, position). The permutation of the last requested
/// epoch is kept only to save time.
/// Threads: one call at a time.
class EpochOrder {
public:
  /// Requires 0 < `num_rows` < 2^32.
  EpochOrder(std::uint64_t num_rows, RowOrder order, std::uint64_t seed);

  /// Returns the row at `position`, in [0, num_rows).
  [[nodiscard]] std::uint64_t row_of(std::uint64_t position);

private:
  std::uint64_t num_rows_;
  RowOrder order_;
  std::uint64_t seed_;
  std::uint64_t epoch_ = 0;
  std::vector<std::uint32_t> permutation_;  // of `epoch_`; empty until first needed
};

}  // namespace tidemill::storage
