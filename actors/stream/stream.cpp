// SPDX-License-Identifier: Apache-2.0
// The stream actor. Every message is one operation of `storage::Stream`; then the keeper is told of
// places that changed hands, and requests that wait are looked at again. Requests that must wait
// hold no thread: they stand in a waiting room until rows are there or their time is up.
#include <map>
#include <optional>
#include <utility>

#include <caf/all.hpp>

#include "actors/errors.hpp"
#include "actors/stream/sample_columns.hpp"
#include "actors/stream/sample_stream.hpp"
#include "actors/stream/spawn.hpp"
#include "actors/work/waiting_room.hpp"

namespace tidemill::actors {
namespace {

using storage::Settlement;

// How long each task had nothing in work.
struct IdleTimes {
  std::vector<double> seconds;
  std::vector<bool> idle;  // since `looked`
  TimePoint looked;

  void look(const storage::StreamIndex& index, TimePoint now) {
    const std::size_t tasks = index.options().tasks.size();
    seconds.resize(tasks, 0.0);
    idle.resize(tasks, false);
    for (std::uint32_t task = 0; task < tasks; ++task) {
      if (idle[task]) {
        seconds[task] += std::chrono::duration<double>(now - looked).count();
      }
      idle[task] = index.num_leased({task}) == 0;
    }
    looked = now;
  }
};

// What the actor knows of a group that has not left.
struct LiveGroup {
  std::uint32_t rows = 0;  // left of it
  bool trained = false;    // some of it were
  bool filtered = false;
};

struct StreamState {
  static inline const char* name = "stream";
  StreamState() = default;  // not an aggregate: CAF would build it from `self`

  StreamDeps deps;
  std::unique_ptr<storage::Stream> stream;
  std::map<GroupId, LiveGroup> live_groups;
  std::uint64_t filtered_groups = 0;
  std::uint64_t lost_groups = 0;
  std::string last_loss;
  std::uint64_t next_group = 0;
  std::uint64_t next_draw = 0;
  bool producer_done = false;
  WaitingRoom<LeaseRequest, LeaseReply> consumers;
  WaitingRoom<NewGroup, Settlement> producers;
  IdleTimes idle;
  std::optional<TimePoint> alarm;  // when the next `wake` for expiring leases is due
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
  status.last_loss = state.last_loss;
  return status;
}

// -- what may wait --------------------------------------------------------------------------------

// The number of units to lease, or nothing while they are not there.
struct LeaseSize {
  std::uint32_t at_most = 0;
  std::uint32_t at_least = 0;
};

// Below `before_group` everything that is left is taken at once, so it must all have been put.
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

// Whether no row will ever be ready for the task again.
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
    if (size->at_most == 0 && request.before_group != kAnyGroup) {
      reply.whole = true;
      return reply;
    }
    auto leased =
        state.stream->lease({request.task, request.consumer, size->at_most, size->at_least}, now);
    if (!leased.ok()) {
      return leased.status();  // it would be refused for ever
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

// A group is put whole or not at all.
Status check_group(const StreamState& state, const NewGroup& group) {
  const std::uint32_t size = state.deps.options.group_size;
  if (group.rows.size() != size) {
    return invalid_argument("a group of " + std::to_string(group.rows.size()) + " rows, not " +
                            std::to_string(size));
  }
  for (const NewRow& row : group.rows) {
    if (row.row.group != group.rows.front().row.group) {
      return invalid_argument("rows of the groups " +
                              std::to_string(group.rows.front().row.group.value) + " and " +
                              std::to_string(row.row.group.value) + " put as one");
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
      return std::nullopt;  // room comes back when rows leave
    }
    if (!put.ok()) {
      // What has gone in already would wait for the rest for ever.
      if (!settlement.done.empty()) {
        static_cast<void>(
            state.stream->judge_group(id, {storage::VerdictKind::kFail, put.message()}));
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

// Takes a row that has left off its group, and counts a group that leaves without a trained row.
void count_retired(StreamState& state, const storage::RetiredRow& row) {
  const auto it = state.live_groups.find(row.group);
  if (it == state.live_groups.end()) {
    return;
  }
  LiveGroup& group = it->second;
  group.trained = group.trained || row.outcome == storage::RowOutcome::kTrained;
  group.filtered = group.filtered || row.outcome == storage::RowOutcome::kFiltered;
  if (row.outcome == storage::RowOutcome::kFailed) {
    state.last_loss = row.reason;
  }
  if (--group.rows > 0) {
    return;
  }
  if (!group.trained) {
    ++(group.filtered ? state.filtered_groups : state.lost_groups);
    if (state.last_loss.empty() && !group.filtered) {
      state.last_loss = row.reason;
    }
  }
  state.live_groups.erase(it);
}

void tell_effects(Self self) {
  auto& state = self->state;
  const storage::StreamEffects effects = state.stream->take_effects();
  for (const storage::RetiredRow& row : effects.retired) {
    count_retired(state, row);
  }
  if (effects.places != storage::PlaceChanges{}) {
    self->send(state.deps.keeper, atom::record_v, effects.places);
  }
}

void set_alarm(Self self) {
  auto& state = self->state;
  const auto due = state.stream->index().next_deadline();
  if (!due.has_value() || (state.alarm.has_value() && *state.alarm <= *due)) {
    return;
  }
  state.alarm = due;
  self->delayed_send(self, *due - TimePoint{self->clock().now()}, atom::wake_v);
}

void settle(Self self) {
  auto& state = self->state;
  const TimePoint now = self->clock().now();
  tell_effects(self);
  state.producers.settle(now, [self](const NewGroup& group, bool last_chance) {
    return try_put(self, group, last_chance);
  });
  state.consumers.settle(now, [self](const LeaseRequest& request, bool last_chance) {
    return try_lease(self, request, last_chance);
  });
  tell_effects(self);  // a lease may have dropped stale rows
  set_alarm(self);
  state.idle.look(state.stream->index(), now);
  if (state.deps.inspector) {
    state.deps.inspector(state.stream->check_invariants(), status_of(state));
  }
}

caf::result<Settlement> answer(Self self, Result<Settlement> settlement) {
  settle(self);
  if (!settlement.ok()) {
    return to_caf_error(settlement.status());
  }
  return std::move(settlement).value();
}

Status open(Self self, StreamDeps deps) {
  auto& state = self->state;
  TIDEMILL_ASSIGN_OR_RETURN(state.stream,
                            storage::Stream::create(sample_stream_options(deps.options)));
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
        self->state.producers.enter(std::move(group), promise, TimePoint::max());
        settle(self);
        return promise;
      },
      [self](atom::finish) {
        self->state.producer_done = true;
        settle(self);
      },
      [self](atom::lease, LeaseRequest& request) {
        auto promise = self->make_response_promise<LeaseReply>();
        const Duration wait = request.wait;
        self->state.consumers.enter(std::move(request), promise,
                                    TimePoint{self->clock().now()} + wait);
        settle(self);
        self->delayed_send(self, wait, atom::wake_v);
        return promise;
      },
      [self](atom::ack, const Completion& completion) {
        return answer(self, self->state.stream->complete(completion.task, completion.rows,
                                                         self->clock().now()));
      },
      [self](atom::nack, const Return& rows) {
        return answer(
            self, self->state.stream->nack(rows.task, rows.rows, rows.reason, self->clock().now()));
      },
      [self](atom::renew, const Return& rows) {
        return answer(self, self->state.stream->renew(rows.task, rows.rows, self->clock().now()));
      },
      [self](atom::retire, const GroupVerdict& verdict) {
        const Status judged = self->state.stream->judge_group(verdict.group, verdict.verdict);
        return answer(self, judged.ok() || judged.code() == Errc::kNotFound
                                ? Result<Settlement>(Settlement{})
                                : Result<Settlement>(judged));
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
        self->state.consumers.forget(
            [&](const LeaseRequest& request) { return request.consumer == consumer; });
        settle(self);
      },
      [self](atom::capture) {
        auto& state = self->state;
        return encode_stream_image(*state.stream, state.next_group, state.next_draw);
      },
      [self](atom::status) {
        self->state.idle.look(self->state.stream->index(), self->clock().now());
        return status_of(self->state);
      },
      [self](atom::wake) {
        auto& state = self->state;
        const TimePoint now = self->clock().now();
        if (state.alarm.has_value() && *state.alarm <= now) {
          state.alarm.reset();
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
