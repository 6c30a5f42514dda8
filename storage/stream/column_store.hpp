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

/// Holds immutable cells of any length by row and column. A cell is written once, read any number
/// of times, and erased with its row or, if it is progress, before.
///
/// Reading copies handles, never bytes. A reader's handle may outlive the row.
/// Threads: one call at a time. Returned buffers may be read on any thread.
class ColumnStore {
public:
  /// Stores cells of a row. Requires that none of them exists yet; the index checks writes.
  void put(SampleId row, std::span<const ColumnValue> values);

  /// Returns the cells of a row in the order of `columns`.
  /// Errors: `kNotFound` naming row and column.
  [[nodiscard]] Result<std::vector<ColumnValue>> read(SampleId row,
                                                      std::span<const ColumnId> columns) const;
  /// Returns a cell of a row, or null. The result is borrowed until the next change.
  [[nodiscard]] const Buffer* find(SampleId row, ColumnId column) const;
  /// Returns all cells of a row, sorted by column; none if the row is unknown.
  [[nodiscard]] std::vector<ColumnValue> read_all(SampleId row) const;

  /// Erases those of `columns` that a row has.
  void erase(SampleId row, std::span<const ColumnId> columns);
  /// Erases all cells of a row.
  void erase(SampleId row);
  void clear();

  [[nodiscard]] std::size_t num_rows() const noexcept { return rows_.size(); }
  /// Returns the bytes of all cells. A segment that several cells share counts once for each.
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

private:
  std::unordered_map<SampleId, std::vector<ColumnValue>> rows_;  // each sorted by column
  std::uint64_t bytes_ = 0;
};

}  // namespace tidemill::storage
