// SPDX-License-Identifier: Apache-2.0
// The records inside a stream index. Private to storage/stream.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <type_traits>
#include <unordered_map>
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
  std::uint64_t admitted = 0;  // bit i: row i was admitted; for the others see `AdmittedRows`

  [[nodiscard]] Unit unit() const noexcept { return {first.value, id.value}; }
  [[nodiscard]] bool all_admitted() const noexcept { return num_admitted == size; }
};

/// Which rows of the live groups were admitted, by index in the group.
class AdmittedRows {
public:
  void add(Group& group, std::uint32_t index) {
    if (index < kInGroup) {
      group.admitted |= std::uint64_t{1} << index;
    } else {
      std::vector<bool>& rest = rest_[group.slot];
      rest.resize(group.size - kInGroup);
      rest[index - kInGroup] = true;
    }
  }
  [[nodiscard]] bool contains(const Group& group, std::uint32_t index) const {
    if (index < kInGroup) {
      return (group.admitted >> index & 1U) != 0;
    }
    const auto rest = rest_.find(group.slot);
    return rest != rest_.end() && rest->second[index - kInGroup];
  }
  /// Forgets a group.
  void remove(const Group& group) {
    if (group.size > kInGroup) {
      rest_.erase(group.slot);
    }
  }

private:
  static constexpr std::uint32_t kInGroup = 64;

  std::unordered_map<Slot, std::vector<bool>> rest_;  // only for groups of more than 64 rows
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
/// Records keep their addresses. A record and its cells are neighbors in memory.
template <class Record, class RecordCell>
class Records {
public:
  explicit Records(std::size_t num_tasks)
      : num_tasks_(num_tasks), memory_(bytes_of_slot(num_tasks)) {}

  /// Returns the record of an id, or null.
  [[nodiscard]] Record* find(std::uint64_t id) const {
    const Slot slot = by_id_.find(id);
    return slot == kNoSlot ? nullptr : &at(slot);
  }
  /// Begins to load the record of an id, if it exists, into the processor's cache.
  // Inlined, because GCC removes calls of functions that only prefetch.
  [[gnu::always_inline]] void prefetch(std::uint64_t id) const {
    const Slot slot = by_id_.find(id);
    if (slot == kNoSlot) {
      return;
    }
    const std::byte* bytes = memory_.at(slot);
    for (std::size_t line = 0; line < bytes_of_slot(num_tasks_); line += kCacheLine) {
      __builtin_prefetch(bytes + line, 1);
    }
  }
  /// Adds a record in its initial state. Requires that the id is unknown.
  Record& add(std::uint64_t id) {
    const Slot slot = free_ == kNoSlot ? end_++ : std::exchange(free_, at(free_).slot);
    memory_.reach(slot);
    by_id_.insert(id, slot);
    auto* record = new (memory_.at(slot)) Record;
    record->slot = slot;
    std::uninitialized_fill_n(first_cell(*record), num_tasks_, RecordCell{});
    return *record;
  }
  /// Removes a record.
  void remove(Record& record, std::uint64_t id) {
    by_id_.erase(id);
    // The memory of a free slot holds the next free slot.
    const Slot slot = std::exchange(record.slot, free_);
    free_ = slot;
  }

  [[nodiscard]] Record& operator[](Slot slot) { return at(slot); }
  [[nodiscard]] const Record& operator[](Slot slot) const { return at(slot); }
  /// Returns the cells of a record, by task.
  [[nodiscard]] std::span<RecordCell> cells(const Record& record) {
    return {first_cell(record), num_tasks_};
  }
  [[nodiscard]] std::span<const RecordCell> cells(const Record& record) const {
    return {first_cell(record), num_tasks_};
  }
  /// Returns the slots of all records, in the order of their ids.
  [[nodiscard]] const IdMap& by_id() const noexcept { return by_id_; }
  [[nodiscard]] std::size_t size() const noexcept { return by_id_.size(); }

private:
  static_assert(std::is_trivially_destructible_v<Record>);
  static_assert(sizeof(Record) % alignof(RecordCell) == 0);

  static constexpr std::size_t kCacheLine = 64;

  // Whole cache lines, so that a record touches as few of them as possible.
  [[nodiscard]] static constexpr std::size_t bytes_of_slot(std::size_t num_tasks) noexcept {
    const std::size_t bytes = sizeof(Record) + num_tasks * sizeof(RecordCell);
    return (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
  }
  [[nodiscard]] Record& at(Slot slot) const {
    return *std::launder(reinterpret_cast<Record*>(memory_.at(slot)));
  }
  [[nodiscard]] static RecordCell* first_cell(const Record& record) {
    return const_cast<RecordCell*>(reinterpret_cast<const RecordCell*>(&record + 1));
  }

  std::size_t num_tasks_;
  SlotMemory memory_;
  IdMap by_id_;
  Slot free_ = kNoSlot;
  Slot end_ = 0;
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
  IdSet pending;                // positions of the units that are neither ready, leased nor done
  std::uint64_t revision = 0;   // see `StreamIndex::revision`
  std::uint64_t num_ready = 0;  // rows
  TaskTotals totals;
  ReturnedDeliveries returned;

  /// Returns the position of the oldest unit that is neither deliverable nor taken, if any.
  [[nodiscard]] std::optional<std::uint64_t> first_blocked() const {
    std::optional<std::uint64_t> first;
    if (!pending.empty()) {
      first = pending.front();
    }
    if (!ready.stale().empty()) {
      const std::uint64_t stale = ready.stale().front().position;
      first = std::min(first.value_or(stale), stale);
    }
    return first;
  }
};

}  // namespace tidemill::storage::internal
