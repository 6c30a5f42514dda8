// SPDX-License-Identifier: Apache-2.0
// The stream actor. Every message is one operation of `storage::StreamTable`. After it, the actor
// reports slot changes to the keeper and tries again to reply to the pending requests. A pending
// request blocks no thread: it stays in `PendingLeases` or `PendingRequests` until its rows are
// ready or its deadline has passed.
#include <optional>
#include <utility>

#include <caf/all.hpp>

#include "actors/errors.hpp"
#include "actors/stream/pending_leases.hpp"
#include "actors/stream/sample_columns.hpp"
#include "actors/stream/spawn.hpp"
#include "actors/stream/stream_image.hpp"
#include "actors/work/alarm.hpp"
#include "actors/work/pending_requests.hpp"
#include "storage/stream/live_groups.hpp"

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

// What the pending leases of a task depend on. While it is the same, trying them again is useless.
struct LeaseRevision {
  std::uint64_t units = 0;   // of the index
  std::uint64_t groups = 0;  // of the live groups
  friend bool operator==(const LeaseRevision&, const LeaseRevision&) = default;
};

struct StreamState {
  static inline const char* name = "stream";
  StreamState() = default;  // not an aggregate: CAF would build it from `self`

  StreamDeps deps;
  std::unique_ptr<storage::StreamTable> stream;
  storage::LiveGroups groups;
  std::uint64_t next_draw = 0;
  std::vector<PendingLeases> pending_leases;  // by task
  std::vector<LeaseRevision> tried_at;  // by task: when all its pending leases were last tried
  std::uint64_t lease_attempts = 0;
  PendingRequests<NewGroup, Settlement> pending_puts;
  std::optional<std::uint64_t> puts_tried_at;  // the bytes that were reserved then
  IdleTimes idle;
  Alarm alarm;  // for leases that expire and requests that have waited
};

using Self = StreamActor::stateful_pointer<StreamState>;

void fail(Self self, const Status& status) {
  self->quit(to_caf_error(status));
}

// Returns when a wait ends: up to a part of it early, so that many waits end together and the
// stream wakes once for all of them.
TimePoint end_of_wait(TimePoint now, Duration wait) {
  constexpr int kParts = 64;
  const Duration step = wait / kParts;
  const TimePoint end = now + wait;
  return step > Duration::zero() ? end - end.time_since_epoch() % step : end;
}

// Returns the number of the actor that sent the current message, or 0 if no actor did. A consumer's
// name says whose leases end with it. The number tells it from another actor of the same name.
// Must be called before the handler makes a promise, which takes the sender over.
std::uint64_t sender_of(Self self) {
  const caf::strong_actor_ptr& sender = self->current_sender();
  return sender == nullptr ? 0 : sender->id();
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
    const storage::ReturnedDeliveries& returned = index.returned({task});
    status.returned.left += returned.left;
    status.returned.lost += returned.lost;
    status.returned.failed += returned.failed;
  }
  for (std::size_t reason = 0; reason < storage::kNumRefusals; ++reason) {
    status.refused += index.refused(static_cast<storage::Refusal>(reason));
  }
  status.idle_seconds = state.idle.seconds;
  status.filtered_groups = state.groups.num_filtered();
  status.lost_groups = state.groups.num_lost();
  status.last_lost_reason = state.groups.last_lost_reason();
  status.lease_attempts = state.lease_attempts;
  return status;
}

// -- requests that may have to wait ---------------------------------------------------------------

storage::UnitRequest unit_request(const LeaseRequest& request) {
  storage::UnitRequest units{{request.max_units, request.min_units}};
  if (request.before_group != kAnyGroup) {
    units.before_group = GroupId{request.before_group};
  }
  return units;
}

std::optional<Result<LeaseReply>> try_lease(Self self, const PendingLease& pending,
                                            bool last_chance) {
  auto& state = self->state;
  const LeaseRequest& request = pending.request;
  const TimePoint now = self->clock().now();
  ++state.lease_attempts;
  LeaseReply reply;
  const storage::UnitRequest units = unit_request(request);
  if (const auto size = state.groups.lease_size(units); size.has_value()) {
    if (size->max_units == 0 && units.before_group.has_value()) {
      reply.whole = true;
      return reply;
    }
    auto leased = state.stream->lease(
        {request.task, request.consumer, size->max_units, size->min_units, pending.instance}, now);
    if (!leased.ok()) {
      return leased.status();  // it would always be refused
    }
    if (!leased.value().empty()) {
      reply.rows = std::move(leased.value().shares.front().rows);
      reply.lease_time = leased.value().deadline - now;
      reply.whole = units.before_group.has_value();
      return reply;
    }
  }
  const storage::StreamIndex& index = state.stream->index();
  reply.ended = state.groups.has_ended(units, index.options().tasks[request.task.value].unit);
  if (!last_chance && !reply.ended) {
    return std::nullopt;
  }
  reply.waiting_for = state.groups.waiting_for(units).value_or(index.waiting_for(request.task));
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
  state.groups.admit(id, static_cast<std::uint32_t>(group.rows.size()));
  state.next_draw = std::max(state.next_draw, group.draw + 1);
  return settlement;
}

// -- after every operation ------------------------------------------------------------------------

// Returns whether any row has left.
bool report_effects(Self self) {
  auto& state = self->state;
  const storage::StreamEffects effects = state.stream->take_effects();
  for (const storage::RetiredRow& row : effects.retired) {
    state.groups.retire(row);
  }
  if (effects.slots != storage::SlotChanges{}) {
    self->send(state.deps.keeper, atom::record_v, effects.slots);
  }
  return !effects.retired.empty();
}

// Puts the pending groups that fit. Whether they do depends only on the bytes that are reserved.
void settle_puts(Self self) {
  auto& state = self->state;
  if (state.puts_tried_at == state.stream->index().bytes_reserved()) {
    return;
  }
  // A group that has to wait for room keeps all later ones waiting: they need as much.
  state.pending_puts.settle_in_order(self->clock().now(),
                                     [self](const NewGroup& group, bool last_chance) {
                                       return try_put(self, group, last_chance);
                                     });
  state.puts_tried_at = state.stream->index().bytes_reserved();
}

// A task that takes rows depends on groups only in that the last one ends it.
LeaseRevision revision_of(const StreamState& state, TaskId task) {
  const storage::StreamIndex& index = state.stream->index();
  const bool by_group = index.options().tasks[task.value].unit == storage::DeliveryUnit::kGroup;
  const std::uint64_t over = state.groups.is_over() ? 1 : 0;
  return {index.revision(task), by_group ? state.groups.revision() : over};
}

// Returns whether a pending lease of `task` may have a reply now.
bool may_settle(const StreamState& state, TaskId task, TimePoint now) {
  const auto due = state.pending_leases[task.value].next_deadline();
  return state.tried_at[task.value] != revision_of(state, task) || (due.has_value() && *due <= now);
}

// Replies to the pending leases of `task` where that is possible.
void settle_leases(Self self, TaskId task) {
  auto& state = self->state;
  state.pending_leases[task.value].settle(self->clock().now(),
                                          [self](const PendingLease& pending, bool last_chance) {
                                            return try_lease(self, pending, last_chance);
                                          });
  state.tried_at[task.value] = revision_of(state, task);
}

std::optional<TimePoint> next_deadline(const StreamState& state) {
  std::optional<TimePoint> due = state.stream->index().next_deadline();
  for (const auto& pending : state.pending_leases) {
    due = earlier(due, pending.next_deadline());
  }
  return due;
}

// Ends the leases that are due. Returns false if the stream has failed.
bool expire(Self self) {
  const Status expired = self->state.stream->expire(self->clock().now());
  if (!expired.ok()) {
    fail(self, expired);
  }
  return expired.ok();
}

void settle(Self self) {
  auto& state = self->state;
  const TimePoint now = self->clock().now();
  if (!expire(self)) {
    return;
  }
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
  state.tried_at.resize(state.pending_leases.size());
  // The cells leave the stream when their rows do, so nothing else may keep them.
  if (const auto restored = std::exchange(deps.restored, nullptr)) {
    TIDEMILL_RETURN_IF_ERROR(state.stream->restore(restored->snapshot));
    state.groups.restore(restored->snapshot.index.rows, {restored->origin.next_group});
    state.next_draw = restored->origin.next_draw;
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
        self->state.puts_tried_at.reset();
        settle(self);
        return promise;
      },
      [self](atom::finish) {
        self->state.groups.end_admission();
        settle(self);
      },
      [self](atom::lease, LeaseRequest& request) {
        const std::uint64_t instance = sender_of(self);
        auto promise = self->make_response_promise<LeaseReply>();
        auto& pending = self->state.pending_leases;
        if (request.task.value >= pending.size()) {
          promise.deliver(to_caf_error(
              invalid_argument("unknown_task: number " + std::to_string(request.task.value))));
          return promise;
        }
        const TaskId task = request.task;
        const TimePoint now = self->clock().now();
        const TimePoint deadline = end_of_wait(now, request.wait);
        pending[task.value].add({std::move(request), instance}, promise, deadline);
        if (!expire(self)) {
          return promise;
        }
        if (may_settle(self->state, task, now)) {
          settle_leases(self, task);
        } else {  // only the new request may have a reply: at the least, it may have to be refused
          pending[task.value].settle_newest(now,
                                            [self](const PendingLease& newest, bool last_chance) {
                                              return try_lease(self, newest, last_chance);
                                            });
        }
        settle(self);
        return promise;
      },
      [self](atom::ack, const AckRequest& ack) {
        return settle_and_reply(
            self, self->state.stream->complete({ack.task, ack.consumer, sender_of(self)}, ack.rows,
                                               self->clock().now()));
      },
      [self](atom::nack, const LeaseUpdate& rows) {
        return settle_and_reply(
            self, self->state.stream->nack({rows.task, rows.consumer, sender_of(self)}, rows.rows,
                                           {rows.release, rows.reason}, self->clock().now()));
      },
      [self](atom::renew, const LeaseUpdate& rows) {
        return settle_and_reply(
            self, self->state.stream->renew({rows.task, rows.consumer, sender_of(self)}, rows.rows,
                                            self->clock().now()));
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
        for (PendingLeases& pending : self->state.pending_leases) {
          pending.forget(consumer);
        }
        settle(self);
      },
      [self](atom::capture) {
        auto& state = self->state;
        return capture_stream_table(*state.stream, state.groups.next_group().value,
                                    state.next_draw);
      },
      [self](atom::status) {
        self->state.idle.update(self->state.stream->index(), self->clock().now());
        return status_of(self->state);
      },
      [self](atom::wake) {
        auto& state = self->state;
        const TimePoint now = self->clock().now();
        static_cast<void>(state.alarm.take(now));
        settle(self);
      },
  };
}

}  // namespace

StreamActor spawn_stream(caf::actor_system& system, StreamDeps deps) {
  return system.spawn(stream, std::move(deps));
}

}  // namespace tidemill::actors
