// SPDX-License-Identifier: Apache-2.0
// What is put into a stream, leased from it and written back.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/buffer.hpp"
#include "base/clock.hpp"
#include "storage/records/lease.hpp"
#include "storage/records/sample.hpp"
#include "storage/records/verdict.hpp"

namespace tidemill::actors {

/// No bound on the groups of a lease.
inline constexpr std::uint64_t kAnyGroup = std::numeric_limits<std::uint64_t>::max();

/// A row as its producer puts it.
struct NewRow {
  storage::SampleRow row;
  std::vector<storage::ColumnValue> columns;
};

/// A group as its producer puts it: all rows at once, in index order. A group is never cut in half.
struct NewGroup {
  std::uint64_t draw = 0;  // of its prompt, since the run's start
  std::vector<NewRow> rows;
};

/// Asks for rows of a task.
struct LeaseRequest {
  storage::TaskId task;
  std::string consumer;
  /// Units (rows, or groups for a task by group) wanted; fewer than `min_units` are not leased.
  std::uint32_t max_units = 1;
  std::uint32_t min_units = 1;
  /// Only groups below this one; a task by group then takes what is left of them once all of it is
  /// ready, even if that is nothing.
  std::uint64_t before_group = kAnyGroup;
  /// How long the answer may take when there is not enough.
  Duration wait{0};
};

/// Rows leased until `lease_time` from now, or none and why.
struct LeaseReply {
  std::vector<storage::LeasedRow> rows;
  Duration lease_time{0};
  std::string waiting_for;  // when there are no rows: what is missing
  /// No row will ever become ready for this task.
  bool ended = false;
  /// The rows are all that is left below `before_group`.
  bool whole = false;
};

/// Writes output columns and acknowledges, in one step.
struct Completion {
  storage::TaskId task;
  std::string consumer;
  std::vector<storage::FinishedRow> rows;
};

/// Rows given back unfinished, or whose leases are to be extended.
struct Return {
  storage::TaskId task;
  std::string consumer;
  std::vector<storage::LeaseToken> rows;
  std::string reason;
};

/// Retires a whole group for all tasks.
struct GroupVerdict {
  GroupId group;
  storage::Verdict verdict;
};

/// All rows of a stream as a checkpoint keeps them, encoded by the stream.
struct StreamImage {
  Buffer bytes;
};

/// Counts of a stream, in rows unless named otherwise; admitted = trained + dropped + filtered +
/// failed + live.
struct StreamStatus {
  std::uint64_t admitted = 0;
  std::uint64_t trained = 0;
  std::uint64_t dropped = 0;
  std::uint64_t filtered = 0;
  std::uint64_t failed = 0;
  std::uint64_t live = 0;
  std::uint64_t bytes = 0;
  std::uint64_t redelivered = 0;
  std::uint64_t refused = 0;
  /// By task, since the stream began: time in which no row was leased for it.
  std::vector<double> idle_seconds;
  /// Whole groups that left without a trained row, since the stream was started: by a filter, or
  /// for any other reason, of which the last one is kept.
  std::uint64_t filtered_groups = 0;
  std::uint64_t lost_groups = 0;
  std::string last_loss;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, NewRow& x) {
  return f(x.row, x.columns);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, NewGroup& x) {
  return f(x.draw, x.rows);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, LeaseRequest& x) {
  return f(x.task, x.consumer, x.max_units, x.min_units, x.before_group, x.wait);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, LeaseReply& x) {
  return f(x.rows, x.lease_time, x.waiting_for, x.ended, x.whole);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, Completion& x) {
  return f(x.task, x.consumer, x.rows);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, Return& x) {
  return f(x.task, x.consumer, x.rows, x.reason);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, GroupVerdict& x) {
  return f(x.group, x.verdict);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, StreamImage& x) {
  return f(x.bytes);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, StreamStatus& x) {
  return f(x.admitted, x.trained, x.dropped, x.filtered, x.failed, x.live, x.bytes, x.redelivered,
           x.refused, x.idle_seconds, x.filtered_groups, x.lost_groups, x.last_loss);
}

}  // namespace tidemill::actors
