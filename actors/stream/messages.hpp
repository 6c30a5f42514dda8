// SPDX-License-Identifier: Apache-2.0
// The messages of a stream: rows that are put, leased, finished and given back.
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

/// The value of `LeaseRequest::before_group` for a request without a bound.
inline constexpr std::uint64_t kAnyGroup = std::numeric_limits<std::uint64_t>::max();

/// How long workers let the stream delay its reply. The stream replies as soon as there are rows,
/// so the wait only says how often an idle worker asks, and how long a draining one may take to
/// end.
inline constexpr Duration kLeaseWait = std::chrono::seconds(4);

/// One row of a new group.
struct NewRow {
  storage::SampleRow row;
  std::vector<storage::ColumnValue> columns;
};

/// A new group with all of its rows, in the order of their index. Producers put whole groups only.
struct NewGroup {
  std::uint64_t draw = 0;  // the number of the prompt's draw in this run, from 0
  std::vector<NewRow> rows;
};

/// A request to lease rows for a task.
struct LeaseRequest {
  storage::TaskId task;
  /// The name under which `atom::release` ends the leases. They belong to the sender alone.
  std::string consumer;
  /// How many units to lease. A unit is a group if the task takes whole groups, else a row. While
  /// fewer than `min_units` are ready, the stream leases none.
  std::uint32_t max_units = 1;
  std::uint32_t min_units = 1;
  /// Leases only groups with a smaller id. If the task takes whole groups, the stream waits until
  /// all such groups that it still holds are ready, then leases them together. There may be none
  /// left.
  std::uint64_t before_group = kAnyGroup;
  /// How long the stream may delay its reply while too few units are ready. It delays it for at
  /// least 63/64 of that.
  Duration wait{0};
  /// Whether the consumer reads cells that are lent to its process. Set by the proxy of a stream.
  bool in_place = false;
};

/// The leased rows. If there are none, `waiting_for` gives the reason, unless `whole` is true: then
/// no such group is left. The leases expire `lease_time` after the reply.
struct LeaseReply {
  std::vector<storage::LeasedRow> rows;
  Duration lease_time{0};
  std::string waiting_for;  // what the stream lacks, if there are no rows
  /// True if the stream will never have rows for such a request again.
  bool ended = false;
  /// True if `rows` are all the remaining rows of the groups below `before_group`.
  bool whole = false;
};

/// Writes output columns and acknowledges the rows, in one step. The sender must be the actor that
/// leased the rows under the name `consumer`.
struct AckRequest {
  storage::TaskId task;
  std::string consumer;
  std::vector<storage::HeldRow> rows;
};

/// The leases that a consumer gives back or extends, and the progress of rows that it extends or
/// leaves. The sender must be the actor that leased the rows under the name `consumer`.
struct LeaseUpdate {
  storage::TaskId task;
  std::string consumer;
  std::vector<storage::HeldRow> rows = {};
  storage::Release release = storage::Release::kLost;  // how rows are given back
  std::string reason = {};                             // why they are given back
};

/// Retires a whole group for all tasks.
struct GroupVerdict {
  GroupId group;
  storage::Verdict verdict;
};

/// The contents of a stream at one moment. The capture and the stream share the cells, so no cell
/// is copied.
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
  std::uint64_t redelivered = 0;  // the deliveries that were returned, for any reason
  std::uint64_t refused = 0;
  /// For each task, how many seconds it has had no leased row since the stream was started.
  std::vector<double> idle_seconds;
  /// Groups that have left untrained since the stream was started. `filtered_groups` were removed
  /// by a filter; `lost_groups` are all others. `last_lost_reason` says why the last failed row
  /// failed. Before any row has failed, it says why the first lost group was lost.
  std::uint64_t filtered_groups = 0;
  std::uint64_t lost_groups = 0;
  std::string last_lost_reason;
  /// How often the stream has tried to fulfill a lease request since it was started.
  std::uint64_t lease_attempts = 0;
  /// The deliveries to all tasks that were returned since the stream was started.
  storage::ReturnedDeliveries returned;
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
  return f(x.task, x.consumer, x.max_units, x.min_units, x.before_group, x.wait, x.in_place);
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
           x.lease_attempts, x.returned);
}

}  // namespace tidemill::actors
