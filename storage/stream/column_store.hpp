// SPDX-License-Identifier: Apache-2.0
// The data plane of a stream: the cells of its live rows.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/ids.hpp"
#include "base/result.hpp"
#include "storage/records/sample.hpp"

namespace tidemill::storage {

/// Holds immutable ragged cells by row and column: put once, read many, erased with the row.
///
/// Reading copies handles, never bytes; a reader's handle outlives the row.
/// Threads: one call at a time; the buffers handed out may be read anywhere.
class ColumnStore {
public:
  /// Keeps values of a row. Requires that none of the cells is there: the index checks writes.
  void put(SampleId row, std::span<const ColumnValue> values);

  /// Returns the cells of a row in the order asked for.
  /// Errors: `kNotFound` naming row and column.
  [[nodiscard]] Result<std::vector<ColumnValue>> read(SampleId row,
                                                      std::span<const ColumnId> columns) const;
  /// Returns all cells of a row by column; none if the row is unknown.
  [[nodiscard]] std::vector<ColumnValue> read_all(SampleId row) const;

  /// Forgets a row.
  void erase(SampleId row);
  void clear();

  [[nodiscard]] std::size_t num_rows() const noexcept { return rows_.size(); }
  /// Returns the bytes of all cells. A segment shared by several cells counts with each.
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

private:
  std::unordered_map<SampleId, std::vector<ColumnValue>> rows_;  // each sorted by column
  std::uint64_t bytes_ = 0;
};

}  // namespace tidemill::storage
