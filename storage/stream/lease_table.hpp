// SPDX-License-Identifier: Apache-2.0
// Which consumer holds which row for which task, and until when.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.hpp"
#include "storage/records/sample.hpp"
#include "storage/stream/slots.hpp"

namespace tidemill::storage {

/// A row and the task that leases it.
struct TaskRow {
  TaskId task;
  SampleId row;
  friend auto operator<=>(const TaskRow&, const TaskRow&) = default;
};

/// A task and a consumer that leases rows for it. The stream ends all leases of a `consumer` that
/// is gone. `instance` tells apart consumers that had the same name one after the other.
struct LeaseHolder {
  TaskId task;
  std::string consumer = {};
  std::uint64_t instance = 0;
};

/// All leases of a stream, in slots, by deadline and by consumer.
///
/// All leases of a task are equally long and the clock does not go back, so the deadline of a
/// lease that is added or renewed is never earlier than those that the task's other leases have. A
/// list per task is therefore in the order of the deadlines.
///
/// Cost: O(1) per lease touched. Allocates only to hold more leases than ever before, and for the
/// name of a consumer that is not known.
/// Memory: proportional to the peak of leases, plus the names of the consumers that have leases
/// and of at most `kMaxIdleConsumers` that have none.
class LeaseTable {
public:
  static constexpr std::size_t kMaxIdleConsumers = 256;

  struct Entry {
    TaskRow row;
    std::uint64_t generation = 0;
    TimePoint deadline = {};
    std::uint64_t instance = 0;  // of the consumer
    Slot consumer = kNoSlot;
    // Neighbors in the list of the task and in that of the consumer.
    Slot earlier = kNoSlot;
    Slot later = kNoSlot;
    Slot previous_held = kNoSlot;
    Slot next_held = kNoSlot;
  };

  explicit LeaseTable(std::size_t num_tasks) : tasks_(num_tasks) {}

  /// Returns the number of a consumer, which names it until it has no lease and others are added.
  [[nodiscard]] Slot consumer(std::string_view name);
  /// Returns the number of a consumer, or `kNoSlot` if it has no lease.
  [[nodiscard]] Slot find_consumer(std::string_view name) const;
  [[nodiscard]] const std::string& name(Slot consumer) const { return *consumers_[consumer].name; }

  /// Adds a lease, of which `entry` has the row, the generation, the deadline, the consumer and its
  /// instance. Returns its slot. Requires that the row is not leased for the task, and that no
  /// lease of the task has a later deadline.
  [[nodiscard]] Slot add(const Entry& entry);
  void remove(Slot lease);
  /// Changes the deadline of a lease. Requires that no lease of its task has a later one.
  void renew(Slot lease, TimePoint deadline);

  /// Returns a lease. The result is borrowed until the next change.
  [[nodiscard]] const Entry& operator[](Slot lease) const { return leases_[lease]; }
  /// Replaces `rows` by those whose deadline is `now` or earlier, by task and admission order.
  void due(TimePoint now, std::vector<TaskRow>& rows) const;
  /// Replaces `rows` by those that a consumer has leased, by task and admission order.
  void held_by(std::string_view consumer, std::vector<TaskRow>& rows) const;
  [[nodiscard]] std::optional<TimePoint> next_deadline() const;
  [[nodiscard]] std::size_t size() const noexcept { return leases_.in_use(); }
  /// Returns how many rows are leased for a task.
  [[nodiscard]] std::size_t size(TaskId task) const {
    return task.value < tasks_.size() ? tasks_[task.value].size : 0;
  }

private:
  // The leases of a task.
  struct Deadlines {
    Slot earliest = kNoSlot;
    Slot latest = kNoSlot;
    std::size_t size = 0;
  };
  struct Consumer {
    const std::string* name = nullptr;  // a key of `numbers_`
    Slot first_held = kNoSlot;
    // Neighbors in the list of idle consumers.
    Slot previous_idle = kNoSlot;
    Slot next_idle = kNoSlot;
  };

  void append(Slot lease);
  void unlink(const Entry& lease);
  void add_idle(Slot consumer);
  void remove_idle(Slot consumer);

  SlotArray<Entry> leases_;
  std::vector<Deadlines> tasks_;
  SlotArray<Consumer> consumers_;
  std::map<std::string, Slot, std::less<>> numbers_;
  // Consumers without leases. They keep their numbers for a while, since most of them return.
  Slot longest_idle_ = kNoSlot;
  Slot last_idle_ = kNoSlot;
  std::size_t num_idle_ = 0;
};

}  // namespace tidemill::storage
