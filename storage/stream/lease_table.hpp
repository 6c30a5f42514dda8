// SPDX-License-Identifier: Apache-2.0
// Which consumer holds which row for which task, and until when.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "storage/records/sample.hpp"

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

/// All leases of a stream, indexed by row, by deadline and by consumer.
///
/// Cost: O(log n) per lease touched.
class LeaseTable {
public:
  struct Entry {
    std::uint64_t generation = 0;
    TimePoint deadline;
    const std::string* consumer = nullptr;  // a key of `consumers_`
    std::uint64_t instance = 0;             // of the consumer
  };

  /// Adds the lease of a row to `holder`. Requires that the row is not leased for the task.
  void add(SampleId row, const LeaseHolder& holder, std::uint64_t generation, TimePoint deadline);
  /// Removes a lease, if it exists.
  void remove(TaskRow row);
  /// Changes the deadline of a lease. Requires that the lease exists.
  void renew(TaskRow row, TimePoint deadline);
  void clear();

  /// Returns the lease of a row, or null. The result is borrowed until the next change.
  [[nodiscard]] const Entry* find(TaskRow row) const;
  /// Returns the leases whose deadline is `now` or earlier, by task and admission order.
  [[nodiscard]] std::vector<TaskRow> due(TimePoint now) const;
  /// Returns the leases of a consumer, by task and admission order.
  [[nodiscard]] std::vector<TaskRow> held_by(std::string_view consumer) const;
  [[nodiscard]] std::optional<TimePoint> next_deadline() const;
  [[nodiscard]] std::size_t size() const noexcept { return leases_.size(); }
  /// Returns how many rows are leased for a task.
  [[nodiscard]] std::size_t size(TaskId task) const;

private:
  struct TaskRowHash {
    std::size_t operator()(const TaskRow& x) const noexcept {
      // There are few tasks, so their bits go above those of any row id in use.
      return std::hash<std::uint64_t>{}(x.row.value ^ (std::uint64_t{x.task.value} << 56U));
    }
  };

  std::unordered_map<TaskRow, Entry, TaskRowHash> leases_;
  std::set<std::pair<TimePoint, TaskRow>> deadlines_;
  std::map<std::string, std::set<TaskRow>, std::less<>> consumers_;
  std::map<TaskId, std::size_t> sizes_;
};

}  // namespace tidemill::storage
