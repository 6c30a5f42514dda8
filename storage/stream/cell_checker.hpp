// SPDX-License-Identifier: Apache-2.0
// Checks cells against the rules of their columns, before a stream writes them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "storage/records/sample.hpp"
#include "storage/stream/column_store.hpp"
#include "storage/stream/stream_options.hpp"

namespace tidemill::storage {

/// Checks cells against the `CellRule`s of one stream.
///
/// Cost: proportional to the bytes of the cells.
/// Threads: calls may run concurrently.
class CellChecker {
public:
  /// Requires options that pass `check_options`.
  explicit CellChecker(const StreamOptions& options);

  /// Returns what is wrong with `cells[index]`, one of the cells that a call writes to `row`, or ""
  /// if nothing is. A rule that names another column refers to the cell of that column in `cells`,
  /// else in `store`. Cells of unknown columns and of another type are left to the index. A cell
  /// whose buffer is unresolved is invalid.
  [[nodiscard]] std::string fault_of(SampleId row, std::span<const ColumnValue> cells,
                                     std::size_t index, const ColumnStore& store) const;

private:
  // A rule with its columns resolved.
  struct Rule {
    std::optional<ColumnId> as_long_as;
    std::optional<ColumnId> counts;
  };

  /// Returns how `cells[index]` contradicts other cells of its row, or "".
  [[nodiscard]] std::string bad_relation(SampleId row, std::span<const ColumnValue> cells,
                                         std::size_t index, const ColumnStore& store) const;
  /// Returns the number of elements of a cell of `row`, or nothing if the row has no such cell.
  [[nodiscard]] std::optional<std::uint64_t> elements_of(SampleId row, ColumnId column,
                                                         std::span<const ColumnValue> cells,
                                                         const ColumnStore& store) const;

  std::vector<ColumnOptions> columns_;
  std::vector<Rule> rules_;  // by column
};

}  // namespace tidemill::storage
