// SPDX-License-Identifier: Apache-2.0
// Leases in slots, linked by deadline and by consumer.
#include "storage/stream/lease_table.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace tidemill::storage {

// -- consumers ----------------------------------------------------------------

Slot LeaseTable::consumer(std::string_view name) {
  if (const auto known = numbers_.find(name); known != numbers_.end()) {
    return known->second;
  }
  const Slot number = consumers_.take();
  const auto added = numbers_.emplace(name, number).first;
  consumers_[number] = {&added->first};
  add_idle(number);
  return number;
}

Slot LeaseTable::find_consumer(std::string_view name) const {
  const auto known = numbers_.find(name);
  return known == numbers_.end() ? kNoSlot : known->second;
}

void LeaseTable::add_idle(Slot consumer) {
  consumers_[consumer].previous_idle = last_idle_;
  consumers_[consumer].next_idle = kNoSlot;
  (last_idle_ == kNoSlot ? longest_idle_ : consumers_[last_idle_].next_idle) = consumer;
  last_idle_ = consumer;
  if (++num_idle_ > kMaxIdleConsumers) {
    const Slot gone = longest_idle_;
    remove_idle(gone);
    numbers_.erase(numbers_.find(*consumers_[gone].name));
    consumers_.give_back(gone);
  }
}

void LeaseTable::remove_idle(Slot consumer) {
  const Consumer& idle = consumers_[consumer];
  (idle.previous_idle == kNoSlot ? longest_idle_ : consumers_[idle.previous_idle].next_idle) =
      idle.next_idle;
  (idle.next_idle == kNoSlot ? last_idle_ : consumers_[idle.next_idle].previous_idle) =
      idle.previous_idle;
  --num_idle_;
}

// -- leases -------------------------------------------------------------------

Slot LeaseTable::add(const Entry& entry) {
  const Slot lease = leases_.take();
  Entry& added = leases_[lease];
  added = entry;
  Consumer& holder = consumers_[entry.consumer];
  if (holder.first_held == kNoSlot) {
    remove_idle(entry.consumer);
  } else {
    leases_[holder.first_held].previous_held = lease;
  }
  added.previous_held = kNoSlot;
  added.next_held = holder.first_held;
  holder.first_held = lease;
  append(lease);
  return lease;
}

void LeaseTable::remove(Slot lease) {
  const Entry& removed = leases_[lease];
  unlink(removed);
  Consumer& holder = consumers_[removed.consumer];
  (removed.previous_held == kNoSlot ? holder.first_held
                                    : leases_[removed.previous_held].next_held) = removed.next_held;
  if (removed.next_held != kNoSlot) {
    leases_[removed.next_held].previous_held = removed.previous_held;
  }
  if (holder.first_held == kNoSlot) {
    add_idle(removed.consumer);
  }
  leases_.give_back(lease);
}

void LeaseTable::renew(Slot lease, TimePoint deadline) {
  unlink(leases_[lease]);
  leases_[lease].deadline = deadline;
  append(lease);
}

void LeaseTable::append(Slot lease) {
  Entry& last = leases_[lease];
  Deadlines& task = tasks_[last.row.task.value];
  TIDEMILL_CHECK(task.latest == kNoSlot || leases_[task.latest].deadline <= last.deadline)
      << "task " << last.row.task.value << " row " << last.row.row.value;
  last.earlier = task.latest;
  last.later = kNoSlot;
  (task.latest == kNoSlot ? task.earliest : leases_[task.latest].later) = lease;
  task.latest = lease;
  ++task.size;
}

void LeaseTable::unlink(const Entry& lease) {
  Deadlines& task = tasks_[lease.row.task.value];
  (lease.earlier == kNoSlot ? task.earliest : leases_[lease.earlier].later) = lease.later;
  (lease.later == kNoSlot ? task.latest : leases_[lease.later].earlier) = lease.earlier;
  --task.size;
}

// -- observing ----------------------------------------------------------------

void LeaseTable::due(TimePoint now, std::vector<TaskRow>& rows) const {
  rows.clear();
  for (const Deadlines& task : tasks_) {
    for (Slot lease = task.earliest; lease != kNoSlot && leases_[lease].deadline <= now;
         lease = leases_[lease].later) {
      rows.push_back(leases_[lease].row);
    }
  }
  std::ranges::sort(rows);
}

void LeaseTable::held_by(std::string_view consumer, std::vector<TaskRow>& rows) const {
  rows.clear();
  const Slot holder = find_consumer(consumer);
  if (holder == kNoSlot) {
    return;
  }
  for (Slot lease = consumers_[holder].first_held; lease != kNoSlot;
       lease = leases_[lease].next_held) {
    rows.push_back(leases_[lease].row);
  }
  std::ranges::sort(rows);
}

std::optional<TimePoint> LeaseTable::next_deadline() const {
  std::optional<TimePoint> next;
  for (const Deadlines& task : tasks_) {
    if (task.earliest != kNoSlot && (!next || leases_[task.earliest].deadline < *next)) {
      next = leases_[task.earliest].deadline;
    }
  }
  return next;
}

}  // namespace tidemill::storage
