// SPDX-License-Identifier: Apache-2.0
// Inspection of a stream index: its content, what tasks wait for, and whether all of it agrees.
#include <algorithm>
#include <bit>
#include <map>
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
  for (const auto& [id, row] : rows_) {
    if (row.cells[task.value].state == CellState::kReady) {
      ready.push_back(id);
    }
  }
  std::sort(ready.begin(), ready.end());
  return ready;
}

std::vector<std::vector<SampleId>> StreamIndex::deliverable(TaskId task) const {
  TIDEMILL_CHECK(known(task)) << task.value;
  const Task& owner = tasks_[task.value];
  const bool strict = owner.options.order == DeliveryOrder::kStrict;
  const std::optional<Unit> blocked = strict ? owner.first_blocked() : std::nullopt;
  std::vector<std::vector<SampleId>> units;
  for (const auto& [unit, oldest_step] : owner.ready.fresh()) {
    if (blocked && *blocked < unit) {
      break;
    }
    units.push_back(rows_of(owner, unit));
  }
  return units;
}

std::vector<LeaseView> StreamIndex::leases(TaskId task) const {
  TIDEMILL_CHECK(known(task)) << task.value;
  std::vector<LeaseView> views;
  for (const auto& [id, row] : rows_) {
    if (const LeaseTable::Entry* lease = leases_.find({task, id}); lease != nullptr) {
      views.push_back(
          {{id, options_.incarnation, lease->generation}, *lease->consumer, lease->deadline});
    }
  }
  std::sort(views.begin(), views.end(),
            [](const LeaseView& a, const LeaseView& b) { return a.lease.row < b.lease.row; });
  return views;
}

std::string StreamIndex::waiting_for(TaskId task) const {
  TIDEMILL_CHECK(known(task)) << task.value;
  const Task& owner = tasks_[task.value];
  ++work_.units;
  const std::optional<Unit> oldest = owner.first_blocked();
  if (!oldest) {
    return owner.ready.fresh().empty() ? "new rows" : "";
  }
  return owner.options.unit == DeliveryUnit::kGroup
             ? describe_group(*oldest, task.value)
             : describe_row(*find_row({oldest->id}), task.value);
}

std::string StreamIndex::describe_group(Unit unit, std::uint32_t task) const {
  const Group& group = groups_.at(GroupId{unit.id});
  const std::string where = "group " + number(unit.id) + ": ";
  if (!group.all_admitted()) {
    return where + number(group.num_admitted) + " of " + number(group.size) + " rows admitted";
  }
  for (const SampleId id : group.live) {
    const Row& row = *find_row(id);
    if (row.cells[task].state == CellState::kPending) {
      return where + describe_row(row, task);
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
    const LeaseTable::Entry* lease = leases_.find({TaskId{writer}, row.info.id});
    return what + ", task " + tasks_[writer].options.name +
           (lease == nullptr ? ", not leased" : ", leased by " + *lease->consumer);
  }
  return what;
}

// -- checking -----------------------------------------------------------------

Status StreamIndex::check_invariants() const {
  for (const auto& [id, group] : groups_) {
    TIDEMILL_RETURN_IF_ERROR(check_group(group));
  }
  for (const auto& [id, group] : solos_) {
    TIDEMILL_RETURN_IF_ERROR(check_group(group));
  }
  for (const auto& [id, row] : rows_) {
    TIDEMILL_RETURN_IF_ERROR(check_row(row));
  }
  for (std::uint32_t task = 0; task < tasks_.size(); ++task) {
    TIDEMILL_RETURN_IF_ERROR(check_task(task));
  }
  return check_sums();
}

Status StreamIndex::check_group(const Group& group) const {
  const std::string where =
      "group " + number(group.id.value) + " from sample " + number(group.first.value);
  const auto listed = std::count(group.admitted.begin(), group.admitted.end(), 1);
  if ((!group.solo && static_cast<std::uint32_t>(listed) != group.num_admitted) ||
      group.live.size() + group.num_retired + group.trained != group.num_admitted) {
    return broken(where + ": admitted " + number(group.num_admitted) + ", live " +
                  number(group.live.size()) + ", retired " + number(group.num_retired) +
                  ", trained " + number(group.trained));
  }
  if (group.closed || (group.live.empty() && group.all_admitted())) {
    return broken(where + " should have left");
  }
  std::uint64_t bytes = 0;
  std::uint32_t accepted = 0;
  std::vector<internal::GroupCell> cells(tasks_.size());
  for (const SampleId id : group.live) {
    const auto found = rows_.find(id);
    if (found == rows_.end() || found->second.group != &group) {
      return broken(where + " lists sample " + number(id.value));
    }
    const Row& row = found->second;
    bytes += row.bytes;
    accepted += row.accepted ? 1 : 0;
    for (std::size_t task = 0; task < tasks_.size(); ++task) {
      const CellState state = row.cells[task].state;
      cells[task].ready += state == CellState::kReady ? 1 : 0;
      cells[task].taken += state == CellState::kLeased || is_done(state) ? 1 : 0;
    }
  }
  // When slots are counted, those of rows that left stay with the group as accepted.
  const std::uint32_t left = accept_bit_ == 0 ? 0 : group.num_retired + group.trained;
  if (bytes != group.bytes || accepted + left != group.accepted) {
    return broken(where + ": bytes " + number(group.bytes) + ", accepted " +
                  number(group.accepted));
  }
  for (std::size_t task = 0; task < tasks_.size(); ++task) {
    if (cells[task].ready != group.cells[task].ready ||
        cells[task].taken != group.cells[task].taken) {
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
  const auto& live = row.group->live;
  if (std::count(live.begin(), live.end(), row.info.id) != 1) {
    return broken(where + " is not listed once in its group");
  }
  if (!row.group->solo &&
      (row.info.group != row.group->id || row.info.group_size != row.group->size ||
       row.info.index_in_group >= row.group->size ||
       row.group->admitted[row.info.index_in_group] != 1)) {
    return broken(where + " contradicts its group");
  }
  std::uint32_t open = 0;
  for (std::uint32_t task = 0; task < tasks_.size(); ++task) {
    const Cell& cell = row.cells[task];
    const bool complete = (tasks_[task].inputs & ~row.columns) == 0;
    const bool leased = leases_.find({TaskId{task}, row.info.id}) != nullptr;
    open += is_done(cell.state) ? 0 : 1;
    if (complete == (cell.state == CellState::kPending) ||
        leased != (cell.state == CellState::kLeased)) {
      return broken(where + ": state of task " + tasks_[task].options.name);
    }
    if (cell.failures > cell.deliveries) {
      return broken(where + ": more failures than deliveries");
    }
    if (options_.max_deliveries > 0 && cell.failures >= options_.max_deliveries) {
      return broken(where + ": " + number(cell.failures) + " failed deliveries");
    }
  }
  if (open != row.num_open || open == 0) {
    return broken(where + ": open for " + number(row.num_open) + " tasks");
  }
  return {};
}

Status StreamIndex::check_task(std::uint32_t index) const {
  const Task& task = tasks_[index];
  std::map<Unit, std::uint64_t> ready;
  std::set<Unit> pending;
  std::uint64_t num_ready = 0;
  for (const auto& [id, row] : rows_) {
    const CellState state = row.cells[index].state;
    num_ready += state == CellState::kReady ? 1 : 0;
    if (task.options.unit == DeliveryUnit::kRow) {
      if (state == CellState::kReady) {
        ready.emplace(row.unit(), row.facts.oldest_step);
      } else if (state == CellState::kPending) {
        pending.insert(row.unit());
      }
    }
  }
  for (const auto& [id, group] : groups_) {
    if (task.options.unit == DeliveryUnit::kRow) {
      break;
    }
    if (group.cells[index].ready > 0 &&
        group.cells[index].ready + group.num_retired == group.size) {
      std::uint64_t oldest = kNoStep;
      for (const SampleId member : group.live) {
        oldest = std::min(oldest, rows_.at(member).facts.oldest_step);
      }
      ready.emplace(group.unit(), oldest);
    } else if (group.cells[index].taken == 0) {
      pending.insert(group.unit());
    }
  }
  const std::string where = "task " + task.options.name;
  ReadySet expected(task.options.max_staleness);
  expected.set_version(version_);
  for (const auto& [unit, oldest] : ready) {
    expected.put(unit, oldest);
  }
  if (expected.fresh() != task.ready.fresh() || expected.stale() != task.ready.stale()) {
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
  std::size_t listed = 0;
  HeldSlots held;
  const auto add = [&](const Group& group) {
    used += group.bytes;
    reserved += reservation(group);
    listed += group.live.size();
    held.accepted += group.accepted;
    held.running += std::int64_t{group.size} - group.accepted;
  };
  for (const auto& [id, group] : groups_) {
    add(group);
  }
  for (const auto& [id, group] : solos_) {
    add(group);
  }
  if (used != bytes_used_ || reserved != bytes_reserved_ || listed != rows_.size()) {
    return broken("bytes used " + number(bytes_used_) + ", reserved " + number(bytes_reserved_) +
                  ", rows " + number(rows_.size()));
  }
  if (accept_bit_ != 0 && held != held_) {
    return broken("slots held: running " + std::to_string(held_.running) + ", accepted " +
                  std::to_string(held_.accepted));
  }
  std::size_t leased = 0;
  for (const auto& [id, row] : rows_) {
    leased += static_cast<std::size_t>(
        std::count_if(row.cells.begin(), row.cells.end(),
                      [](const Cell& cell) { return cell.state == CellState::kLeased; }));
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
