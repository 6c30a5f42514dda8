// SPDX-License-Identifier: Apache-2.0
// The stream actor. Every message is one operation of `storage::StreamTable`. After it, the actor
// reports slot changes to the keeper and tries again to reply to the pending requests. A pending
// request blocks no thread: it stays in `PendingRequests` until its rows are ready or its deadline
// has passed.
#include <map>
#include <optional>
#include <utility>

#include <caf/all.hpp>

#include "actors/errors.hpp"
#include "actors/stream/sample_columns.hpp"
#include "actors/stream/spawn.hpp"
#include "actors/stream/stream_image.hpp"
#include "actors/work/alarm.hpp"
#include "actors/work/pending_requests.hpp"

namespace tidemill::actors {
namespace {

using storage::Settlement;
using storage::TaskId;

// Measures for how long no row was leased for each task.
struct IdleTimes {
  std::vector<double> seconds;
  std::vector<bool> idle;  // since `updated_at`
  TimePoint updated_at;

  void update(const storage::StreamIndex& index, TimePoint now) {
    const std::size_t tasks = index.options().tasks.size();
    seconds.resize(tasks, 0.0);
    idle.resize(tasks, false);
    for (std::uint32_t task = 0; task < tasks; ++task) {
      if (idle[task]) {
        seconds[task] += std::chrono::duration<double>(now - updated_at).count();
      }
      idle[task] = index.num_leased({task}) == 0;
    }
    updated_at = now;
  }
};

// A group that has not left.
struct LiveGroup {
  std::uint32_t rows = 0;  // that have not left
  bool trained = false;    // at least one row was trained
  bool filtered = false;
};

struct StreamState {
  static inline const char* name = "stream";
  StreamState() = default;  // not an aggregate: CAF would build it from `self`

  StreamDeps deps;
  std::unique_ptr<storage::StreamTable> stream;
  std::map<GroupId, LiveGroup> live_groups;
  std::uint64_t filtered_groups = 0;
  std::uint64_t lost_groups = 0;
  std::string last_lost_reason;
  std::uint64_t next_group = 0;
  std::uint64_t next_draw = 0;
  bool producer_done = false;
  std::vector<PendingRequests<LeaseRequest, LeaseReply>> pending_leases;  // by task
  PendingRequests<NewGroup, Settlement> pending_puts;
  IdleTimes idle;
  Alarm alarm;  // for leases that expire and requests that have waited
};

using Self = StreamActor::stateful_pointer<StreamState>;

void fail(Self self, const Status& status) {
  self->quit(to_caf_error(status));
}

StreamStatus status_of(const StreamState& state) {
  const storage::StreamIndex& index = state.stream->index();
  const storage::StreamTotals& totals = index.totals();
  StreamStatus status;
  status.admitted = totals.admitted;
  status.trained = totals.trained;
  status.dropped = totals.dropped;
  status.filtered = totals.filtered;
  status.failed = totals.failed;
  status.live = index.num_live();
  status.bytes = index.bytes_used();
  for (std::uint32_t task = 0; task < index.options().tasks.size(); ++task) {
    status.redelivered += index.task_totals({task}).redelivered;
  }
  for (std::size_t reason = 0; reason < storage::kNumRefusals; ++reason) {
    status.refused += index.refused(static_cast<storage::Refusal>(reason));
  }
  status.idle_seconds = state.idle.seconds;
  status.filtered_groups = state.filtered_groups;
  status.lost_groups = state.lost_groups;
  status.last_lost_reason = state.last_lost_reason;
  return status;
}

// -- requests that may have to wait ---------------------------------------------------------------

// How many units to lease.
struct LeaseSize {
  std::uint32_t max_units = 0;
  std::uint32_t min_units = 0;
};

// Returns how many units to lease. A request with `before_group` leases all remaining groups below
// it at once, so nothing is returned until all of them have been put.
std::optional<LeaseSize> lease_size(const StreamState& state, const LeaseRequest& request) {
  if (request.before_group == kAnyGroup) {
    return LeaseSize{request.max_units, request.min_units};
  }
  if (state.next_group < request.before_group) {
    return std::nullopt;
  }
  const auto end = state.live_groups.lower_bound(GroupId{request.before_group});
  const auto left = static_cast<std::uint32_t>(std::distance(state.live_groups.begin(), end));
  return LeaseSize{left, left};
}

// Returns whether the request can never be fulfilled.
bool has_ended(const StreamState& state, const LeaseRequest& request) {
  if (!state.producer_done) {
    return false;
  }
  if (request.task == task_id(SampleTask::kTrain)) {
    const auto needed = request.before_group == kAnyGroup
                            ? state.live_groups.size() < request.min_units
                            : state.next_group < request.before_group;
    return needed;
  }
  return state.live_groups.empty();
}

std::string reason_to_wait(const StreamState& state, const LeaseRequest& request) {
  if (request.before_group != kAnyGroup && state.next_group < request.before_group) {
    return "group " + std::to_string(state.next_group) + " to be admitted";
  }
  return state.stream->index().waiting_for(request.task);
}

std::optional<Result<LeaseReply>> try_lease(Self self, const LeaseRequest& request,
                                            bool last_chance) {
  auto& state = self->state;
  const TimePoint now = self->clock().now();
  LeaseReply reply;
  if (const auto size = lease_size(state, request); size.has_value()) {
    if (size->max_units == 0 && request.before_group != kAnyGroup) {
      reply.whole = true;
      return reply;
    }
    auto leased = state.stream->lease(
        {request.task, request.consumer, size->max_units, size->min_units}, now);
    if (!leased.ok()) {
      return leased.status();  // it would always be refused
    }
    if (!leased.value().empty()) {
      reply.rows = std::move(leased.value().shares.front().rows);
      reply.lease_time = leased.value().deadline - now;
      reply.whole = request.before_group != kAnyGroup;
      return reply;
    }
  }
  reply.ended = has_ended(state, request);
  if (!last_chance && !reply.ended) {
    return std::nullopt;
  }
  reply.waiting_for = reason_to_wait(state, request);
  return reply;
}

// Checks that the rows are one whole group.
Status check_group(const StreamState& state, const NewGroup& group) {
  const std::uint32_t size = state.deps.options.group_size;
  if (group.rows.size() != size) {
    return invalid_argument("group has " + std::to_string(group.rows.size()) + " rows, expected " +
                            std::to_string(size));
  }
  for (const NewRow& row : group.rows) {
    if (row.row.group != group.rows.front().row.group) {
      return invalid_argument("one put has rows of groups " +
                              std::to_string(group.rows.front().row.group.value) + " and " +
                              std::to_string(row.row.group.value));
    }
  }
  return {};
}

std::optional<Result<Settlement>> try_put(Self self, const NewGroup& group, bool last_chance) {
  auto& state = self->state;
  const GroupId id = group.rows.front().row.group;
  Settlement settlement;
  for (const NewRow& row : group.rows) {
    const Status put = state.stream->put(row.row, row.columns, {});
    if (put.code() == Errc::kResourceExhausted && settlement.done.empty() && !last_chance) {
      return std::nullopt;  // rows that leave make room
    }
    if (!put.ok()) {
      // The rows that are already in the stream would wait forever for the rest of their group.
      if (!settlement.done.empty()) {
        static_cast<void>(
            state.stream->apply_group_verdict(id, {storage::VerdictKind::kFail, put.message()}));
      }
      return put.code() == Errc::kNotFound ? invalid_argument(put.message()) : put;
    }
    settlement.done.push_back(row.row.id);
  }
  state.live_groups[id].rows = static_cast<std::uint32_t>(group.rows.size());
  state.next_group = std::max(state.next_group, id.value + 1);
  state.next_draw = std::max(state.next_draw, group.draw + 1);
  return settlement;
}

// -- after every operation ------------------------------------------------------------------------

// Removes a row that has left from its group. Counts the group if it has left without a trained
// row.
void count_retired(StreamState& state, const storage::RetiredRow& row) {
  const auto it = state.live_groups.find(row.group);
  if (it == state.live_groups.end()) {
    return;
  }
  LiveGroup& group = it->second;
  group.trained = group.trained || row.outcome == storage::RowOutcome::kTrained;
  group.filtered = group.filtered || row.outcome == storage::RowOutcome::kFiltered;
  if (row.outcome == storage::RowOutcome::kFailed) {
    state.last_lost_reason = row.reason;
  }
  if (--group.rows > 0) {
    return;
  }
  if (!group.trained) {
    ++(group.filtered ? state.filtered_groups : state.lost_groups);
    if (state.last_lost_reason.empty() && !group.filtered) {
      state.last_lost_reason = row.reason;
    }
  }
  state.live_groups.erase(it);
}

// Returns whether any row has left.
bool report_effects(Self self) {
  auto& state = self->state;
  const storage::StreamEffects effects = state.stream->take_effects();
  for (const storage::RetiredRow& row : effects.retired) {
    count_retired(state, row);
  }
  if (effects.slots != storage::SlotChanges{}) {
    self->send(state.deps.keeper, atom::record_v, effects.slots);
  }
  return !effects.retired.empty();
}

void settle_puts(Self self) {
  self->state.pending_puts.settle(self->clock().now(),
                                  [self](const NewGroup& group, bool last_chance) {
                                    return try_put(self, group, last_chance);
                                  });
}

// Replies to the pending leases of `task` where that is possible.
void settle_leases(Self self, TaskId task) {
  self->state.pending_leases[task.value].settle(
      self->clock().now(), [self](const LeaseRequest& request, bool last_chance) {
        return try_lease(self, request, last_chance);
      });
}

// Returns whether a pending lease of `task` may have a reply now. Without a ready row none has, but
// for its deadline, the end of the data, or a batch all groups of which have left.
bool may_settle(const StreamState& state, TaskId task, TimePoint now) {
  const auto due = state.pending_leases[task.value].next_deadline();
  return state.stream->index().num_ready(task) > 0 || state.producer_done ||
         task == task_id(SampleTask::kTrain) || (due.has_value() && *due <= now);
}

std::optional<TimePoint> next_deadline(const StreamState& state) {
  std::optional<TimePoint> due = state.stream->index().next_deadline();
  for (const auto& pending : state.pending_leases) {
    due = earlier(due, pending.next_deadline());
  }
  return due;
}

void settle(Self self) {
  auto& state = self->state;
  const TimePoint now = self->clock().now();
  report_effects(self);
  settle_puts(self);
  for (std::uint32_t task = 0; task < state.pending_leases.size(); ++task) {
    if (may_settle(state, {task}, now)) {
      settle_leases(self, {task});
    }
  }
  if (report_effects(self)) {  // a lease dropped stale rows, whose bytes may let a group in
    settle_puts(self);
    report_effects(self);
  }
  state.alarm.set(self, next_deadline(state));
  state.idle.update(state.stream->index(), now);
  if (state.deps.inspector) {
    state.deps.inspector(state.stream->check_invariants(), status_of(state));
  }
}

caf::result<Settlement> settle_and_reply(Self self, Result<Settlement> settlement) {
  settle(self);
  if (!settlement.ok()) {
    return to_caf_error(settlement.status());
  }
  return std::move(settlement).value();
}

Status open(Self self, StreamDeps deps) {
  auto& state = self->state;
  TIDEMILL_ASSIGN_OR_RETURN(state.stream,
                            storage::StreamTable::create(sample_stream_options(deps.options)));
  state.pending_leases.resize(state.stream->options().tasks.size());
  if (deps.image.bytes.size_bytes() != 0) {
    TIDEMILL_ASSIGN_OR_RETURN(const DecodedImage decoded, decode_stream_image(deps.image));
    TIDEMILL_RETURN_IF_ERROR(state.stream->restore(decoded.snapshot));
    state.next_group = decoded.origin.next_group;
    state.next_draw = decoded.origin.next_draw;
    for (const storage::RowSnapshot& row : decoded.snapshot.index.rows) {
      ++state.live_groups[row.row.group].rows;
    }
  }
  state.deps = std::move(deps);
  return {};
}

StreamActor::behavior_type stream(Self self, StreamDeps deps) {
  if (const Status opened = open(self, std::move(deps)); !opened.ok()) {
    fail(self, opened);
  }
  return {
      [self](atom::put, NewGroup& group) -> caf::result<Settlement> {
        if (const Status checked = check_group(self->state, group); !checked.ok()) {
          return to_caf_error(checked);
        }
        auto promise = self->make_response_promise<Settlement>();
        self->state.pending_puts.add(std::move(group), promise, TimePoint::max());
        settle(self);
        return promise;
      },
      [self](atom::finish) {
        self->state.producer_done = true;
        settle(self);
      },
      [self](atom::lease, LeaseRequest& request) {
        auto promise = self->make_response_promise<LeaseReply>();
        auto& pending = self->state.pending_leases;
        if (request.task.value >= pending.size()) {
          promise.deliver(to_caf_error(
              invalid_argument("unknown_task: number " + std::to_string(request.task.value))));
          return promise;
        }
        const TaskId task = request.task;
        const TimePoint deadline = TimePoint{self->clock().now()} + request.wait;
        pending[task.value].add(std::move(request), promise, deadline);
        settle_leases(self, task);  // refuses a request that can never have a reply
        settle(self);
        return promise;
      },
      [self](atom::ack, const AckRequest& ack) {
        return settle_and_reply(
            self, self->state.stream->complete(ack.task, ack.rows, self->clock().now()));
      },
      [self](atom::nack, const LeaseUpdate& rows) {
        return settle_and_reply(self, self->state.stream->nack(rows.task, rows.rows, rows.release,
                                                               rows.reason, self->clock().now()));
      },
      [self](atom::renew, const LeaseUpdate& rows) {
        return settle_and_reply(
            self, self->state.stream->renew(rows.task, rows.rows, self->clock().now()));
      },
      [self](atom::retire, const GroupVerdict& verdict) {
        const Status applied =
            self->state.stream->apply_group_verdict(verdict.group, verdict.verdict);
        return settle_and_reply(self, applied.ok() || applied.code() == Errc::kNotFound
                                          ? Result<Settlement>(Settlement{})
                                          : Result<Settlement>(applied));
      },
      [self](atom::publish, std::uint64_t step) {
        if (const Status raised = self->state.stream->set_version(step); !raised.ok()) {
          fail(self, raised);
          return;
        }
        settle(self);
      },
      [self](atom::release, const std::string& consumer) {
        self->state.stream->drop_consumer(consumer);
        for (auto& pending : self->state.pending_leases) {
          pending.forget([&](const LeaseRequest& request) { return request.consumer == consumer; });
        }
        settle(self);
      },
      [self](atom::capture) {
        auto& state = self->state;
        return capture_stream_table(*state.stream, state.next_group, state.next_draw);
      },
      [self](atom::status) {
        self->state.idle.update(self->state.stream->index(), self->clock().now());
        return status_of(self->state);
      },
      [self](atom::wake) {
        auto& state = self->state;
        const TimePoint now = self->clock().now();
        if (state.alarm.take(now)) {
          if (const Status expired = state.stream->expire(now); !expired.ok()) {
            fail(self, expired);
            return;
          }
        }
        settle(self);
      },
  };
}

}  // namespace

StreamActor spawn_stream(caf::actor_system& system, StreamDeps deps) {
  return system.spawn(stream, std::move(deps));
}

}  // namespace tidemill::actors
