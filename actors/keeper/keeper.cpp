// SPDX-License-Identifier: Apache-2.0
// The version keeper: admits rows by the capacity rule, and decides when new weights are loaded.
#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <caf/all.hpp>

#include "actors/errors.hpp"
#include "actors/keeper/spawn.hpp"
#include "actors/work/alarm.hpp"
#include "actors/work/pending_requests.hpp"
#include "storage/versions/admission.hpp"

namespace tidemill::actors {
namespace {

using engines::Snapshot;
using storage::AdmissionLedger;

constexpr Duration kLoadDeadline = std::chrono::minutes(5);

struct KeeperDevice {
  std::string name;
  ServingActor actor;             // null once it is quarantined or has left
  caf::actor_addr address;        // null once it has left
  caf::actor_addr listener = {};  // as in `DeviceJoin`; not kept alive
};

struct KeeperState {
  static inline const char* name = "keeper";
  KeeperState() = default;  // not an aggregate: CAF would build it from `self`

  std::vector<KeeperDevice> devices;
  std::size_t num_started = 0;  // those with which the run was started; the others have joined
  std::string training_device;
  RouterActor router;
  std::function<void(const std::string&)> log;
  std::function<void(const std::string&)> inform;
  KeeperOptions options;
  std::optional<AdmissionLedger> ledger;
  std::uint64_t next_group = 0;
  DeviceRoster roster;
  // Those that a device may still have to load, or one that joins; by step, at most
  // max_staleness + 2. The trainer holds all of them, so dropping one here frees nothing.
  std::map<std::uint64_t, Snapshot> weights;
  // Requests of devices that join or leave, by the index of the device.
  std::map<std::size_t, caf::typed_response_promise<DeviceStatus>> joins;
  std::map<std::size_t, caf::typed_response_promise<DeviceStatus>> leaves;
  PendingRequests<AdmissionRequest, Admission> pending;
  Alarm alarm;  // for requests that have waited
  // Requests that wait for a step to be served. Only the trainer sends them, so at most one.
  std::vector<std::pair<std::uint64_t, caf::typed_response_promise<PolicyVersion>>> serving_waits;
  std::int64_t total_rows = 0;  // upper bound of the rows that the run will train
};

using Self = KeeperActor::stateful_pointer<KeeperState>;

// Ends the keeper. Devices that join or leave get the error as a reply.
void fail(Self self, const Status& status) {
  auto& state = self->state;
  for (auto* requests : {&state.joins, &state.leaves}) {
    for (auto& [device, request] : *requests) {
      request.deliver(to_caf_error(status));
    }
    requests->clear();
  }
  self->quit(to_caf_error(status));
}

// The batch that the next group belongs to, counted from 0 over the whole run.
std::int64_t next_batch(const KeeperState& state) {
  const std::int64_t groups_per_batch =
      state.options.batch_rows / static_cast<std::int64_t>(state.options.group_size);
  return static_cast<std::int64_t>(state.next_group) / groups_per_batch;
}

// One admission has one `min_step`, which a fixed order derives from the batch: there it does not
// reach into the next batch.
std::int64_t max_groups(const KeeperState& state, const AdmissionRequest& request) {
  if (state.options.generation_order == GenerationOrder::kFree) {
    return request.max_groups;
  }
  const std::int64_t batch_end = (next_batch(state) + 1) * state.options.batch_rows /
                                 static_cast<std::int64_t>(state.options.group_size);
  return std::min<std::int64_t>(request.max_groups,
                                batch_end - static_cast<std::int64_t>(state.next_group));
}

// The oldest version that may generate the next group. In a fixed order it is the only one: it
// follows from the batch, not from when the group is admitted. A group admitted late would else
// wait for a version that waits for the group.
std::uint64_t min_step(const KeeperState& state) {
  if (state.options.generation_order == GenerationOrder::kFree) {
    return static_cast<std::uint64_t>(state.ledger->state().version);
  }
  return static_cast<std::uint64_t>(
      std::max<std::int64_t>(0, next_batch(state) - state.options.max_staleness));
}

std::optional<Result<Admission>> try_admit(Self self, const AdmissionRequest& request,
                                           bool last_chance) {
  auto& state = self->state;
  const storage::AdmissionState& admissions = state.ledger->state();
  // Never admit more rows than the run will train, whatever the capacity: they would be discarded.
  const std::int64_t wanted = state.total_rows - admissions.accepted - admissions.running;
  const std::int64_t rows = std::min(state.ledger->capacity(), wanted);
  const std::int64_t groups = std::min<std::int64_t>(
      rows / static_cast<std::int64_t>(state.options.group_size), max_groups(state, request));
  if (groups <= 0) {
    if (!last_chance) {
      return std::nullopt;
    }
    Admission none;
    none.waiting_for = wanted <= 0 ? "the last batches of the run"
                                   : "version " + std::to_string(admissions.version + 1) +
                                         ", before which no more rows may be in flight";
    return none;
  }
  const auto granted = state.ledger->submit(groups * state.options.group_size);
  TIDEMILL_CHECK(granted.ok() && granted.value() == groups * state.options.group_size);
  Admission admission;
  admission.groups = static_cast<std::uint32_t>(groups);
  admission.first_group = state.next_group;
  admission.min_step = min_step(state);
  state.next_group += admission.groups;
  return admission;
}

void settle(Self self) {
  self->state.pending.settle(self->clock().now(), [self](const auto& request, bool last_chance) {
    return try_admit(self, request, last_chance);
  });
  self->state.alarm.set(self, self->state.pending.next_deadline());
}

// Returns whether the weights of `step` may be loaded: with `GenerationOrder::kFixed`, once every
// row that older steps must generate is finished.
bool may_load(const KeeperState& state, std::uint64_t step) {
  if (state.options.generation_order == GenerationOrder::kFree) {
    return true;
  }
  const std::int64_t due =
      (static_cast<std::int64_t>(step) + state.options.max_staleness) * state.options.batch_rows;
  return state.ledger->state().accepted >= std::min(due, state.total_rows);
}

void reply_to_serving_waits(Self self) {
  auto& state = self->state;
  const std::uint64_t serving = state.roster.serving_step();
  std::erase_if(state.serving_waits, [&](auto& wait) {
    if (wait.first > serving) {
      return false;
    }
    wait.second.deliver(PolicyVersion{0, state.options.incarnation, serving});
    return true;
  });
}

// Replies to the request with which a device joins or leaves, if it has sent one.
void settle(Self self, std::map<std::size_t, caf::typed_response_promise<DeviceStatus>>& requests,
            std::size_t device, const Status& status) {
  const auto request = requests.find(device);
  if (request == requests.end()) {
    return;
  }
  if (status.ok()) {
    request->second.deliver(self->state.roster.status(device));
  } else {
    request->second.deliver(to_caf_error(status));
  }
  requests.erase(request);
}

// Drops the handle of a device that gets no more messages, so that it may end.
void release(Self self, KeeperDevice& device) {
  self->demonitor(device.address);
  device.actor = ServingActor();
}

void load_due(Self self);

// The device gets no more versions nor requests. If no other one serves, requests wait for one that
// joins, which takes as long as its load may take. If none joins, the run cannot go on.
void quarantine(Self self, std::size_t device, const Status& why) {
  auto& state = self->state;
  if (!state.roster.quarantine(device, why.message())) {
    return;
  }
  settle(self, state.joins, device, why);
  settle(self, state.leaves, device, why);
  release(self, state.devices[device]);
  const bool none_serves = state.roster.num_serving() == 0;
  const std::string& name = state.devices[device].name;
  if (none_serves && state.roster.num_joining() == 0) {
    // A run that is started again begins without the devices that have joined, so it does not fail
    // for the same reason.
    fail(self, device < state.num_started
                   ? why
                   : Status(Errc::kUnavailable, name + " has joined and failed: " + why.message()));
    return;
  }
  if (state.log) {
    state.log(name + " is quarantined: " + why.message());
  }
  const QuarantinedDevice quarantined{name, why.message(), none_serves};
  if (state.router) {
    self->send(state.router, atom::quarantine_v, quarantined);
  }
  if (const auto listener = caf::actor_cast<caf::actor>(state.devices[device].listener)) {
    caf::anon_send(listener, atom::quarantine_v, quarantined);
  }
  reply_to_serving_waits(self);
  load_due(self);
}

// The device has loaded its first version: now it may get requests.
void let_serve(Self self, std::size_t index) {
  auto& state = self->state;
  const KeeperDevice& device = state.devices[index];
  if (state.router) {
    self->send(state.router, atom::join_v, join_request({device.name, device.actor}));
  }
  if (state.inform) {
    state.inform(device.name + " has joined");
  }
  settle(self, state.joins, index, {});
}

void load(Self self, const DueLoad& due) {
  auto& state = self->state;
  self->request(state.devices[due.device].actor, kLoadDeadline, atom::load_v,
                state.weights.at(due.step))
      .then(
          [self, due](const PolicyVersion&) {
            if (self->state.roster.end_load(due)) {
              let_serve(self, due.device);
            }
            reply_to_serving_waits(self);
            load_due(self);
          },
          [self, due](const caf::error& error) {
            if (self->state.roster.awaits(due)) {
              quarantine(self, due.device,
                         from_caf_error(error).with_context("loading new weights"));
            }
          });
}

void load_due(Self self) {
  auto& state = self->state;
  const auto loads =
      state.roster.begin_loads([&](std::uint64_t step) { return may_load(state, step); });
  for (const DueLoad& due : loads) {
    load(self, due);
  }
  state.weights.erase(state.weights.begin(),
                      state.weights.lower_bound(state.roster.oldest_needed()));
}

// Checks that an actor that joins as `name` is not in the run under another name.
Status check_joins_once(const KeeperState& state, const std::string& name,
                        const ServingActor& actor) {
  for (std::size_t i = 0; i < state.devices.size(); ++i) {
    const KeeperDevice& known = state.devices[i];
    if (known.name == name || known.address != actor.address()) {
      continue;
    }
    const DeviceStatus& status = state.roster.status(i);
    if (status.state == DeviceState::kQuarantined) {
      return {Errc::kUnavailable, known.name + " is quarantined: " + status.quarantine_reason};
    }
    return invalid_argument(known.name + ": the device is in the run under this name");
  }
  return {};
}

caf::result<DeviceStatus> join(Self self, const DeviceJoin& request) {
  auto& state = self->state;
  const auto actor = caf::actor_cast<ServingActor>(request.device);
  if (!actor) {
    return to_caf_error(invalid_argument("the request of a device to join names no device"));
  }
  if (const Status once = check_joins_once(state, request.name, actor); !once.ok()) {
    return to_caf_error(once);
  }
  const auto index = state.roster.join(request.name);
  if (!index.ok()) {
    return to_caf_error(index.status());
  }
  state.devices.resize(std::max(state.devices.size(), index.value() + 1));
  state.devices[index.value()] = {request.name, actor, actor.address(),
                                  caf::actor_cast<caf::actor_addr>(request.listener)};
  auto promise = self->make_response_promise<DeviceStatus>();
  state.joins.emplace(index.value(), promise);
  self->monitor(actor);
  load_due(self);
  return promise;
}

// The device has no more requests.
void end_leave(Self self, std::size_t device) {
  auto& state = self->state;
  if (!state.roster.end_leave(device)) {
    return;
  }
  release(self, state.devices[device]);
  state.devices[device].address = nullptr;
  if (state.inform) {
    state.inform(state.devices[device].name + " has left");
  }
  settle(self, state.leaves, device, {});
  reply_to_serving_waits(self);
  load_due(self);
}

caf::result<DeviceStatus> leave(Self self, const std::string& name) {
  auto& state = self->state;
  if (!name.empty() && name == state.training_device) {
    return to_caf_error(invalid_argument(name + " trains: it cannot leave"));
  }
  const auto index = state.roster.leave(name);
  if (!index.ok()) {
    return to_caf_error(index.status());
  }
  auto promise = self->make_response_promise<DeviceStatus>();
  const std::size_t device = index.value();
  state.leaves.emplace(device, promise);
  if (!state.router) {
    end_leave(self, device);
    return promise;
  }
  self->request(state.router, kLeaveDeadline, atom::leave_v, name)
      .then([self, device](std::uint64_t) { end_leave(self, device); },
            [self, device, name](const caf::error& error) {
              // The requests that it still has fail, and their rows are delivered again.
              self->send(self->state.router, atom::quarantine_v,
                         QuarantinedDevice{name, from_caf_error(error).message()});
              end_leave(self, device);
            });
  return promise;
}

// A device that has ended loads nothing any more. The supervisor may end the run for it first.
void on_down(Self self, const caf::down_msg& down) {
  const auto& devices = self->state.devices;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    if (devices[i].actor && devices[i].actor.address() == down.source) {
      const Status why = from_caf_error(down.reason);
      quarantine(self, i,
                 Status(why.ok() ? Errc::kUnavailable : why.code(),
                        devices[i].name + " has ended: " + why.message()));
    }
  }
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
  state.roster.publish(next);
  state.weights.emplace(next, std::move(snapshot));
  load_due(self);
  settle(self);
  return version;
}

// Returns the changes as the ledger counts them. With `GenerationOrder::kFixed`, no other group
// replaces one that leaves: its slots count as accepted until its batch is trained without it.
storage::SlotChanges changes_to_apply(const storage::SlotChanges& changes,
                                      GenerationOrder generation_order) {
  if (generation_order == GenerationOrder::kFree) {
    return changes;
  }
  return {changes.accepted + changes.aborted + changes.rejected, 0, 0, 0};
}

// Frees the slots of groups that were admitted but will never be put.
void end_data(Self self, std::uint64_t groups) {
  auto& state = self->state;
  if (groups > state.next_group) {
    fail(self,
         {Errc::kInternal, "the data ends at group " + std::to_string(groups) + ", but only " +
                               std::to_string(state.next_group) + " groups were admitted"});
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
  load_due(self);
}

KeeperStatus status_of(const KeeperState& state) {
  const storage::AdmissionState& admissions = state.ledger->state();
  KeeperStatus status;
  status.step = static_cast<std::uint64_t>(admissions.version);
  status.incarnation = state.options.incarnation;
  status.capacity = state.ledger->capacity();
  status.running = admissions.running;
  status.accepted = admissions.accepted;
  status.admitted_groups = state.next_group;
  status.serving_step = state.roster.serving_step();
  status.devices = state.roster.devices();
  return status;
}

// Errors: `kInvalidArgument` if the commit's rows contradict the options.
Result<AdmissionLedger> restored_ledger(const KeeperOptions& options) {
  TIDEMILL_ASSIGN_OR_RETURN(AdmissionLedger ledger,
                            AdmissionLedger::create({options.max_concurrent, options.batch_rows,
                                                     options.max_staleness, 0}));
  std::int64_t finished = options.finished_rows;
  if (options.generation_order == GenerationOrder::kFixed) {
    // Groups that have left keep their slots until their batch is trained; see `changes_to_apply`.
    finished = static_cast<std::int64_t>(options.next_group * options.group_size) -
               static_cast<std::int64_t>(options.step) * options.batch_rows -
               options.unfinished_rows;
    if (finished < 0) {
      return invalid_argument(
          "train.prompts_per_step: cannot change under staleness.schedule: fixed: the commit has "
          "trained " +
          std::to_string(options.step) + " batches of the " + std::to_string(options.next_group) +
          " prompts it has taken from the data");
    }
  }
  TIDEMILL_RETURN_IF_ERROR(ledger.restart(static_cast<std::int64_t>(options.step), finished));
  TIDEMILL_RETURN_IF_ERROR(ledger.force_submit(options.unfinished_rows));
  return ledger;
}

KeeperActor::behavior_type keeper(Self self, const KeeperDeps& deps) {
  auto& state = self->state;
  state.num_started = deps.devices.size();
  state.training_device = deps.training_device;
  state.router = deps.router;
  state.log = deps.log;
  state.inform = deps.inform;
  const KeeperOptions& options = deps.options;
  auto ledger = restored_ledger(options);
  if (!ledger.ok()) {
    fail(self, ledger.status());
    return KeeperActor::behavior_type::make_empty_behavior();
  }
  state.ledger = std::move(ledger).value();
  state.next_group = options.next_group;
  std::vector<std::string> names;
  for (const ServingDevice& device : deps.devices) {
    names.push_back(device.name);
    state.devices.push_back({device.name, device.actor, device.actor.address()});
    self->monitor(device.actor);
  }
  self->set_down_handler([self](const caf::down_msg& down) { on_down(self, down); });
  state.roster = DeviceRoster(options.generation_order, options.step, names);
  state.weights.emplace(options.step, deps.weights);
  state.total_rows = static_cast<std::int64_t>(options.total_steps) * options.batch_rows;
  state.options = options;
  return {
      [self](atom::join, const DeviceJoin& request) { return join(self, request); },
      [self](atom::leave, const std::string& name) { return leave(self, name); },
      [self](atom::admit, const AdmissionRequest& request) {
        auto promise = self->make_response_promise<Admission>();
        self->state.pending.add(request, promise, self->clock().now() + request.wait);
        settle(self);
        return promise;
      },
      [self](atom::record, const storage::SlotChanges& changes) {
        const Status applied = self->state.ledger->apply(
            changes_to_apply(changes, self->state.options.generation_order));
        if (!applied.ok()) {
          fail(self, applied);
          return;
        }
        load_due(self);
        settle(self);
      },
      [self](atom::publish, Snapshot& snapshot) { return publish(self, snapshot); },
      [self](atom::waits, std::uint64_t step) {
        auto promise = self->make_response_promise<PolicyVersion>();
        self->state.serving_waits.emplace_back(step, promise);
        reply_to_serving_waits(self);
        return promise;
      },
      [self](atom::finish, std::uint64_t groups) { end_data(self, groups); },
      [self](atom::status) { return status_of(self->state); },
      [self](atom::wake) {
        static_cast<void>(self->state.alarm.take(self->clock().now()));
        settle(self);
      },
  };
}

}  // namespace

DeviceJoin join_request(const ServingDevice& device, caf::strong_actor_ptr listener) {
  return {device.name, caf::actor_cast<caf::strong_actor_ptr>(device.actor), std::move(listener)};
}

KeeperActor spawn_keeper(caf::actor_system& system, KeeperDeps deps) {
  return system.spawn(keeper, std::move(deps));
}

}  // namespace tidemill::actors
