// SPDX-License-Identifier: Apache-2.0
// How rows and groups leave, and what happens to their slots.
#include <algorithm>
#include <utility>

#include "storage/stream/stream_index.hpp"

namespace tidemill::storage {
namespace {

RowOutcome outcome_of(VerdictKind kind) noexcept {
  switch (kind) {
    case VerdictKind::kDrop: return RowOutcome::kDropped;
    case VerdictKind::kFilter: return RowOutcome::kFiltered;
    case VerdictKind::kFail: return RowOutcome::kFailed;
  }
  return RowOutcome::kDropped;
}

}  // namespace

Status StreamIndex::apply_verdict(SampleId id, const Verdict& verdict) {
  Row* row = find_row(id);
  if (row == nullptr) {
    return refuse(Refusal::kUnknownRow, Errc::kNotFound,
                  "verdict on sample " + std::to_string(id.value) + ", which is not live");
  }
  if (verdict.kind == VerdictKind::kFail) {
    fail(*row, verdict.reason);
  } else {
    retire(id, outcome_of(verdict.kind), verdict.reason);
  }
  return {};
}

Status StreamIndex::apply_group_verdict(GroupId id, const Verdict& verdict) {
  const auto group = groups_.find(id);
  if (group == groups_.end()) {
    return refuse(Refusal::kUnknownRow, Errc::kNotFound,
                  "verdict on group " + std::to_string(id.value) + ", which is not live");
  }
  close(group->second, verdict);
  return {};
}

void StreamIndex::fail(Row& row, const std::string& reason) {
  const SampleId id = row.info.id;
  const GroupId group_id = row.info.group;
  const bool drop_group = options_.on_failed == OnFailedRow::kDropGroup && !row.group->solo;
  if (!drop_group) {
    retire(id, RowOutcome::kFailed, reason);
    return;
  }
  // Closed first, so that the failed row's slot is treated like those of its group.
  row.group->closed = true;
  retire(id, RowOutcome::kFailed, reason);
  if (const auto group = groups_.find(group_id); group != groups_.end()) {
    close(group->second,
          {VerdictKind::kDrop, "sample " + std::to_string(id.value) + " failed: " + reason});
  }
}

void StreamIndex::close(Group& group, const Verdict& verdict) {
  group.closed = true;
  const RowOutcome outcome = outcome_of(verdict.kind);
  if (group.live.empty()) {
    remove_group(group, outcome);
    return;
  }
  const std::vector<SampleId> rows = group.live;  // retiring the last one removes the group
  for (const SampleId id : rows) {
    retire(id, outcome, verdict.reason);
  }
}

void StreamIndex::accept(Row& row) {
  if (accept_bit_ == 0 || row.accepted) {
    return;
  }
  row.accepted = true;
  ++row.group->accepted;
  ++effects_.slots.accepted;
  --held_.running;
  ++held_.accepted;
}

void StreamIndex::retire(SampleId id, RowOutcome outcome, const std::string& reason) {
  Row& row = *find_row(id);
  Group& group = *row.group;
  const bool last = group.live.size() == 1 && (group.closed || group.all_admitted());
  // A batch consumes the slots of its trained rows. A row that leaves by a verdict keeps its slot
  // while its group continues. Otherwise the slots of the group are given back when it leaves.
  if (outcome == RowOutcome::kTrained || !(last || group.closed)) {
    accept(row);
  }
  for (std::uint32_t task = 0; task < tasks_.size(); ++task) {
    // In state pending, the row is in no count, and in no set except that of pending units.
    set_state(row, task, CellState::kPending);
    leases_.remove({TaskId{task}, id});
    if (tasks_[task].options.unit == DeliveryUnit::kRow) {
      tasks_[task].pending.erase(row.unit());
      ++tasks_[task].revision;
    }
  }
  switch (outcome) {
    case RowOutcome::kTrained: ++totals_.trained; break;
    case RowOutcome::kDropped: ++totals_.dropped; break;
    case RowOutcome::kFiltered: ++totals_.filtered; break;
    case RowOutcome::kFailed: ++totals_.failed; break;
  }
  ++(outcome == RowOutcome::kTrained ? group.trained : group.num_retired);
  remove_bytes(group, row.bytes);
  group.live.erase(std::find(group.live.begin(), group.live.end(), id));
  effects_.retired.push_back({id, row.info.group, outcome, reason});
  rows_.erase(id);
  if (last) {
    remove_group(group, outcome);
    return;
  }
  if (!group.solo) {
    // The group may be complete without this row.
    for (std::uint32_t task = 0; task < tasks_.size(); ++task) {
      if (tasks_[task].options.unit == DeliveryUnit::kGroup) {
        sync_group(group, task);
      }
    }
  }
}

void StreamIndex::remove_group(Group& group, RowOutcome outcome) {
  if (accept_bit_ != 0) {
    const std::int64_t unfinished = std::int64_t{group.size} - group.accepted;
    held_.running -= unfinished;
    held_.accepted -= group.accepted;
    if (group.trained > 0) {
      effects_.slots.accepted += unfinished;  // its batch consumed the slots of the whole group
    } else {
      effects_.slots.forfeited += group.accepted;
      (outcome == RowOutcome::kFiltered ? effects_.slots.rejected : effects_.slots.aborted) +=
          unfinished;
    }
  }
  bytes_reserved_ -= reservation(group);
  if (group.solo) {
    solos_.erase(group.first);
    return;
  }
  for (Task& task : tasks_) {
    if (task.options.unit == DeliveryUnit::kGroup) {
      task.ready.erase(group.unit());
      task.pending.erase(group.unit());
      ++task.revision;
    }
  }
  groups_.erase(group.id);
}

// -- effects ------------------------------------------------------------------

StreamEffects StreamIndex::take_effects() {
  return std::exchange(effects_, {});
}

}  // namespace tidemill::storage
