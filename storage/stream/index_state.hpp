// SPDX-License-Identifier: Apache-2.0
// The records inside a stream index. Private to storage/stream.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "storage/records/lease.hpp"
#include "storage/records/sample.hpp"
#include "storage/stream/id_map.hpp"
#include "storage/stream/index_snapshot.hpp"
#include "storage/stream/ready_set.hpp"
#include "storage/stream/slots.hpp"
#include "storage/stream/stream_options.hpp"

namespace tidemill::storage::internal {

/// One task's view of one live row.
struct Cell {
  CellState state = CellState::kPending;
  std::uint32_t deliveries = 0;  // that were returned, for any reason
  std::uint32_t failures = 0;    // of those, the deliveries that failed
  Slot lease = kNoSlot;          // in the lease table, if the row is leased
};

/// One task's counts for one group.
struct GroupCell {
  std::uint32_t ready = 0;  // rows that are ready
  std::uint32_t taken = 0;  // rows that are leased, acked or stale
};

/// Which rows of a group were admitted, by index in the group.
class AdmittedRows {
public:
  /// Forgets all rows, for a group of `size` rows. Allocates only for more than 64.
  void reset(std::uint32_t size) {
    first_ = 0;
    rest_ = size <= kBits ? std::vector<std::uint64_t>() : std::vector<std::uint64_t>(size / kBits);
  }
  void add(std::uint32_t index) { word(index) |= std::uint64_t{1} << index % kBits; }
  [[nodiscard]] bool contains(std::uint32_t index) const {
    return (const_cast<AdmittedRows*>(this)->word(index) >> index % kBits & 1U) != 0;
  }

private:
  static constexpr std::uint32_t kBits = 64;

  [[nodiscard]] std::uint64_t& word(std::uint32_t index) {
    return index < kBits ? first_ : rest_[index / kBits - 1];
  }

  std::uint64_t first_ = 0;
  std::vector<std::uint64_t> rest_;
};

/// A live group.
///
/// A group lives until all its rows were admitted and have left. A group that a verdict closed
/// lives until its rows have left.
struct Group {
  GroupId id;
  Slot slot = kNoSlot;  // its own
  bool closed = false;
  bool refused = false;  // scratch of one call: a row of it is refused
  std::uint32_t size = 1;
  SampleId first;  // its position in the order, even after that row has left
  std::uint32_t num_admitted = 0;
  std::uint32_t num_retired = 0;
  std::uint32_t trained = 0;
  std::uint32_t accepted = 0;
  std::uint64_t bytes = 0;
  std::uint32_t num_live = 0;
  std::uint32_t num_named = 0;  // scratch of one call: how many of its rows it names
  Slot first_live = kNoSlot;    // its live rows, in admission order
  Slot last_live = kNoSlot;
  AdmittedRows admitted;

  [[nodiscard]] Unit unit() const noexcept { return {first.value, id.value}; }
  [[nodiscard]] bool all_admitted() const noexcept { return num_admitted == size; }
};

/// A live row.
struct Row {
  SampleRow info;
  std::uint64_t columns = 0;  // bit c: column c is present
  std::uint64_t bytes = 0;
  RowFacts facts;
  Slot slot = kNoSlot;   // its own
  Slot group = kNoSlot;  // or none
  Slot previous_in_group = kNoSlot;
  Slot next_in_group = kNoSlot;
  std::uint32_t num_open = 0;  // tasks that have neither acked the row nor dropped it as stale
  bool accepted = false;
  bool any_stale = false;

  [[nodiscard]] Unit unit() const noexcept { return {info.id.value, info.id.value}; }
  [[nodiscard]] bool in_group() const noexcept { return group != kNoSlot; }
};

/// Live records of one kind (rows or groups), by id and in slots. Each has one cell per task.
///
/// Records and cells keep their addresses. Slots are reused.
template <class Record, class RecordCell>
class Records {
public:
  explicit Records(std::size_t num_tasks) : cells_(num_tasks) {}

  /// Returns the record of an id, or null.
  [[nodiscard]] Record* find(std::uint64_t id) {
    const Slot slot = by_id_.find(id);
    return slot == kNoSlot ? nullptr : &records_[slot];
  }
  [[nodiscard]] const Record* find(std::uint64_t id) const {
    const Slot slot = by_id_.find(id);
    return slot == kNoSlot ? nullptr : &records_[slot];
  }
  /// Adds a record in its initial state. Requires that the id is unknown.
  Record& add(std::uint64_t id) {
    const Slot slot = numbers_.take();
    records_.reach(slot);
    cells_.reach(slot);
    by_id_.insert(id, slot);
    records_[slot] = {};
    records_[slot].slot = slot;
    std::ranges::fill(cells_.all(slot), RecordCell{});
    return records_[slot];
  }
  /// Removes a record.
  void remove(std::uint64_t id) { numbers_.give_back(by_id_.erase(id)); }

  [[nodiscard]] Record& operator[](Slot slot) { return records_[slot]; }
  [[nodiscard]] const Record& operator[](Slot slot) const { return records_[slot]; }
  /// Returns the cells of a record, by task.
  [[nodiscard]] std::span<RecordCell> cells(const Record& record) {
    return cells_.all(record.slot);
  }
  [[nodiscard]] std::span<const RecordCell> cells(const Record& record) const {
    return cells_.all(record.slot);
  }
  /// Returns the slots of all records, in the order of their ids.
  [[nodiscard]] const IdMap& by_id() const noexcept { return by_id_; }
  [[nodiscard]] std::size_t size() const noexcept { return by_id_.size(); }

private:
  IdMap by_id_;
  SlotNumbers numbers_;
  ChunkedArray<Record> records_;
  ChunkedArray<RecordCell> cells_;
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
  IdMap pending;                // units that are neither ready, leased nor done: slots, by position
  std::uint64_t revision = 0;   // see `StreamIndex::revision`
  std::uint64_t num_ready = 0;  // rows
  TaskTotals totals;
  ReturnedDeliveries returned;

  /// Returns the position of the oldest unit that is neither deliverable nor taken, if any.
  [[nodiscard]] std::optional<std::uint64_t> first_blocked() const {
    std::optional<std::uint64_t> first;
    if (!pending.empty()) {
      first = pending.front().id;
    }
    if (!ready.stale().empty()) {
      const std::uint64_t stale = ready.stale().front().position;
      first = std::min(first.value_or(stale), stale);
    }
    return first;
  }
};

}  // namespace tidemill::storage::internal
