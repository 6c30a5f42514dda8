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
    retire(*row, outcome_of(verdict.kind), verdict.reason);
  }
  return {};
}

Status StreamIndex::apply_group_verdict(GroupId id, const Verdict& verdict) {
  Group* group = groups_.find(id.value);
  if (group == nullptr) {
    return refuse(Refusal::kUnknownRow, Errc::kNotFound,
                  "verdict on group " + std::to_string(id.value) + ", which is not live");
  }
  close(*group, verdict);
  return {};
}

void StreamIndex::fail(Row& row, const std::string& reason) {
  const SampleId id = row.info.id;
  const GroupId group_id = row.info.group;
  if (options_.on_failed != OnFailedRow::kDropGroup || !row.in_group()) {
    retire(row, RowOutcome::kFailed, reason);
    return;
  }
  // Closed first, so that the failed row's slot is treated like those of its group.
  group_of(row).closed = true;
  retire(row, RowOutcome::kFailed, reason);
  if (Group* group = groups_.find(group_id.value); group != nullptr) {
    close(*group,
          {VerdictKind::kDrop, "sample " + std::to_string(id.value) + " failed: " + reason});
  }
}

void StreamIndex::close(Group& group, const Verdict& verdict) {
  group.closed = true;
  const RowOutcome outcome = outcome_of(verdict.kind);
  if (group.num_live == 0) {
    remove_group(group, outcome);
    return;
  }
  for (Row* row = first_of(group); row != nullptr;) {
    Row* next = next_of(*row);
    ++work_.rows;
    retire(*row, outcome, verdict.reason);  // the last row removes the group
    row = next;
  }
}

void StreamIndex::accept(Row& row) {
  if (accept_bit_ == 0 || row.accepted) {
    return;
  }
  row.accepted = true;
  if (row.in_group()) {
    ++group_of(row).accepted;
  }
  ++effects_.slots.accepted;
  --held_.running;
  ++held_.accepted;
}

void StreamIndex::retire(Row& row, RowOutcome outcome, const std::string& reason) {
  const SampleId id = row.info.id;
  Group* group = row.in_group() ? &group_of(row) : nullptr;
  const bool closed = group != nullptr && group->closed;
  const bool last = group == nullptr || (group->num_live == 1 && (closed || group->all_admitted()));
  // A batch consumes the slots of its trained rows. A row that leaves by a verdict keeps its slot
  // while its group continues. Otherwise the slots of the group are given back when it leaves.
  if (outcome == RowOutcome::kTrained || !(last || closed)) {
    accept(row);
  }
  for (std::uint32_t task = 0; task < tasks_.size(); ++task) {
    leave_task(row, task);
  }
  const bool trained = outcome == RowOutcome::kTrained;
  switch (outcome) {
    case RowOutcome::kTrained: ++totals_.trained; break;
    case RowOutcome::kDropped: ++totals_.dropped; break;
    case RowOutcome::kFiltered: ++totals_.filtered; break;
    case RowOutcome::kFailed: ++totals_.failed; break;
  }
  change_bytes(row, 0, row.bytes);
  effects_.retired.push_back({id, row.info.group, outcome, reason});
  if (group == nullptr) {
    bytes_reserved_ -= reservation(0);
    release_slots(1, row.accepted ? 1 : 0, trained, outcome);
    rows_.remove(row, id.value);
    return;
  }
  ++(trained ? group->trained : group->num_retired);
  unlink(*group, row);
  rows_.remove(row, id.value);
  if (last) {
    remove_group(*group, outcome);
    return;
  }
  // The group may be complete without this row.
  for (std::uint32_t task = 0; task < tasks_.size(); ++task) {
    if (tasks_[task].options.unit == DeliveryUnit::kGroup) {
      sync_group(*group, task);
    }
  }
}

// Gives back the slots of a group, or of a row that has none, that leaves the ledger.
void StreamIndex::release_slots(std::int64_t size, std::int64_t accepted, bool trained,
                                RowOutcome outcome) {
  if (accept_bit_ == 0) {
    return;
  }
  const std::int64_t unfinished = size - accepted;
  held_.running -= unfinished;
  held_.accepted -= accepted;
  if (trained) {
    effects_.slots.accepted += unfinished;  // its batch consumed the slots of the whole group
    return;
  }
  effects_.slots.forfeited += accepted;
  (outcome == RowOutcome::kFiltered ? effects_.slots.rejected : effects_.slots.aborted) +=
      unfinished;
}

void StreamIndex::remove_group(Group& group, RowOutcome outcome) {
  release_slots(group.size, group.accepted, group.trained > 0, outcome);
  bytes_reserved_ -= reservation(group.bytes);
  for (Task& task : tasks_) {
    if (task.options.unit == DeliveryUnit::kGroup) {
      task.ready.erase(group.unit());
      task.pending.erase(group.first.value);
      ++task.revision;
    }
  }
  admitted_.remove(group);
  group_at_.erase(group.first.value);
  groups_.remove(group, group.id.value);
}

// -- effects ------------------------------------------------------------------

StreamEffects StreamIndex::take_effects() {
  return std::exchange(effects_, {});
}

void StreamIndex::take_effects(StreamEffects& effects) {
  std::swap(effects, effects_);
  effects_.retired.clear();
  effects_.returned.clear();
  effects_.slots = {};
}

}  // namespace tidemill::storage
