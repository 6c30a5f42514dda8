// SPDX-License-Identifier: Apache-2.0
// What all stages of a run know about a sample: its identity, its columns, its versions.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "base/buffer.hpp"
#include "base/ids.hpp"

namespace tidemill::storage {

/// Stands for "no version" in a field that holds the step of a policy version.
inline constexpr std::uint64_t kNoStep = std::numeric_limits<std::uint64_t>::max();

/// Stands for "not counted" in a field that holds a number of tokens.
inline constexpr std::uint64_t kNoTokens = std::numeric_limits<std::uint64_t>::max();

/// Names a column of one stream by its index among the declared columns.
struct ColumnId {
  std::uint32_t value = 0;
  friend auto operator<=>(const ColumnId&, const ColumnId&) = default;
};

/// Names a task of one stream by its index among the declared tasks.
struct TaskId {
  std::uint32_t value = 0;
  friend auto operator<=>(const TaskId&, const TaskId&) = default;
};

/// The identity of a row. It does not change after admission.
struct SampleRow {
  SampleId id = {};  // increases in admission order
  GroupId group = {};
  std::uint32_t index_in_group = 0;  // below group_size
  std::uint32_t group_size = 0;      // 0: the row belongs to no group
  std::uint64_t epoch = 0;           // number of passes over the data before this row's pass
  std::uint64_t data_position = 0;   // position of its prompt within that pass
  std::uint64_t min_step = 0;        // of policy versions: no older one may start the row
  friend bool operator==(const SampleRow&, const SampleRow&) = default;
};

/// Facts about a row that a write reports along with the columns.
struct RowFacts {
  /// The smallest step among the versions that produced the written tokens. A row keeps the
  /// smallest value that any of its writes reported. A row without one is never stale.
  std::uint64_t oldest_step = kNoStep;
  /// The number of tokens in the row. The last write that reports it wins.
  std::uint64_t tokens = kNoTokens;
  friend bool operator==(const RowFacts&, const RowFacts&) = default;
};

/// One cell: an immutable value of any length.
struct ColumnValue {
  ColumnId column;
  Buffer value;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, ColumnId& x) {
  return f(x.value);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, TaskId& x) {
  return f(x.value);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, SampleRow& x) {
  return f(x.id, x.group, x.index_in_group, x.group_size, x.epoch, x.data_position, x.min_step);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, RowFacts& x) {
  return f(x.oldest_step, x.tokens);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, ColumnValue& x) {
  return f(x.column, x.value);
}

}  // namespace tidemill::storage
