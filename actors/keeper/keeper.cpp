// SPDX-License-Identifier: Apache-2.0
// The version keeper: admission by the capacity rule, and which weights are served when.
#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include <caf/all.hpp>

#include "actors/errors.hpp"
#include "actors/keeper/spawn.hpp"
#include "actors/work/waiting_room.hpp"
#include "storage/versions/admission.hpp"

namespace tidemill::actors {
namespace {

using engines::Snapshot;
using storage::AdmissionLedger;

constexpr Duration kLoadDeadline = std::chrono::minutes(5);

struct KeeperState {
  static inline const char* name = "keeper";
  KeeperState() = default;  // not an aggregate: CAF would build it from `self`

  DeviceActor device;
  KeeperOptions options;
  std::optional<AdmissionLedger> ledger;
  std::uint64_t next_group = 0;
  std::uint64_t serving_step = 0;
  std::deque<Snapshot> unloaded;  // published, in order; at most one more than may be stale
  bool loading = false;
  WaitingRoom<AdmissionRequest, Admission> waiting;
  // Who waits for a step to be served; one trainer, so at most one.
  std::vector<std::pair<std::uint64_t, caf::typed_response_promise<PolicyVersion>>> serving_waits;
  std::int64_t total_rows = 0;  // that the run will train at most
};

using Self = KeeperActor::stateful_pointer<KeeperState>;

void fail(Self self, const Status& status) {
  self->quit(to_caf_error(status));
}

std::optional<Result<Admission>> try_admit(Self self, const AdmissionRequest& request,
                                           bool last_chance) {
  auto& state = self->state;
  const storage::AdmissionState& places = state.ledger->state();
  // No more rows than the run will train, whatever the capacity: the rest would be thrown away.
  const std::int64_t wanted = state.total_rows - places.accepted - places.running;
  const std::int64_t rows = std::min(state.ledger->capacity(), wanted);
  const std::int64_t groups = std::min<std::int64_t>(
      rows / static_cast<std::int64_t>(state.options.group_size), request.max_groups);
  if (groups <= 0) {
    if (!last_chance) {
      return std::nullopt;
    }
    Admission none;
    none.waiting_for = wanted <= 0 ? "the run's last batches to be trained"
                                   : "version " + std::to_string(places.version + 1) +
                                         ": no more rows may be in flight before it";
    return none;
  }
  const auto granted = state.ledger->submit(groups * state.options.group_size);
  TIDEMILL_CHECK(granted.ok() && granted.value() == groups * state.options.group_size);
  Admission admission;
  admission.groups = static_cast<std::uint32_t>(groups);
  admission.first_group = state.next_group;
  admission.min_step = static_cast<std::uint64_t>(places.version);
  state.next_group += admission.groups;
  return admission;
}

void settle(Self self) {
  self->state.waiting.settle(self->clock().now(), [self](const auto& request, bool last_chance) {
    return try_admit(self, request, last_chance);
  });
}

// Whether every row that steps before `step` must generate is finished (see ScheduleKind::kFixed).
bool may_load(const KeeperState& state, std::uint64_t step) {
  if (state.options.schedule == ScheduleKind::kFree) {
    return true;
  }
  const std::int64_t due =
      (static_cast<std::int64_t>(step) + state.options.max_staleness) * state.options.batch_rows;
  return state.ledger->state().accepted >= std::min(due, state.total_rows);
}

void answer_serving_waits(Self self) {
  auto& state = self->state;
  std::erase_if(state.serving_waits, [&](auto& wait) {
    if (wait.first > state.serving_step) {
      return false;
    }
    wait.second.deliver(PolicyVersion{0, state.options.incarnation, state.serving_step});
    return true;
  });
}

void load_next(Self self) {
  auto& state = self->state;
  if (state.options.schedule == ScheduleKind::kFree && state.unloaded.size() > 1) {
    state.unloaded.erase(state.unloaded.begin(), state.unloaded.end() - 1);  // only the newest
  }
  if (state.loading || state.unloaded.empty() ||
      !may_load(state, state.unloaded.front().version.step)) {
    return;
  }
  state.loading = true;
  Snapshot snapshot = std::move(state.unloaded.front());
  state.unloaded.pop_front();
  self->request(state.device, kLoadDeadline, atom::load_v, std::move(snapshot))
      .then(
          [self](const PolicyVersion& version) {
            self->state.loading = false;
            self->state.serving_step = version.step;
            answer_serving_waits(self);
            load_next(self);
          },
          [self](const caf::error& error) {
            fail(self, from_caf_error(error).with_context("loading new weights"));
          });
}

caf::result<PolicyVersion> publish(Self self, Snapshot& snapshot) {
  auto& state = self->state;
  const auto next = static_cast<std::uint64_t>(state.ledger->state().version) + 1;
  if (snapshot.version.step != next || snapshot.version.incarnation != state.options.incarnation) {
    return to_caf_error(
        {Errc::kStaleVersion, "published version=" + to_string(snapshot.version) + " but step " +
                                  std::to_string(next) + " of incarnation " +
                                  std::to_string(state.options.incarnation) + " is next"});
  }
  const Status raised = state.ledger->set_version(static_cast<std::int64_t>(next));
  TIDEMILL_CHECK(raised.ok()) << raised.to_string();
  const PolicyVersion version = snapshot.version;
  state.unloaded.push_back(std::move(snapshot));
  load_next(self);
  settle(self);
  return version;
}

// A fixed batch is not filled up again: a group that leaves keeps its places, and they count as
// used, until its batch is trained without it.
storage::PlaceChanges counted(const storage::PlaceChanges& changes, ScheduleKind schedule) {
  if (schedule == ScheduleKind::kFree) {
    return changes;
  }
  return {changes.accepted + changes.aborted + changes.rejected, 0, 0, 0};
}

// Takes back the places of groups that were granted but will never be put.
void end_data(Self self, std::uint64_t groups) {
  auto& state = self->state;
  if (groups > state.next_group) {
    fail(self,
         {Errc::kInternal, "the data ends at group " + std::to_string(groups) + ", but only " +
                               std::to_string(state.next_group) + " were granted"});
    return;
  }
  const auto unused =
      static_cast<std::int64_t>((state.next_group - groups) * state.options.group_size);
  if (const Status aborted = state.ledger->abort(unused); !aborted.ok()) {
    fail(self, aborted);
    return;
  }
  state.next_group = groups;
  state.total_rows =
      std::min(state.total_rows, static_cast<std::int64_t>(groups * state.options.group_size));
  load_next(self);
}

KeeperStatus status_of(const KeeperState& state) {
  const storage::AdmissionState& places = state.ledger->state();
  KeeperStatus status;
  status.step = static_cast<std::uint64_t>(places.version);
  status.incarnation = state.options.incarnation;
  status.capacity = state.ledger->capacity();
  status.running = places.running;
  status.accepted = places.accepted;
  status.admitted_groups = state.next_group;
  status.serving_step = state.serving_step;
  return status;
}

AdmissionLedger restored_ledger(const KeeperOptions& options) {
  auto ledger = AdmissionLedger::create(
      {options.max_concurrent, options.batch_rows, options.max_staleness, 0});
  TIDEMILL_CHECK(ledger.ok()) << ledger.status().to_string();
  AdmissionLedger places = std::move(ledger).value();
  std::int64_t finished = options.finished_rows;
  if (options.schedule == ScheduleKind::kFixed) {
    // Groups that have left keep their places until their batch is trained; see `counted`.
    finished = static_cast<std::int64_t>(options.first_group * options.group_size) -
               static_cast<std::int64_t>(options.step) * options.batch_rows -
               options.unfinished_rows;
  }
  Status status = places.restart(static_cast<std::int64_t>(options.step), finished);
  TIDEMILL_CHECK(status.ok()) << status.to_string();
  status = places.force_submit(options.unfinished_rows);
  TIDEMILL_CHECK(status.ok()) << status.to_string();
  return places;
}

KeeperActor::behavior_type keeper(Self self, const KeeperDeps& deps) {
  auto& state = self->state;
  state.device = deps.device;
  const KeeperOptions& options = deps.options;
  state.ledger = restored_ledger(options);
  state.next_group = options.first_group;
  state.serving_step = options.step;
  state.total_rows = static_cast<std::int64_t>(options.total_steps) * options.batch_rows;
  state.options = options;
  return {
      [self](atom::admit, const AdmissionRequest& request) {
        auto promise = self->make_response_promise<Admission>();
        self->state.waiting.enter(request, promise, self->clock().now() + request.wait);
        self->delayed_send(self, request.wait, atom::wake_v);
        settle(self);
        return promise;
      },
      [self](atom::record, const storage::PlaceChanges& changes) {
        const Status applied =
            self->state.ledger->apply(counted(changes, self->state.options.schedule));
        if (!applied.ok()) {
          fail(self, applied);
          return;
        }
        load_next(self);
        settle(self);
      },
      [self](atom::publish, Snapshot& snapshot) { return publish(self, snapshot); },
      [self](atom::waits, std::uint64_t step) {
        auto promise = self->make_response_promise<PolicyVersion>();
        self->state.serving_waits.emplace_back(step, promise);
        answer_serving_waits(self);
        return promise;
      },
      [self](atom::finish, std::uint64_t groups) { end_data(self, groups); },
      [self](atom::status) { return status_of(self->state); },
      [self](atom::wake) { settle(self); },
  };
}

}  // namespace

KeeperActor spawn_keeper(caf::actor_system& system, KeeperDeps deps) {
  return system.spawn(keeper, std::move(deps));
}

}  // namespace tidemill::actors
