// SPDX-License-Identifier: Apache-2.0
// Cells of live rows.
#include "storage/stream/column_store.hpp"

#include <algorithm>
#include <string>

#include "base/check.hpp"

namespace tidemill::storage {
namespace {

bool by_column(const ColumnValue& cell, ColumnId column) noexcept {
  return cell.column < column;
}

}  // namespace

void ColumnStore::put(SampleId row, std::span<const ColumnValue> values) {
  std::vector<ColumnValue>& cells = rows_[row];
  for (const ColumnValue& value : values) {
    const auto position = std::lower_bound(cells.begin(), cells.end(), value.column, by_column);
    TIDEMILL_CHECK(position == cells.end() || position->column != value.column)
        << "sample " << row.value << " column " << value.column.value;
    cells.insert(position, value);
    bytes_ += value.value.size_bytes();
  }
}

Result<std::vector<ColumnValue>> ColumnStore::read(SampleId row,
                                                   std::span<const ColumnId> columns) const {
  const auto cells = rows_.find(row);
  if (cells == rows_.end()) {
    return Status(Errc::kNotFound, "column store: no sample " + std::to_string(row.value));
  }
  std::vector<ColumnValue> values;
  values.reserve(columns.size());
  for (const ColumnId column : columns) {
    const Buffer* cell = find(row, column);
    if (cell == nullptr) {
      return Status(Errc::kNotFound, "column store: sample " + std::to_string(row.value) +
                                         " has no column number " + std::to_string(column.value));
    }
    values.push_back({column, *cell});
  }
  return values;
}

const Buffer* ColumnStore::find(SampleId row, ColumnId column) const {
  const auto cells = rows_.find(row);
  if (cells == rows_.end()) {
    return nullptr;
  }
  const auto cell = std::lower_bound(cells->second.begin(), cells->second.end(), column, by_column);
  return cell == cells->second.end() || cell->column != column ? nullptr : &cell->value;
}

std::vector<ColumnValue> ColumnStore::read_all(SampleId row) const {
  const auto cells = rows_.find(row);
  return cells == rows_.end() ? std::vector<ColumnValue>{} : cells->second;
}

void ColumnStore::erase(SampleId row, std::span<const ColumnId> columns) {
  const auto cells = rows_.find(row);
  if (cells == rows_.end()) {
    return;
  }
  for (const ColumnId column : columns) {
    const auto cell =
        std::lower_bound(cells->second.begin(), cells->second.end(), column, by_column);
    if (cell != cells->second.end() && cell->column == column) {
      bytes_ -= cell->value.size_bytes();
      cells->second.erase(cell);
    }
  }
}

void ColumnStore::erase(SampleId row) {
  const auto cells = rows_.find(row);
  if (cells == rows_.end()) {
    return;
  }
  for (const ColumnValue& cell : cells->second) {
    bytes_ -= cell.value.size_bytes();
  }
  rows_.erase(cells);
}

void ColumnStore::clear() {
  rows_.clear();
  bytes_ = 0;
}

}  // namespace tidemill::storage
