// SPDX-License-Identifier: Apache-2.0
// Leases: granting ready units, and settling, returning and expiring leased ones.
#include <algorithm>
#include <bit>
#include <map>
#include <utility>

#include "storage/stream/balance.hpp"
#include "storage/stream/stream_index.hpp"

namespace tidemill::storage {

// -- granting -----------------------------------------------------------------

Result<Grant> StreamIndex::lease(const LeaseOptions& request, TimePoint now) {
  TIDEMILL_RETURN_IF_ERROR(expire(now));
  if (!known(request.task)) {
    return refuse(Refusal::kUnknownTask, "task number " + std::to_string(request.task.value));
  }
  Task& task = tasks_[request.task.value];
  const std::uint32_t ranks = task.options.ranks;
  if (request.count == 0 || request.min_count > request.count ||
      (ranks > 0 && request.count % ranks != 0)) {
    return refuse(Refusal::kBadCount, "task " + task.options.name + ": " +
                                          std::to_string(request.min_count) + " to " +
                                          std::to_string(request.count) + " units for " +
                                          std::to_string(ranks) + " ranks");
  }
  drop_stale(task, request.task.value);

  Grant grant;
  grant.shares.resize(std::max(1U, ranks));
  const std::vector<Unit> units = select(task, request);
  if (units.empty()) {
    return grant;
  }
  ++generation_;
  grant.deadline = now + task.options.lease;
  const std::vector<std::vector<Unit>> assigned = distribute(task, units);
  for (std::size_t rank = 0; rank < assigned.size(); ++rank) {
    for (const Unit unit : assigned[rank]) {
      grant_unit(unit, request, grant.deadline, grant.shares[rank]);
    }
  }
  return grant;
}

void StreamIndex::drop_stale(Task& task, std::uint32_t index) {
  if (task.options.stale_policy == StalePolicy::kWait || task.ready.stale().empty()) {
    return;
  }
  const std::map<Unit, std::uint64_t> stale = task.ready.stale();  // settling changes the set
  for (const auto& [unit, oldest_step] : stale) {
    for (const SampleId id : rows_of(task, unit)) {
      Row* row = find_row(id);
      if (row == nullptr) {
        continue;
      }
      ++task.totals.stale;
      if (task.options.stale_policy == StalePolicy::kDropForTask) {
        settle(*row, index, CellState::kStale);
      } else if (task.options.unit == DeliveryUnit::kRow) {
        retire(id, RowOutcome::kDropped,
               "stale: step " + std::to_string(oldest_step) + " at version " +
                   std::to_string(version_));
      }
    }
    if (task.options.stale_policy == StalePolicy::kDrop &&
        task.options.unit == DeliveryUnit::kGroup) {
      close(groups_.at(GroupId{unit.id}),
            {VerdictKind::kDrop, "stale: step " + std::to_string(oldest_step) + " at version " +
                                     std::to_string(version_)});
    }
  }
}

std::vector<SampleId> StreamIndex::rows_of(const Task& task, Unit unit) const {
  if (task.options.unit == DeliveryUnit::kRow) {
    return {SampleId{unit.id}};
  }
  return groups_.at(GroupId{unit.id}).live;
}

std::vector<Unit> StreamIndex::select(const Task& task, const LeaseOptions& request) const {
  const std::uint32_t needed = task.options.ranks > 0 ? request.count : request.min_count;
  std::vector<Unit> units;
  if (task.ready.fresh().size() < needed) {
    return units;
  }
  const bool strict = task.options.order == DeliveryOrder::kStrict;
  const std::optional<Unit> blocked = strict ? task.first_blocked() : std::nullopt;
  for (const auto& [unit, oldest_step] : task.ready.fresh()) {
    ++work_.units;
    if (units.size() == request.count || (blocked && *blocked < unit)) {
      break;
    }
    units.push_back(unit);
  }
  if (units.size() < needed) {
    units.clear();
  }
  return units;
}

std::vector<std::vector<Unit>> StreamIndex::distribute(const Task& task,
                                                       const std::vector<Unit>& units) const {
  if (task.options.ranks == 0) {
    return {units};
  }
  std::vector<std::uint64_t> tokens;
  tokens.reserve(units.size());
  for (const Unit unit : units) {
    std::uint64_t sum = 0;
    for (const SampleId id : rows_of(task, unit)) {
      const std::uint64_t counted = find_row(id)->facts.tokens;
      sum += counted == kNoTokens ? 0 : counted;
    }
    tokens.push_back(sum);
  }
  std::vector<std::vector<Unit>> assigned;
  for (const std::vector<std::uint32_t>& share : balance(tokens, task.options.ranks)) {
    std::vector<Unit>& rank = assigned.emplace_back();
    for (const std::uint32_t index : share) {
      rank.push_back(units[index]);
    }
  }
  return assigned;
}

void StreamIndex::grant_unit(Unit unit, const LeaseOptions& request, TimePoint deadline,
                             GrantedShare& share) {
  Task& task = tasks_[request.task.value];
  for (const SampleId id : rows_of(task, unit)) {
    Row& row = *find_row(id);
    set_state(row, request.task.value, CellState::kLeased);
    leases_.add(id, {request.task, request.consumer, request.instance}, generation_, deadline);
    ++task.totals.delivered;
    share.rows.push_back(
        {{id, options_.incarnation, generation_}, row.cells[request.task.value].deliveries});
    share.tokens += row.facts.tokens == kNoTokens ? 0 : row.facts.tokens;
  }
}

// -- returning ----------------------------------------------------------------

Status StreamIndex::expire(TimePoint now) {
  if (now < now_) {
    return refuse(Refusal::kTimeRegress,
                  "the clock went back by " + std::to_string((now_ - now).count()) + " ns");
  }
  now_ = now;
  return_leases(leases_.due(now), "lease expired");
  return {};
}

void StreamIndex::drop_consumer(std::string_view consumer) {
  return_leases(leases_.held_by(consumer), "consumer " + std::string(consumer) + " is gone");
}

void StreamIndex::return_leases(const std::vector<TaskRow>& leased, const std::string& why) {
  for (const TaskRow row : leased) {
    if (leases_.find(row) != nullptr) {  // null: the row left because of one returned before it
      effects_.returned.push_back(row);
      return_row(row, {Release::kLost, why});
    }
  }
}

void StreamIndex::return_row(TaskRow leased, const ReleaseOptions& options) {
  leases_.remove(leased);
  Row& row = *find_row(leased.row);
  Task& task = tasks_[leased.task.value];
  Cell& cell = row.cells[leased.task.value];
  ++cell.deliveries;
  ++task.totals.redelivered;
  switch (options.release) {
    case Release::kLeft: ++task.returned.left; break;
    case Release::kLost: ++task.returned.lost; break;
    case Release::kFailed:
      ++task.returned.failed;
      ++cell.failures;
      break;
  }
  if (options_.max_deliveries > 0 && cell.failures >= options_.max_deliveries) {
    fail(row, "task " + task.options.name + ": failed " + std::to_string(cell.failures) +
                  " times, last: " + options.reason);
    return;
  }
  set_state(row, leased.task.value, CellState::kReady);
}

// -- settling -----------------------------------------------------------------

Result<Settlement> StreamIndex::complete(const LeaseHolder& holder,
                                         std::span<const HeldRowInfo> rows, TimePoint now) {
  TIDEMILL_RETURN_IF_ERROR(begin_settlement(holder.task, rows, now));
  const Task& task = tasks_[holder.task.value];
  Faults faults = check_leases(holder, rows);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!faults[i]) {
      faults[i] = check_outputs(task, rows[i]);
    }
  }
  refuse_whole_groups(holder.task, rows, faults);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!faults[i]) {
      Row& row = *find_row(rows[i].lease.row);
      leases_.remove({holder.task, rows[i].lease.row});
      replace_progress(row, task, {rows[i].lease, {}, {}, rows[i].progress_bytes});
      write(row, rows[i].columns, rows[i].facts);
      settle(row, holder.task.value, CellState::kAcked);
    }
  }
  return_faulty_rows(holder.task, rows, faults);
  return report(rows, faults);
}

Result<Settlement> StreamIndex::nack(const LeaseHolder& holder, std::span<const HeldRowInfo> rows,
                                     const ReleaseOptions& options, TimePoint now) {
  TIDEMILL_RETURN_IF_ERROR(begin_settlement(holder.task, rows, now));
  const Task& task = tasks_[holder.task.value];
  Faults faults = check_leases(holder, rows);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!faults[i] && options.release != Release::kLeft && !rows[i].columns.empty()) {
      faults[i] = Fault{Refusal::kBadColumn,
                        column_text(rows[i].lease.row, rows[i].columns.front().column) +
                            ": written with a release that does not leave the row"};
    }
    if (!faults[i]) {
      faults[i] = check_progress(task, rows[i]);
    }
  }
  refuse_whole_groups(holder.task, rows, faults);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const TaskRow row{holder.task, rows[i].lease.row};
    if (!faults[i] && leases_.find(row) != nullptr) {  // null: it left because of an earlier row
      if (!rows[i].columns.empty()) {
        replace_progress(*find_row(row.row), task, rows[i]);
      }
      return_row(row, options);
    }
  }
  return_faulty_rows(holder.task, rows, faults);
  return report(rows, faults);
}

Result<Settlement> StreamIndex::renew(const LeaseHolder& holder, std::span<const HeldRowInfo> rows,
                                      TimePoint now) {
  TIDEMILL_RETURN_IF_ERROR(begin_settlement(holder.task, rows, now));
  const Task& task = tasks_[holder.task.value];
  Faults faults = check_leases(holder, rows);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!faults[i]) {
      faults[i] = check_progress(task, rows[i]);
    }
  }
  refuse_whole_groups(holder.task, rows, faults);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!faults[i]) {
      leases_.renew({holder.task, rows[i].lease.row}, now + task.options.lease);
      if (!rows[i].columns.empty()) {
        replace_progress(*find_row(rows[i].lease.row), task, rows[i]);
      }
    }
  }
  return_faulty_rows(holder.task, rows, faults);
  return report(rows, faults);
}

Status StreamIndex::begin_settlement(TaskId task, std::span<const HeldRowInfo> rows,
                                     TimePoint now) {
  TIDEMILL_RETURN_IF_ERROR(expire(now));
  if (!known(task)) {
    return refuse(Refusal::kUnknownTask, "task number " + std::to_string(task.value));
  }
  const TaskOptions& options = tasks_[task.value].options;
  std::vector<SampleId> sorted;
  sorted.reserve(rows.size());
  for (const HeldRowInfo& row : rows) {
    sorted.push_back(row.lease.row);
  }
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) {
    return refuse(Refusal::kDuplicateRow,
                  "task " + options.name + ": sample " + std::to_string(twice->value));
  }
  if (options.unit == DeliveryUnit::kRow) {
    return {};
  }
  std::map<GroupId, std::size_t> named;
  for (const HeldRowInfo& held : rows) {
    const Row* row = find_row(held.lease.row);
    if (row != nullptr && !row->group->solo) {
      ++named[row->info.group];
    }
  }
  for (const auto& [group, count] : named) {
    if (count != groups_.at(group).live.size()) {
      return refuse(Refusal::kPartialGroup, "task " + options.name + ": " + std::to_string(count) +
                                                " rows of group " + std::to_string(group.value) +
                                                ", which has " +
                                                std::to_string(groups_.at(group).live.size()));
    }
  }
  return {};
}

StreamIndex::Faults StreamIndex::check_leases(const LeaseHolder& holder,
                                              std::span<const HeldRowInfo> rows) const {
  Faults faults(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Lease& named = rows[i].lease;
    const LeaseTable::Entry* held = leases_.find({holder.task, named.row});
    if (named.incarnation != options_.incarnation) {
      faults[i] = Fault{Refusal::kOtherIncarnation};
    } else if (held == nullptr) {
      faults[i] =
          Fault{find_row(named.row) == nullptr ? Refusal::kUnknownRow : Refusal::kNotLeased};
    } else if (held->generation != named.generation) {
      faults[i] = Fault{Refusal::kOldLease};
    } else if (*held->consumer != holder.consumer || held->instance != holder.instance) {
      faults[i] = Fault{Refusal::kOtherConsumer};
    }
  }
  return faults;
}

std::optional<StreamIndex::Fault> StreamIndex::check_outputs(const Task& task,
                                                             const HeldRowInfo& row) const {
  if (std::optional<Fault> fault = check_cells(row.lease.row, row.columns)) {
    return fault;
  }
  std::uint64_t written = 0;
  for (const CellInfo& cell : row.columns) {
    written |= std::uint64_t{1} << cell.column.value;
  }
  const auto fault = [&](Refusal reason, std::uint64_t columns, const std::string& what) {
    const ColumnId first{static_cast<std::uint32_t>(std::countr_zero(columns))};
    return Fault{reason, column_text(row.lease.row, first) + ": " + what};
  };
  if (const auto other = written & ~(task.outputs | task.optional_outputs); other != 0) {
    return fault(Refusal::kBadColumn, other, "is no output of task " + task.options.name);
  }
  if (const auto missing = task.outputs & ~written; missing != 0) {
    return fault(Refusal::kBadColumn, missing, "not written");
  }
  if (const auto present = find_row(row.lease.row)->columns & written; present != 0) {
    return fault(Refusal::kDuplicateColumn, present, "already written");
  }
  return std::nullopt;
}

std::optional<StreamIndex::Fault> StreamIndex::check_progress(const Task& task,
                                                              const HeldRowInfo& row) const {
  if (row.columns.empty()) {
    return std::nullopt;
  }
  if (std::optional<Fault> fault = check_cells(row.lease.row, row.columns)) {
    return fault;
  }
  std::uint64_t written = 0;
  for (const CellInfo& cell : row.columns) {
    written |= std::uint64_t{1} << cell.column.value;
  }
  if (written != task.progress) {
    return Fault{Refusal::kBadColumn, "sample " + std::to_string(row.lease.row.value) +
                                          ": other columns than the progress of task " +
                                          task.options.name};
  }
  return std::nullopt;
}

void StreamIndex::refuse_whole_groups(TaskId task, std::span<const HeldRowInfo> rows,
                                      Faults& faults) const {
  if (tasks_[task.value].options.unit == DeliveryUnit::kRow) {
    return;
  }
  std::set<const Group*> refused_groups;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row* row = faults[i] ? find_row(rows[i].lease.row) : nullptr;
    if (row != nullptr) {
      refused_groups.insert(row->group);
    }
  }
  for (std::size_t i = 0; i < rows.size() && !refused_groups.empty(); ++i) {
    if (!faults[i] && refused_groups.contains(find_row(rows[i].lease.row)->group)) {
      faults[i] = Fault{Refusal::kGroupRefused};
    }
  }
}

void StreamIndex::replace_progress(Row& row, const Task& task, const HeldRowInfo& held) {
  if (task.progress == 0) {
    return;
  }
  row.columns &= ~task.progress;
  row.bytes -= held.progress_bytes;
  remove_bytes(*row.group, held.progress_bytes);
  std::uint64_t bytes = 0;
  for (const CellInfo& cell : held.columns) {
    row.columns |= std::uint64_t{1} << cell.column.value;
    bytes += cell.bytes;
  }
  row.bytes += bytes;
  add_bytes(*row.group, bytes);
}

void StreamIndex::return_faulty_rows(TaskId task, std::span<const HeldRowInfo> rows,
                                     const Faults& faults) {
  std::set<GroupId> groups;  // with a row whose cells are invalid
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const TaskRow row{task, rows[i].lease.row};
    if (faults[i] && is_content_refusal(faults[i]->reason) && leases_.find(row) != nullptr) {
      groups.insert(find_row(row.row)->info.group);
      return_row(row, {Release::kFailed,
                       std::string(refusal_name(faults[i]->reason)) + ": " + faults[i]->detail});
    }
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const TaskRow row{task, rows[i].lease.row};
    if (faults[i] && faults[i]->reason == Refusal::kGroupRefused && leases_.find(row) != nullptr &&
        groups.contains(find_row(row.row)->info.group)) {
      return_row(row, {Release::kLeft, "another row of its group was refused"});
    }
  }
}

Settlement StreamIndex::report(std::span<const HeldRowInfo> rows, Faults& faults) {
  Settlement settlement;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (faults[i]) {
      ++refused_[static_cast<std::size_t>(faults[i]->reason)];
      settlement.refused.push_back(
          {rows[i].lease, faults[i]->reason, std::move(faults[i]->detail)});
    } else {
      settlement.done.push_back(rows[i].lease.row);
    }
  }
  return settlement;
}

void StreamIndex::settle(Row& row, std::uint32_t task, CellState state) {
  set_state(row, task, state);
  if (state == CellState::kAcked) {
    ++tasks_[task].totals.acked;
  } else {
    row.any_stale = true;
  }
  if (--row.num_open == 0) {
    retire(row.info.id, row.any_stale ? RowOutcome::kDropped : RowOutcome::kTrained,
           row.any_stale ? "stale" : "");
  }
}

}  // namespace tidemill::storage
