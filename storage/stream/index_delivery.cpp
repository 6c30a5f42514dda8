// SPDX-License-Identifier: Apache-2.0
// Leases: granting ready units, and settling, returning and expiring leased ones.
#include <algorithm>
#include <bit>
#include <utility>

#include "storage/stream/balance.hpp"
#include "storage/stream/stream_index.hpp"

namespace tidemill::storage {
namespace {

std::uint64_t bits_of(std::span<const CellInfo> cells) noexcept {
  std::uint64_t bits = 0;
  for (const CellInfo& cell : cells) {
    bits |= std::uint64_t{1} << cell.column.value;
  }
  return bits;
}

}  // namespace

// -- granting -----------------------------------------------------------------

Result<Grant> StreamIndex::lease(const LeaseOptions& request, TimePoint now) {
  Grant grant;
  TIDEMILL_RETURN_IF_ERROR(lease(request, now, grant));
  return grant;
}

Status StreamIndex::lease(const LeaseOptions& request, TimePoint now, Grant& grant) {
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
  select(task, request);

  grant.deadline = {};
  grant.shares.resize(std::max(1U, ranks));
  for (GrantedShare& share : grant.shares) {
    share.rows.clear();
    share.tokens = 0;
  }
  if (scratch_.units.empty()) {
    return {};
  }
  ++generation_;
  grant.deadline = now + task.options.lease;
  const Slot consumer = leases_.consumer(request.consumer);
  if (ranks > 0) {
    grant_over_ranks(request, consumer, grant);
    return {};
  }
  for (const Unit unit : scratch_.units) {
    grant_unit(unit, request, consumer, grant.deadline, grant.shares.front());
  }
  return {};
}

void StreamIndex::drop_stale(Task& task, std::uint32_t index) {
  if (task.options.stale_policy == StalePolicy::kWait || task.ready.stale().empty()) {
    return;
  }
  auto& stale = scratch_.stale;  // settling changes the set
  stale.assign(task.ready.stale().begin(), task.ready.stale().end());
  for (const auto& [unit, oldest_step] : stale) {
    const std::string why =
        "stale: step " + std::to_string(oldest_step) + " at version " + std::to_string(version_);
    if (task.options.unit == DeliveryUnit::kGroup) {
      drop_stale_group(task, index, *groups_.find(unit.id), why);
    } else if (Row* row = find_row({unit.id}); row != nullptr) {
      ++task.totals.stale;
      if (task.options.stale_policy == StalePolicy::kDropForTask) {
        settle(*row, index, CellState::kStale);
      } else {
        retire(*row, RowOutcome::kDropped, why);
      }
    }
  }
}

void StreamIndex::drop_stale_group(Task& task, std::uint32_t index, Group& group,
                                   const std::string& why) {
  task.totals.stale += group.num_live;
  work_.rows += group.num_live;
  if (task.options.stale_policy == StalePolicy::kDrop) {
    close(group, {VerdictKind::kDrop, why});
    return;
  }
  for (Row* row = first_of(group); row != nullptr;) {
    Row* next = next_of(*row);
    settle(*row, index, CellState::kStale);  // the last row may remove the group
    row = next;
  }
}

void StreamIndex::select(const Task& task, const LeaseOptions& request) {
  scratch_.units.clear();
  const std::uint32_t needed = task.options.ranks > 0 ? request.count : request.min_count;
  const ReadySet::Units fresh = task.ready.fresh();
  if (fresh.size() < needed) {
    return;
  }
  const bool strict = task.options.order == DeliveryOrder::kStrict;
  const std::optional<std::uint64_t> blocked = strict ? task.first_blocked() : std::nullopt;
  for (const auto& [unit, oldest_step] : fresh) {
    ++work_.units;
    if (blocked && *blocked < unit.position) {
      break;
    }
    scratch_.units.push_back(unit);
    if (scratch_.units.size() == request.count) {
      break;
    }
  }
  if (scratch_.units.size() < needed) {
    scratch_.units.clear();
  }
}

std::uint64_t StreamIndex::tokens_of(const Task& task, Unit unit) const {
  const auto counted = [](const Row& row) {
    return row.facts.tokens == kNoTokens ? 0 : row.facts.tokens;
  };
  if (task.options.unit == DeliveryUnit::kRow) {
    return counted(*find_row({unit.id}));
  }
  std::uint64_t sum = 0;
  for (const Row* row = first_of(*groups_.find(unit.id)); row != nullptr; row = next_of(*row)) {
    ++work_.rows;
    sum += counted(*row);
  }
  return sum;
}

void StreamIndex::grant_over_ranks(const LeaseOptions& request, Slot consumer, Grant& grant) {
  const Task& task = tasks_[request.task.value];
  std::vector<std::uint64_t> tokens;
  tokens.reserve(scratch_.units.size());
  for (const Unit unit : scratch_.units) {
    tokens.push_back(tokens_of(task, unit));
  }
  const auto shares = balance(tokens, task.options.ranks);
  for (std::size_t rank = 0; rank < shares.size(); ++rank) {
    for (const std::uint32_t index : shares[rank]) {
      grant_unit(scratch_.units[index], request, consumer, grant.deadline, grant.shares[rank]);
    }
  }
}

void StreamIndex::grant_unit(Unit unit, const LeaseOptions& request, Slot consumer,
                             TimePoint deadline, GrantedShare& share) {
  if (tasks_[request.task.value].options.unit == DeliveryUnit::kRow) {
    grant_row(*find_row({unit.id}), request, consumer, deadline, share);
    return;
  }
  for (Row* row = first_of(*groups_.find(unit.id)); row != nullptr; row = next_of(*row)) {
    ++work_.rows;
    grant_row(*row, request, consumer, deadline, share);
  }
}

void StreamIndex::grant_row(Row& row, const LeaseOptions& request, Slot consumer,
                            TimePoint deadline, GrantedShare& share) {
  const std::uint32_t task = request.task.value;
  const SampleId id = row.info.id;
  set_state(row, task, CellState::kLeased);
  Cell& leased = cell(row, task);
  leased.lease = leases_.add({.row = {request.task, id},
                              .generation = generation_,
                              .deadline = deadline,
                              .instance = request.instance,
                              .consumer = consumer});
  ++tasks_[task].totals.delivered;
  share.rows.push_back({{id, options_.incarnation, generation_}, leased.deliveries});
  share.tokens += row.facts.tokens == kNoTokens ? 0 : row.facts.tokens;
}

// -- returning ----------------------------------------------------------------

Status StreamIndex::expire(TimePoint now) {
  if (now < now_) {
    return refuse(Refusal::kTimeRegress,
                  "the clock went back by " + std::to_string((now_ - now).count()) + " ns");
  }
  now_ = now;
  if (const auto due = leases_.next_deadline(); due.has_value() && *due <= now) {
    leases_.due(now, scratch_.returned);
    return_leases(scratch_.returned, "lease expired");
  }
  return {};
}

void StreamIndex::drop_consumer(std::string_view consumer) {
  leases_.held_by(consumer, scratch_.returned);
  return_leases(scratch_.returned, "consumer " + std::string(consumer) + " is gone");
}

internal::Row* StreamIndex::find_leased(SampleId id, TaskId task) {
  Row* row = find_row(id);
  return row != nullptr && cell(*row, task.value).lease != kNoSlot ? row : nullptr;
}

void StreamIndex::return_leases(std::span<const TaskRow> leased, const std::string& why) {
  for (const TaskRow& lease : leased) {
    // Null: the row left because of one returned before it.
    if (Row* row = find_leased(lease.row, lease.task); row != nullptr) {
      effects_.returned.push_back(lease);
      return_row(*row, lease.task, {Release::kLost, why});
    }
  }
}

void StreamIndex::return_row(Row& row, TaskId task_id, const ReleaseOptions& options) {
  Task& task = tasks_[task_id.value];
  Cell& leased = cell(row, task_id.value);
  leases_.remove(std::exchange(leased.lease, kNoSlot));
  ++leased.deliveries;
  ++task.totals.redelivered;
  switch (options.release) {
    case Release::kLeft: ++task.returned.left; break;
    case Release::kLost: ++task.returned.lost; break;
    case Release::kFailed:
      ++task.returned.failed;
      ++leased.failures;
      break;
  }
  if (options_.max_deliveries > 0 && leased.failures >= options_.max_deliveries) {
    fail(row, "task " + task.options.name + ": failed " + std::to_string(leased.failures) +
                  " times, last: " + options.reason);
    return;
  }
  set_state(row, task_id.value, CellState::kReady);
}

// -- settling -----------------------------------------------------------------

Result<Settlement> StreamIndex::complete(const LeaseHolder& holder,
                                         std::span<const HeldRowInfo> rows, TimePoint now) {
  Settlement settlement;
  TIDEMILL_RETURN_IF_ERROR(complete(holder, rows, now, settlement));
  return settlement;
}

Status StreamIndex::complete(const LeaseHolder& holder, std::span<const HeldRowInfo> rows,
                             TimePoint now, Settlement& settlement) {
  TIDEMILL_RETURN_IF_ERROR(begin_settlement(holder.task, rows, now));
  const Task& task = tasks_[holder.task.value];
  check_leases(holder, rows);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    NamedRow& named = scratch_.named[i];
    if (!named.fault) {
      named.fault = check_outputs(task, *named.row, rows[i]);
    }
  }
  refuse_whole_groups(holder.task);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!scratch_.named[i].fault) {
      Row& row = *scratch_.named[i].row;
      leases_.remove(std::exchange(cell(row, holder.task.value).lease, kNoSlot));
      replace_progress(row, task, {}, rows[i].progress_bytes);
      write(row, rows[i].columns, rows[i].facts);
      settle(row, holder.task.value, CellState::kAcked);
    }
  }
  return_faulty_rows(holder.task, rows);
  report(rows, settlement);
  return {};
}

Result<Settlement> StreamIndex::nack(const LeaseHolder& holder, std::span<const HeldRowInfo> rows,
                                     const ReleaseOptions& options, TimePoint now) {
  TIDEMILL_RETURN_IF_ERROR(begin_settlement(holder.task, rows, now));
  const Task& task = tasks_[holder.task.value];
  check_leases(holder, rows);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::optional<Fault>& fault = scratch_.named[i].fault;
    if (!fault && options.release != Release::kLeft && !rows[i].columns.empty()) {
      fault = Fault{Refusal::kBadColumn,
                    column_text(rows[i].lease.row, rows[i].columns.front().column) +
                        ": written with a release that does not leave the row"};
    }
    if (!fault) {
      fault = check_progress(task, rows[i]);
    }
  }
  refuse_whole_groups(holder.task);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (scratch_.named[i].fault) {
      continue;
    }
    // Null: the row left because of an earlier one.
    if (Row* row = find_leased(rows[i].lease.row, holder.task); row != nullptr) {
      if (!rows[i].columns.empty()) {
        replace_progress(*row, task, rows[i].columns, rows[i].progress_bytes);
      }
      return_row(*row, holder.task, options);
    }
  }
  return_faulty_rows(holder.task, rows);
  Settlement settlement;
  report(rows, settlement);
  return settlement;
}

Result<Settlement> StreamIndex::renew(const LeaseHolder& holder, std::span<const HeldRowInfo> rows,
                                      TimePoint now) {
  TIDEMILL_RETURN_IF_ERROR(begin_settlement(holder.task, rows, now));
  const Task& task = tasks_[holder.task.value];
  check_leases(holder, rows);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::optional<Fault>& fault = scratch_.named[i].fault;
    if (!fault) {
      fault = check_progress(task, rows[i]);
    }
  }
  refuse_whole_groups(holder.task);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!scratch_.named[i].fault) {
      Row& row = *scratch_.named[i].row;
      leases_.renew(cell(row, holder.task.value).lease, now + task.options.lease);
      if (!rows[i].columns.empty()) {
        replace_progress(row, task, rows[i].columns, rows[i].progress_bytes);
      }
    }
  }
  return_faulty_rows(holder.task, rows);
  Settlement settlement;
  report(rows, settlement);
  return settlement;
}

Status StreamIndex::begin_settlement(TaskId task, std::span<const HeldRowInfo> rows,
                                     TimePoint now) {
  TIDEMILL_RETURN_IF_ERROR(expire(now));
  if (!known(task)) {
    return refuse(Refusal::kUnknownTask, "task number " + std::to_string(task.value));
  }
  const TaskOptions& options = tasks_[task.value].options;
  std::vector<SampleId>& ids = scratch_.ids;
  ids.clear();
  bool ascending = true;  // as a grant lists them
  for (const HeldRowInfo& row : rows) {
    rows_.prefetch(row.lease.row.value);
    ascending = ascending && (ids.empty() || ids.back() < row.lease.row);
    ids.push_back(row.lease.row);
  }
  if (!ascending) {
    std::sort(ids.begin(), ids.end());
    if (const auto twice = std::adjacent_find(ids.begin(), ids.end()); twice != ids.end()) {
      return refuse(Refusal::kDuplicateRow,
                    "task " + options.name + ": sample " + std::to_string(twice->value));
    }
  }
  return options.unit == DeliveryUnit::kRow ? Status{} : check_whole_groups(options, rows);
}

Status StreamIndex::check_whole_groups(const TaskOptions& task, std::span<const HeldRowInfo> rows) {
  const auto each_group = [&](auto apply) {
    for (const HeldRowInfo& held : rows) {
      if (const Row* row = find_row(held.lease.row); row != nullptr && row->in_group()) {
        apply(group_of(*row));
      }
    }
  };
  each_group([](Group& group) { group.num_named = 0; });
  each_group([](Group& group) { ++group.num_named; });
  const Group* partial = nullptr;
  each_group([&](const Group& group) {
    if (group.num_named != group.num_live && (partial == nullptr || group.id < partial->id)) {
      partial = &group;
    }
  });
  if (partial == nullptr) {
    return {};
  }
  return refuse(Refusal::kPartialGroup, "task " + task.name + ": " +
                                            std::to_string(partial->num_named) + " rows of group " +
                                            std::to_string(partial->id.value) + ", which has " +
                                            std::to_string(partial->num_live));
}

void StreamIndex::check_leases(const LeaseHolder& holder, std::span<const HeldRowInfo> rows) {
  scratch_.named.resize(rows.size());
  const Slot consumer = leases_.find_consumer(holder.consumer);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Lease& claimed = rows[i].lease;
    NamedRow& named = scratch_.named[i];
    named.fault.reset();
    named.row = find_row(claimed.row);
    const Slot lease = named.row == nullptr ? kNoSlot : cell(*named.row, holder.task.value).lease;
    if (claimed.incarnation != options_.incarnation) {
      named.fault = Fault{Refusal::kOtherIncarnation};
    } else if (lease == kNoSlot) {
      named.fault = Fault{named.row == nullptr ? Refusal::kUnknownRow : Refusal::kNotLeased};
    } else if (leases_[lease].generation != claimed.generation) {
      named.fault = Fault{Refusal::kOldLease};
    } else if (leases_[lease].consumer != consumer || leases_[lease].instance != holder.instance) {
      named.fault = Fault{Refusal::kOtherConsumer};
    }
  }
}

std::optional<StreamIndex::Fault> StreamIndex::check_outputs(const Task& task, const Row& row,
                                                             const HeldRowInfo& held) const {
  if (std::optional<Fault> fault = check_cells(held.lease.row, held.columns)) {
    return fault;
  }
  const std::uint64_t written = bits_of(held.columns);
  const auto fault = [&](Refusal reason, std::uint64_t columns, const std::string& what) {
    const ColumnId first{static_cast<std::uint32_t>(std::countr_zero(columns))};
    return Fault{reason, column_text(held.lease.row, first) + ": " + what};
  };
  if (const auto other = written & ~(task.outputs | task.optional_outputs); other != 0) {
    return fault(Refusal::kBadColumn, other, "is no output of task " + task.options.name);
  }
  if (const auto missing = task.outputs & ~written; missing != 0) {
    return fault(Refusal::kBadColumn, missing, "not written");
  }
  if (const auto present = row.columns & written; present != 0) {
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
  if (bits_of(row.columns) != task.progress) {
    return Fault{Refusal::kBadColumn, "sample " + std::to_string(row.lease.row.value) +
                                          ": other columns than the progress of task " +
                                          task.options.name};
  }
  return std::nullopt;
}

// Refuses all rows of a group if one of them is refused.
void StreamIndex::refuse_whole_groups(TaskId task) {
  std::vector<NamedRow>& named = scratch_.named;
  const auto refused = [](const NamedRow& one) { return one.fault.has_value(); };
  scratch_.any_refused = std::any_of(named.begin(), named.end(), refused);
  if (!scratch_.any_refused || tasks_[task.value].options.unit == DeliveryUnit::kRow) {
    return;
  }
  const auto each_group = [&](auto apply) {
    for (NamedRow& one : named) {
      if (one.row != nullptr && one.row->in_group()) {
        apply(one, group_of(*one.row));
      }
    }
  };
  each_group([](const NamedRow&, Group& group) { group.refused = false; });
  each_group([](const NamedRow& one, Group& group) { group.refused |= one.fault.has_value(); });
  each_group([](NamedRow& one, const Group& group) {
    if (group.refused && !one.fault) {
      one.fault = Fault{Refusal::kGroupRefused};
    }
  });
}

void StreamIndex::replace_progress(Row& row, const Task& task, std::span<const CellInfo> cells,
                                   std::uint64_t old_bytes) {
  if (task.progress == 0) {
    return;
  }
  std::uint64_t bytes = 0;
  for (const CellInfo& written : cells) {
    bytes += written.bytes;
  }
  row.columns = (row.columns & ~task.progress) | bits_of(cells);
  change_bytes(row, bytes, old_bytes);
}

// Gives back the rows whose cells are invalid and, if the task takes groups, the other rows of
// their groups.
void StreamIndex::return_faulty_rows(TaskId task, std::span<const HeldRowInfo> rows) {
  if (!scratch_.any_refused) {
    return;
  }
  const bool by_group = tasks_[task.value].options.unit == DeliveryUnit::kGroup;
  const auto each_refused = [&](auto apply) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::optional<Fault>& fault = scratch_.named[i].fault;
      Row* row = fault ? find_leased(rows[i].lease.row, task) : nullptr;
      if (row != nullptr) {
        apply(*row, *fault);
      }
    }
  };
  if (by_group) {
    each_refused([&](const Row& row, const Fault&) { group_of(row).refused = false; });
  }
  each_refused([&](Row& row, const Fault& fault) {
    if (is_content_refusal(fault.reason)) {
      if (by_group) {
        group_of(row).refused = true;
      }
      return_row(row, task,
                 {Release::kFailed, std::string(refusal_name(fault.reason)) + ": " + fault.detail});
    }
  });
  each_refused([&](Row& row, const Fault& fault) {
    if (fault.reason == Refusal::kGroupRefused && group_of(row).refused) {
      return_row(row, task, {Release::kLeft, "another row of its group was refused"});
    }
  });
}

void StreamIndex::report(std::span<const HeldRowInfo> rows, Settlement& settlement) {
  settlement.done.clear();
  settlement.done.reserve(rows.size());
  settlement.refused.clear();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (std::optional<Fault>& fault = scratch_.named[i].fault; fault) {
      ++refused_[static_cast<std::size_t>(fault->reason)];
      settlement.refused.push_back({rows[i].lease, fault->reason, std::move(fault->detail)});
    } else {
      settlement.done.push_back(rows[i].lease.row);
    }
  }
}

void StreamIndex::settle(Row& row, std::uint32_t task, CellState state) {
  set_state(row, task, state);
  if (state == CellState::kAcked) {
    ++tasks_[task].totals.acked;
  } else {
    row.any_stale = true;
  }
  if (--row.num_open == 0) {
    retire(row, row.any_stale ? RowOutcome::kDropped : RowOutcome::kTrained,
           row.any_stale ? "stale" : "");
  }
}

}  // namespace tidemill::storage
