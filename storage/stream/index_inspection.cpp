// SPDX-License-Identifier: Apache-2.0
// Inspection of a stream index: its content, what tasks wait for, and whether all of it agrees.
#include <algorithm>
#include <bit>
#include <utility>

#include "storage/stream/stream_index.hpp"

namespace tidemill::storage {
namespace {

std::string number(std::uint64_t value) {
  return std::to_string(value);
}

Status broken(const std::string& what) {
  return {Errc::kInternal, "stream index: " + what};
}

bool is_done(CellState state) noexcept {
  return state == CellState::kAcked || state == CellState::kStale;
}

}  // namespace

// -- observing ----------------------------------------------------------------

const TaskTotals& StreamIndex::task_totals(TaskId task) const {
  TIDEMILL_CHECK(known(task)) << task.value;
  return tasks_[task.value].totals;
}

const ReturnedDeliveries& StreamIndex::returned(TaskId task) const {
  TIDEMILL_CHECK(known(task)) << task.value;
  return tasks_[task.value].returned;
}

std::uint64_t StreamIndex::refused(Refusal reason) const noexcept {
  return refused_[static_cast<std::size_t>(reason)];
}

std::uint64_t StreamIndex::num_ready(TaskId task) const {
  TIDEMILL_CHECK(known(task)) << task.value;
  return tasks_[task.value].num_ready;
}

std::uint64_t StreamIndex::revision(TaskId task) const {
  TIDEMILL_CHECK(known(task)) << task.value;
  return tasks_[task.value].revision;
}

std::vector<SampleId> StreamIndex::ready_rows(TaskId task) const {
  TIDEMILL_CHECK(known(task)) << task.value;
  std::vector<SampleId> ready;
  for (const auto [id, slot] : rows_.by_id()) {
    if (cell(rows_[slot], task.value).state == CellState::kReady) {
      ready.push_back({id});
    }
  }
  return ready;
}

std::vector<SampleId> StreamIndex::rows_of(const Task& task, Unit unit) const {
  if (task.options.unit == DeliveryUnit::kRow) {
    return {SampleId{unit.id}};
  }
  std::vector<SampleId> rows;
  for (const Row* row = first_of(*groups_.find(unit.id)); row != nullptr; row = next_of(*row)) {
    rows.push_back(row->info.id);
  }
  return rows;
}

std::vector<std::vector<SampleId>> StreamIndex::deliverable(TaskId task) const {
  TIDEMILL_CHECK(known(task)) << task.value;
  const Task& owner = tasks_[task.value];
  const bool strict = owner.options.order == DeliveryOrder::kStrict;
  const std::optional<std::uint64_t> blocked = strict ? owner.first_blocked() : std::nullopt;
  std::vector<std::vector<SampleId>> units;
  for (const auto& [unit, oldest_step] : owner.ready.fresh()) {
    if (blocked && *blocked < unit.position) {
      break;
    }
    units.push_back(rows_of(owner, unit));
  }
  return units;
}

std::vector<LeaseView> StreamIndex::leases(TaskId task) const {
  TIDEMILL_CHECK(known(task)) << task.value;
  std::vector<LeaseView> views;
  for (const auto [id, slot] : rows_.by_id()) {
    if (const Slot leased = cell(rows_[slot], task.value).lease; leased != kNoSlot) {
      const LeaseTable::Entry& lease = leases_[leased];
      views.push_back({{{id}, options_.incarnation, lease.generation},
                       leases_.name(lease.consumer),
                       lease.deadline});
    }
  }
  return views;
}

std::string StreamIndex::waiting_for(TaskId task) const {
  TIDEMILL_CHECK(known(task)) << task.value;
  const Task& owner = tasks_[task.value];
  ++work_.units;
  const std::optional<std::uint64_t> oldest = owner.first_blocked();
  if (!oldest) {
    return owner.ready.fresh().empty() ? "new rows" : "";
  }
  if (owner.options.unit == DeliveryUnit::kRow) {
    return describe_row(*find_row({*oldest}), task.value);
  }
  return describe_group(groups_[group_at_.find(*oldest)], task.value);
}

std::string StreamIndex::describe_group(const Group& group, std::uint32_t task) const {
  const std::string where = "group " + number(group.id.value) + ": ";
  if (!group.all_admitted()) {
    return where + number(group.num_admitted) + " of " + number(group.size) + " rows admitted";
  }
  for (const Row* row = first_of(group); row != nullptr; row = next_of(*row)) {
    ++work_.rows;
    if (cell(*row, task).state == CellState::kPending) {
      return where + describe_row(*row, task);
    }
  }
  return where + "too stale at version " + number(version_);
}

std::string StreamIndex::describe_row(const Row& row, std::uint32_t task) const {
  const std::string where = "sample " + number(row.info.id.value) + ": ";
  const std::uint64_t missing = tasks_[task].inputs & ~row.columns;
  if (missing == 0) {
    return where + "too stale at version " + number(version_);
  }
  const auto column = static_cast<std::size_t>(std::countr_zero(missing));
  std::string what = where + "column " + options_.columns[column].name;
  for (std::uint32_t writer = 0; writer < tasks_.size(); ++writer) {
    if ((tasks_[writer].outputs >> column & 1U) == 0) {
      continue;
    }
    const Slot lease = cell(row, writer).lease;
    return what + ", task " + tasks_[writer].options.name +
           (lease == kNoSlot ? ", not leased"
                             : ", leased by " + leases_.name(leases_[lease].consumer));
  }
  return what;
}

// -- checking -----------------------------------------------------------------

Status StreamIndex::check_invariants() const {
  for (const auto [id, slot] : groups_.by_id()) {
    TIDEMILL_RETURN_IF_ERROR(check_group(groups_[slot]));
  }
  for (const auto [id, slot] : rows_.by_id()) {
    TIDEMILL_RETURN_IF_ERROR(check_row(rows_[slot]));
  }
  for (std::uint32_t task = 0; task < tasks_.size(); ++task) {
    TIDEMILL_RETURN_IF_ERROR(check_task(task));
  }
  return check_sums();
}

Status StreamIndex::check_group(const Group& group) const {
  const std::string where =
      "group " + number(group.id.value) + " from sample " + number(group.first.value);
  std::uint32_t admitted = 0;
  for (std::uint32_t index = 0; index < group.size; ++index) {
    admitted += admitted_.contains(group, index) ? 1 : 0;
  }
  if (admitted != group.num_admitted ||
      group.num_live + group.num_retired + group.trained != group.num_admitted) {
    return broken(where + ": admitted " + number(group.num_admitted) + ", live " +
                  number(group.num_live) + ", retired " + number(group.num_retired) + ", trained " +
                  number(group.trained));
  }
  if (group.closed || (group.num_live == 0 && group.all_admitted())) {
    return broken(where + " should have left");
  }
  std::uint64_t bytes = 0;
  std::uint32_t accepted = 0;
  std::uint32_t listed = 0;
  std::vector<GroupCell> cells(tasks_.size());
  for (const Row* row = first_of(group); row != nullptr; row = next_of(*row)) {
    if (rows_.find(row->info.id.value) != row || row->group != group.slot) {
      return broken(where + " lists sample " + number(row->info.id.value));
    }
    ++listed;
    bytes += row->bytes;
    accepted += row->accepted ? 1 : 0;
    for (std::uint32_t task = 0; task < tasks_.size(); ++task) {
      const CellState state = cell(*row, task).state;
      cells[task].ready += state == CellState::kReady ? 1 : 0;
      cells[task].taken += state == CellState::kLeased || is_done(state) ? 1 : 0;
    }
  }
  // When slots are counted, those of rows that left stay with the group as accepted.
  const std::uint32_t left = accept_bit_ == 0 ? 0 : group.num_retired + group.trained;
  if (listed != group.num_live || bytes != group.bytes || accepted + left != group.accepted) {
    return broken(where + ": rows " + number(group.num_live) + ", bytes " + number(group.bytes) +
                  ", accepted " + number(group.accepted));
  }
  for (std::size_t task = 0; task < tasks_.size(); ++task) {
    const GroupCell& counts = groups_.cells(group)[task];
    if (cells[task].ready != counts.ready || cells[task].taken != counts.taken) {
      return broken(where + ": counts of task " + tasks_[task].options.name);
    }
  }
  return {};
}

Status StreamIndex::check_row(const Row& row) const {
  const std::string where = "sample " + number(row.info.id.value);
  const bool high_bits =
      options_.columns.size() < kMaxColumns && (row.columns >> options_.columns.size()) != 0;
  if (high_bits || row.info.id.value >= next_row_) {
    return broken(where + ": columns or id out of range");
  }
  if (row.in_group() != (row.info.group_size > 0) ||
      (row.in_group() &&
       (row.info.group != group_of(row).id || row.info.group_size != group_of(row).size ||
        row.info.index_in_group >= group_of(row).size ||
        !admitted_.contains(group_of(row), row.info.index_in_group)))) {
    return broken(where + " contradicts its group");
  }
  std::uint32_t open = 0;
  for (std::uint32_t task = 0; task < tasks_.size(); ++task) {
    TIDEMILL_RETURN_IF_ERROR(check_cell(row, task));
    open += is_done(cell(row, task).state) ? 0 : 1;
  }
  if (open != row.num_open || open == 0) {
    return broken(where + ": open for " + number(row.num_open) + " tasks");
  }
  return {};
}

Status StreamIndex::check_cell(const Row& row, std::uint32_t task) const {
  const std::string where = "sample " + number(row.info.id.value);
  const Cell& checked = cell(row, task);
  const bool complete = (tasks_[task].inputs & ~row.columns) == 0;
  const bool leased = checked.lease != kNoSlot;
  if (complete == (checked.state == CellState::kPending) ||
      leased != (checked.state == CellState::kLeased) ||
      (leased && leases_[checked.lease].row != TaskRow{{task}, row.info.id})) {
    return broken(where + ": state of task " + tasks_[task].options.name);
  }
  if (checked.failures > checked.deliveries) {
    return broken(where + ": more failures than deliveries");
  }
  if (options_.max_deliveries > 0 && checked.failures >= options_.max_deliveries) {
    return broken(where + ": " + number(checked.failures) + " failed deliveries");
  }
  return {};
}

Status StreamIndex::check_task(std::uint32_t index) const {
  const Task& task = tasks_[index];
  ReadySet ready(task.options.max_staleness);
  ready.set_version(version_);
  IdSet pending;
  std::uint64_t num_ready = 0;
  for (const auto [id, slot] : rows_.by_id()) {
    const CellState state = cell(rows_[slot], index).state;
    num_ready += state == CellState::kReady ? 1 : 0;
    if (task.options.unit == DeliveryUnit::kRow && state == CellState::kReady) {
      ready.put(rows_[slot].unit(), rows_[slot].facts.oldest_step);
    } else if (task.options.unit == DeliveryUnit::kRow && state == CellState::kPending) {
      pending.insert(id);
    }
  }
  for (const auto [id, slot] : groups_.by_id()) {
    if (task.options.unit == DeliveryUnit::kRow) {
      break;
    }
    const Group& group = groups_[slot];
    const GroupCell& counts = groups_.cells(group)[index];
    if (counts.ready > 0 && counts.ready + group.num_retired == group.size) {
      std::uint64_t oldest = kNoStep;
      for (const Row* row = first_of(group); row != nullptr; row = next_of(*row)) {
        oldest = std::min(oldest, row->facts.oldest_step);
      }
      ready.put(group.unit(), oldest);
    } else if (counts.taken == 0) {
      pending.insert(group.first.value);
    }
  }
  const std::string where = "task " + task.options.name;
  if (ready.fresh() != task.ready.fresh() || ready.stale() != task.ready.stale()) {
    return broken(where + ": ready units");
  }
  if (pending != task.pending) {
    return broken(where + ": pending units");
  }
  if (num_ready != task.num_ready) {
    return broken(where + ": " + number(task.num_ready) + " ready rows");
  }
  return {};
}

Status StreamIndex::check_sums() const {
  if (totals_.admitted != totals_.retired() + rows_.size()) {
    return broken("admitted " + number(totals_.admitted) + " is not trained " +
                  number(totals_.trained) + " + dropped " + number(totals_.dropped) +
                  " + filtered " + number(totals_.filtered) + " + failed " +
                  number(totals_.failed) + " + live " + number(rows_.size()));
  }
  std::uint64_t used = 0;
  std::uint64_t reserved = 0;
  std::size_t grouped = 0;
  std::size_t leased = 0;
  HeldSlots held;
  const auto add = [&](std::uint64_t bytes, std::int64_t size, std::int64_t accepted) {
    used += bytes;
    reserved += reservation(bytes);
    held.accepted += accepted;
    held.running += size - accepted;
  };
  for (const auto [id, slot] : groups_.by_id()) {
    add(groups_[slot].bytes, groups_[slot].size, groups_[slot].accepted);
    grouped += groups_[slot].num_live;
  }
  for (const auto [id, slot] : rows_.by_id()) {
    const Row& row = rows_[slot];
    if (!row.in_group()) {
      add(row.bytes, 1, row.accepted ? 1 : 0);
    }
    grouped -= row.in_group() ? 1 : 0;
    for (const Cell& one : rows_.cells(row)) {
      leased += one.lease != kNoSlot ? 1 : 0;
    }
  }
  if (used != bytes_used_ || reserved != bytes_reserved_ || grouped != 0) {
    return broken("bytes used " + number(bytes_used_) + ", reserved " + number(bytes_reserved_) +
                  ", rows " + number(rows_.size()));
  }
  if (accept_bit_ != 0 && held != held_) {
    return broken("slots held: running " + std::to_string(held_.running) + ", accepted " +
                  std::to_string(held_.accepted));
  }
  if (leased != leases_.size()) {
    return broken(number(leases_.size()) + " leases for " + number(leased) + " leased rows");
  }
  if (const auto deadline = leases_.next_deadline(); deadline && *deadline <= now_) {
    return broken("a lease is past its deadline");
  }
  return {};
}

}  // namespace tidemill::storage
