// SPDX-License-Identifier: Apache-2.0
// Leases by row, by deadline and by consumer.
#include "storage/stream/lease_table.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace tidemill::storage {

void LeaseTable::add(SampleId id, const LeaseHolder& holder, std::uint64_t generation,
                     TimePoint deadline) {
  const TaskRow row{holder.task, id};
  const auto held = consumers_.try_emplace(holder.consumer).first;
  const bool added =
      leases_.emplace(row, Entry{generation, deadline, &held->first, holder.instance}).second;
  TIDEMILL_CHECK(added) << "task " << row.task.value << " row " << row.row.value;
  held->second.insert(row);
  deadlines_.emplace(deadline, row);
  ++sizes_[row.task];
}

void LeaseTable::remove(TaskRow row) {
  const auto lease = leases_.find(row);
  if (lease == leases_.end()) {
    return;
  }
  deadlines_.erase({lease->second.deadline, row});
  const auto holder = consumers_.find(*lease->second.consumer);
  leases_.erase(lease);
  --sizes_[row.task];
  holder->second.erase(row);
  if (holder->second.empty()) {
    consumers_.erase(holder);  // so that consumers without leases take no memory
  }
}

void LeaseTable::renew(TaskRow row, TimePoint deadline) {
  Entry& lease = leases_.at(row);
  deadlines_.erase({lease.deadline, row});
  lease.deadline = deadline;
  deadlines_.emplace(deadline, row);
}

void LeaseTable::clear() {
  leases_.clear();
  deadlines_.clear();
  consumers_.clear();
  sizes_.clear();
}

std::size_t LeaseTable::size(TaskId task) const {
  const auto found = sizes_.find(task);
  return found == sizes_.end() ? 0 : found->second;
}

const LeaseTable::Entry* LeaseTable::find(TaskRow row) const {
  const auto lease = leases_.find(row);
  return lease == leases_.end() ? nullptr : &lease->second;
}

std::vector<TaskRow> LeaseTable::due(TimePoint now) const {
  std::vector<TaskRow> rows;
  for (const auto& [deadline, row] : deadlines_) {
    if (deadline > now) {
      break;
    }
    rows.push_back(row);
  }
  std::sort(rows.begin(), rows.end());
  return rows;
}

std::vector<TaskRow> LeaseTable::held_by(std::string_view consumer) const {
  const auto holder = consumers_.find(consumer);
  if (holder == consumers_.end()) {
    return {};
  }
  return {holder->second.begin(), holder->second.end()};
}

std::optional<TimePoint> LeaseTable::next_deadline() const {
  if (deadlines_.empty()) {
    return std::nullopt;
  }
  return deadlines_.begin()->first;
}

}  // namespace tidemill::storage
