// SPDX-License-Identifier: Apache-2.0
// The records inside a stream index. Private to storage/stream.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "storage/records/lease.hpp"
#include "storage/records/sample.hpp"
#include "storage/stream/index_snapshot.hpp"
#include "storage/stream/ready_set.hpp"
#include "storage/stream/stream_options.hpp"

namespace tidemill::storage::internal {

/// One task's view of one live row.
struct Cell {
  CellState state = CellState::kPending;
  std::uint32_t deliveries = 0;  // that were returned, for any reason
  std::uint32_t failures = 0;    // of those, the deliveries that failed
};

/// One task's counts for one group.
struct GroupCell {
  std::uint32_t ready = 0;  // rows that are ready
  std::uint32_t taken = 0;  // rows that are leased, acked or stale
};

/// A live group, or the substitute group of a row that has none (`solo`).
///
/// A group lives until all its rows were admitted and have left. A group that a verdict closed
/// lives until its rows have left.
struct Group {
  GroupId id;
  bool solo = false;
  bool closed = false;
  std::uint32_t size = 1;
  SampleId first;  // its position in the order, even after that row has left
  std::uint32_t num_admitted = 0;
  std::uint32_t num_retired = 0;
  std::uint32_t trained = 0;
  std::uint32_t accepted = 0;
  std::uint64_t bytes = 0;
  std::vector<SampleId> live;          // in admission order
  std::vector<std::uint8_t> admitted;  // by index in group; empty when solo
  std::vector<GroupCell> cells;        // by task

  [[nodiscard]] Unit unit() const noexcept { return {first.value, id.value}; }
  [[nodiscard]] bool all_admitted() const noexcept { return num_admitted == size; }
};

/// A live row.
struct Row {
  SampleRow info;
  std::uint64_t columns = 0;  // bit c: column c is present
  std::uint64_t bytes = 0;
  RowFacts facts;
  bool accepted = false;
  bool any_stale = false;
  std::uint32_t num_open = 0;  // tasks that have neither acked the row nor dropped it as stale
  Group* group = nullptr;
  std::vector<Cell> cells;  // by task

  [[nodiscard]] Unit unit() const noexcept { return {info.id.value, info.id.value}; }
};

/// A task and its sets of units.
struct Task {
  explicit Task(const TaskOptions& task) : options(task), ready(task.max_staleness) {}

  TaskOptions options;
  std::uint64_t inputs = 0;            // column bits
  std::uint64_t outputs = 0;           // column bits
  std::uint64_t optional_outputs = 0;  // column bits
  std::uint64_t progress = 0;          // column bits
  ReadySet ready;
  std::set<Unit> pending;       // units that are neither ready, leased nor done
  std::uint64_t revision = 0;   // see `StreamIndex::revision`
  std::uint64_t num_ready = 0;  // rows
  TaskTotals totals;
  ReturnedDeliveries returned;

  /// Returns the oldest unit that is neither deliverable nor taken, if there is one.
  [[nodiscard]] std::optional<Unit> first_blocked() const {
    std::optional<Unit> first;
    if (!pending.empty()) {
      first = *pending.begin();
    }
    if (!ready.stale().empty() && (!first || ready.stale().begin()->first < *first)) {
      first = ready.stale().begin()->first;
    }
    return first;
  }
};

}  // namespace tidemill::storage::internal
