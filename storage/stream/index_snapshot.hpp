// SPDX-License-Identifier: Apache-2.0
// A stream index as a value: the part of the control plane that a checkpoint stores.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.hpp"
#include "storage/records/sample.hpp"

namespace tidemill::storage {

/// The number of rows by outcome. After every event
/// `admitted = trained + dropped + filtered + failed + live`.
struct StreamTotals {
  std::uint64_t admitted = 0;
  std::uint64_t trained = 0;
  std::uint64_t dropped = 0;
  std::uint64_t filtered = 0;
  std::uint64_t failed = 0;

  /// Returns how many rows have left.
  [[nodiscard]] std::uint64_t retired() const noexcept {
    return trained + dropped + filtered + failed;
  }
  friend bool operator==(const StreamTotals&, const StreamTotals&) = default;
};

/// Counts what one task has done, in rows.
struct TaskTotals {
  std::uint64_t delivered = 0;
  std::uint64_t acked = 0;
  std::uint64_t stale = 0;        // removed from this task because of their age
  std::uint64_t redelivered = 0;  // returned: nacked, expired, or consumer dropped
  friend bool operator==(const TaskTotals&, const TaskTotals&) = default;
};

/// The progress of a task with a row.
enum class CellState : std::uint8_t {
  kPending,  // an input column is missing
  kReady,
  kLeased,
  kAcked,
  kStale,  // removed from this task because of its age
};

/// One task's view of one live row. Leases are not stored: a leased row is stored as ready.
struct CellSnapshot {
  CellState state = CellState::kPending;
  std::uint32_t deliveries = 0;
  std::uint32_t failures = 0;
  friend bool operator==(const CellSnapshot&, const CellSnapshot&) = default;
};

/// One live row.
struct RowSnapshot {
  SampleRow row;
  std::uint64_t columns = 0;  // bit c: column c is present
  std::uint64_t bytes = 0;
  RowFacts facts;
  std::uint8_t accepted = 0;        // 1: its slot counts as accepted
  std::vector<CellSnapshot> cells;  // by task
  friend bool operator==(const RowSnapshot&, const RowSnapshot&) = default;
};

/// One live group: the state that its live rows do not contain.
struct GroupSnapshot {
  GroupId id;
  std::uint32_t size = 0;
  SampleId first;
  std::uint32_t num_retired = 0;       // rows that left by a verdict
  std::uint32_t trained = 0;           // rows that left trained
  std::uint32_t accepted = 0;          // slots that count as accepted
  std::vector<std::uint8_t> admitted;  // by index in group: 1 once the row was admitted
  friend bool operator==(const GroupSnapshot&, const GroupSnapshot&) = default;
};

/// The state of a whole stream index.
struct IndexSnapshot {
  std::vector<std::string> columns;  // names, to detect a snapshot of another declaration
  std::vector<std::string> tasks;
  std::uint64_t version = 0;
  std::uint64_t next_row = 0;    // rows admitted from now on have this id or a greater one
  std::uint64_t next_group = 0;  // the same for groups
  std::uint64_t generation = 0;  // of the last lease
  StreamTotals totals;
  std::vector<TaskTotals> task_totals;
  std::vector<GroupSnapshot> groups;  // in admission order
  std::vector<RowSnapshot> rows;      // in admission order
  friend bool operator==(const IndexSnapshot&, const IndexSnapshot&) = default;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, StreamTotals& x) {
  return f(x.admitted, x.trained, x.dropped, x.filtered, x.failed);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, TaskTotals& x) {
  return f(x.delivered, x.acked, x.stale, x.redelivered);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, CellSnapshot& x) {
  return f(x.state, x.deliveries, x.failures);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, RowSnapshot& x) {
  return f(x.row, x.columns, x.bytes, x.facts, x.accepted, x.cells);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, GroupSnapshot& x) {
  return f(x.id, x.size, x.first, x.num_retired, x.trained, x.accepted, x.admitted);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, IndexSnapshot& x) {
  return f(x.columns, x.tasks, x.version, x.next_row, x.next_group, x.generation, x.totals,
           x.task_totals, x.groups, x.rows);
}

}  // namespace tidemill::storage
