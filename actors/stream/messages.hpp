// SPDX-License-Identifier: Apache-2.0
// The messages of a stream: rows that are put, leased, written and given back.
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
#include "storage/stream/stream_snapshot.hpp"

namespace tidemill::actors {

/// The value of `LeaseRequest::before_group` that sets no bound.
inline constexpr std::uint64_t kAnyGroup = std::numeric_limits<std::uint64_t>::max();

/// A row that a producer puts.
struct NewRow {
  storage::SampleRow row;
  std::vector<storage::ColumnValue> columns;
};

/// A group that a producer puts: all its rows, ordered by their index. A group is never split.
struct NewGroup {
  std::uint64_t draw = 0;  // of its prompt, counted from the start of the run
  std::vector<NewRow> rows;
};

/// Asks to lease rows for a task.
struct LeaseRequest {
  storage::TaskId task;
  std::string consumer;
  /// How many units to lease: rows, or groups for a task that takes groups. If fewer than
  /// `min_units` are ready, none are leased.
  std::uint32_t max_units = 1;
  std::uint32_t min_units = 1;
  /// Leases only groups below this one. A task that takes groups then gets all of them that have
  /// not left, once all of those are ready, even if none remain.
  std::uint64_t before_group = kAnyGroup;
  /// How long the reply may be delayed while too few units are ready.
  Duration wait{0};
};

/// The leased rows, or none and the reason. The leases last for `lease_time` from now.
struct LeaseReply {
  std::vector<storage::LeasedRow> rows;
  Duration lease_time{0};
  std::string waiting_for;  // what is missing, if there are no rows
  /// True if no request like this one can be fulfilled any more.
  bool ended = false;
  /// True if `rows` are all the remaining rows of the groups below `before_group`.
  bool whole = false;
};

/// Writes output columns and acknowledges the rows, in one step.
struct AckRequest {
  storage::TaskId task;
  std::string consumer;
  std::vector<storage::FinishedRow> rows;
};

/// Leases that a consumer gives up or extends.
struct LeaseUpdate {
  storage::TaskId task;
  std::string consumer;
  std::vector<storage::LeaseToken> rows = {};
  storage::Release release = storage::Release::kLost;  // of leases that are given up
  std::string reason = {};                             // for giving them up
};

/// Retires a whole group for all tasks.
struct GroupVerdict {
  GroupId group;
  storage::Verdict verdict;
};

/// A stream at one time. It shares the bytes of the cells with the stream, so a capture copies none
/// of them.
struct StreamCapture {
  std::uint64_t next_group = 0;
  std::uint64_t next_draw = 0;
  std::int64_t finished_rows = 0;    // live, response finished
  std::int64_t unfinished_rows = 0;  // live, response not finished
  storage::StreamSnapshot snapshot;
};

/// A captured stream, encoded in the form in which a checkpoint stores it.
struct StreamImage {
  Buffer bytes;
};

/// Counts of a stream, in rows unless stated otherwise. `admitted` = `trained` + `dropped` +
/// `filtered` + `failed` + `live`.
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
  /// By task: for how long no row was leased for it, since the stream was started.
  std::vector<double> idle_seconds;
  /// Groups that have left without a trained row since the stream was started: by a filter, or for
  /// any other reason (`lost_groups`). `last_lost_reason` is the reason of the last row
  /// that failed; until a row fails, it is that of the first lost group.
  std::uint64_t filtered_groups = 0;
  std::uint64_t lost_groups = 0;
  std::string last_lost_reason;
  /// How often the stream has tried to fulfill a lease request, since it was started.
  std::uint64_t lease_attempts = 0;
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
typename Inspector::result_type inspect(Inspector& f, AckRequest& x) {
  return f(x.task, x.consumer, x.rows);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, LeaseUpdate& x) {
  return f(x.task, x.consumer, x.rows, x.release, x.reason);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, GroupVerdict& x) {
  return f(x.group, x.verdict);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, StreamCapture& x) {
  return f(x.next_group, x.next_draw, x.finished_rows, x.unfinished_rows, x.snapshot);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, StreamStatus& x) {
  return f(x.admitted, x.trained, x.dropped, x.filtered, x.failed, x.live, x.bytes, x.redelivered,
           x.refused, x.idle_seconds, x.filtered_groups, x.lost_groups, x.last_lost_reason,
           x.lease_attempts);
}

}  // namespace tidemill::actors
