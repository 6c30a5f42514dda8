// SPDX-License-Identifier: Apache-2.0
// Leases: granting ready units, and settling, returning and expiring leased ones.
#include <algorithm>
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
    leases_.add({request.task, id}, request.consumer, generation_, deadline);
    ++task.totals.delivered;
    share.rows.push_back({{id, generation_}, row.cells[request.task.value].deliveries});
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
      return_row(row, Release::kLost, why);
    }
  }
}

void StreamIndex::return_row(TaskRow leased, Release release, const std::string& why) {
  leases_.remove(leased);
  Row& row = *find_row(leased.row);
  Task& task = tasks_[leased.task.value];
  Cell& cell = row.cells[leased.task.value];
  ++cell.deliveries;
  ++task.totals.redelivered;
  cell.failures += release == Release::kFailed ? 1 : 0;
  if (options_.max_deliveries > 0 && cell.failures >= options_.max_deliveries) {
    fail(row, "task " + task.options.name + ": failed " + std::to_string(cell.failures) +
                  " times, last: " + why);
    return;
  }
  set_state(row, leased.task.value, CellState::kReady);
}

// -- settling -----------------------------------------------------------------

Result<Settlement> StreamIndex::complete(TaskId task, std::span<const FinishedRowInfo> rows,
                                         TimePoint now) {
  std::vector<LeaseToken> tokens;
  tokens.reserve(rows.size());
  for (const FinishedRowInfo& row : rows) {
    tokens.push_back(row.lease);
  }
  TIDEMILL_RETURN_IF_ERROR(begin_settlement(task, tokens, now));
  std::vector<std::optional<Refusal>> reasons = check_leases(task, tokens);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!reasons[i]) {
      reasons[i] = check_outputs(tasks_[task.value], rows[i]);
    }
  }
  refuse_whole_groups(task, tokens, reasons);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!reasons[i]) {
      Row& row = *find_row(tokens[i].row);
      leases_.remove({task, tokens[i].row});
      write(row, rows[i].columns, rows[i].facts);
      settle(row, task.value, CellState::kAcked);
    }
  }
  return report(tokens, reasons);
}

Result<Settlement> StreamIndex::nack(TaskId task, std::span<const LeaseToken> rows, Release release,
                                     std::string_view reason, TimePoint now) {
  const std::vector<LeaseToken> tokens(rows.begin(), rows.end());
  TIDEMILL_RETURN_IF_ERROR(begin_settlement(task, tokens, now));
  std::vector<std::optional<Refusal>> reasons = check_leases(task, tokens);
  refuse_whole_groups(task, tokens, reasons);
  const std::string why(reason);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const TaskRow row{task, tokens[i].row};
    if (!reasons[i] && leases_.find(row) != nullptr) {  // null: it left because of an earlier row
      return_row(row, release, why);
    }
  }
  return report(tokens, reasons);
}

Result<Settlement> StreamIndex::renew(TaskId task, std::span<const LeaseToken> rows,
                                      TimePoint now) {
  const std::vector<LeaseToken> tokens(rows.begin(), rows.end());
  TIDEMILL_RETURN_IF_ERROR(begin_settlement(task, tokens, now));
  std::vector<std::optional<Refusal>> reasons = check_leases(task, tokens);
  refuse_whole_groups(task, tokens, reasons);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (!reasons[i]) {
      leases_.renew({task, tokens[i].row}, now + tasks_[task.value].options.lease);
    }
  }
  return report(tokens, reasons);
}

Status StreamIndex::begin_settlement(TaskId task, const std::vector<LeaseToken>& rows,
                                     TimePoint now) {
  TIDEMILL_RETURN_IF_ERROR(expire(now));
  if (!known(task)) {
    return refuse(Refusal::kUnknownTask, "task number " + std::to_string(task.value));
  }
  const TaskOptions& options = tasks_[task.value].options;
  std::vector<LeaseToken> sorted = rows;
  std::sort(sorted.begin(), sorted.end());
  for (std::size_t i = 1; i < sorted.size(); ++i) {
    if (sorted[i].row == sorted[i - 1].row) {
      return refuse(Refusal::kDuplicateRow,
                    "task " + options.name + ": sample " + std::to_string(sorted[i].row.value));
    }
  }
  if (options.unit == DeliveryUnit::kRow) {
    return {};
  }
  std::map<GroupId, std::size_t> named;
  for (const LeaseToken& token : rows) {
    const Row* row = find_row(token.row);
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

std::vector<std::optional<Refusal>> StreamIndex::check_leases(
    TaskId task, const std::vector<LeaseToken>& rows) const {
  std::vector<std::optional<Refusal>> reasons(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const LeaseTable::Lease* lease = leases_.find({task, rows[i].row});
    if (lease == nullptr) {
      reasons[i] = find_row(rows[i].row) == nullptr ? Refusal::kUnknownRow : Refusal::kNotLeased;
    } else if (lease->generation != rows[i].generation) {
      reasons[i] = Refusal::kOldLease;
    }
  }
  return reasons;
}

std::optional<Refusal> StreamIndex::check_outputs(const Task& task,
                                                  const FinishedRowInfo& row) const {
  if (const auto reason = check_cell_types(row.columns)) {
    return reason;
  }
  std::uint64_t written = 0;
  for (const CellInfo& cell : row.columns) {
    written |= std::uint64_t{1} << cell.column.value;
  }
  if (written != task.outputs) {
    return Refusal::kBadColumn;
  }
  return (find_row(row.lease.row)->columns & written) != 0
             ? std::optional(Refusal::kDuplicateColumn)
             : std::nullopt;
}

void StreamIndex::refuse_whole_groups(TaskId task, const std::vector<LeaseToken>& rows,
                                      std::vector<std::optional<Refusal>>& reasons) const {
  if (tasks_[task.value].options.unit == DeliveryUnit::kRow) {
    return;
  }
  std::set<const Group*> refused_groups;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row* row = reasons[i] ? find_row(rows[i].row) : nullptr;
    if (row != nullptr) {
      refused_groups.insert(row->group);
    }
  }
  for (std::size_t i = 0; i < rows.size() && !refused_groups.empty(); ++i) {
    if (!reasons[i] && refused_groups.contains(find_row(rows[i].row)->group)) {
      reasons[i] = Refusal::kGroupRefused;
    }
  }
}

Settlement StreamIndex::report(const std::vector<LeaseToken>& rows,
                               const std::vector<std::optional<Refusal>>& reasons) {
  Settlement settlement;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (reasons[i]) {
      ++refused_[static_cast<std::size_t>(*reasons[i])];
      settlement.refused.push_back({rows[i], *reasons[i]});
    } else {
      settlement.done.push_back(rows[i].row);
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
