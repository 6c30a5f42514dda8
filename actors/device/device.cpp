// SPDX-License-Identifier: Apache-2.0
// The device actor. While a piece of work is at the port, only that work uses the engines, and
// requests that arrive wait in the inbox. When the work is done, the actor delivers the results,
// runs the commands in the inbox, and starts the next iteration if there is anything to do.
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <caf/all.hpp>

#include "actors/device/spawn.hpp"
#include "actors/device/train_run.hpp"
#include "actors/errors.hpp"

namespace tidemill::actors {
namespace {

using engines::RolloutRequest;
using engines::RolloutResult;
using engines::Snapshot;

// Shared with the work at the port, so that it outlives a terminated actor.
struct PortWork : engines::RolloutSink {
  explicit PortWork(DeviceDeps d)
      : deps(std::move(d)), executor(deps.rollout, deps.train, deps.executor) {}

  void on_rollout(RolloutResult result) override { results.push_back(std::move(result)); }

  // Advances the training job, if there is one, and then runs one iteration.
  Duration iterate() {
    Duration spent{0};
    if (train.has_value() && !train->finished()) {
      train_status = train->advance();
    }
    if (train_status.ok() && executor.has_work()) {
      auto report = executor.iterate();
      if (report.ok()) {
        spent = report.value().virtual_duration;
      } else {
        engine_status = report.status();
      }
    }
    return spent;
  }

  DeviceDeps deps;
  engines::Executor executor;
  std::optional<TrainRun> train;
  std::vector<RolloutResult> results;
  Status train_status;   // of the training job: a failure is its reply
  Status engine_status;  // of the engines: a failure ends the device
};

struct DeviceState {
  static inline const char* name = "device";
  DeviceState() = default;  // not an aggregate: CAF would build it from `self`

  std::shared_ptr<PortWork> port_work;
  bool working = false;
  std::map<SampleId, caf::typed_response_promise<RolloutResult>> pending_rollouts;
  std::optional<caf::typed_response_promise<TrainOutcome>> pending_train;
  // Commands that arrived while work was at the port, in order of arrival.
  std::deque<std::function<void()>> inbox;
};

using Self = DeviceActor::stateful_pointer<DeviceState>;

void run_next(Self self);

// Runs `command` now, or once the work at the port is done.
void between_iterations(Self self, std::function<void()> command) {
  if (self->state.working) {
    self->state.inbox.push_back(std::move(command));
    return;
  }
  command();
  run_next(self);
}

void deliver_results(Self self) {
  auto& state = self->state;
  for (RolloutResult& result : std::exchange(state.port_work->results, {})) {
    if (const auto it = state.pending_rollouts.find(result.id);
        it != state.pending_rollouts.end()) {
      it->second.deliver(std::move(result));
      state.pending_rollouts.erase(it);
    }
  }
}

void settle_training(Self self) {
  auto& state = self->state;
  PortWork& port_work = *state.port_work;
  if (!port_work.train.has_value()) {
    return;  // no job, or its command is still in the inbox
  }
  if (!port_work.train_status.ok()) {
    state.pending_train->deliver(to_caf_error(port_work.train_status));
  } else if (port_work.train->finished()) {
    state.pending_train->deliver(port_work.train->take_outcome());
  } else {
    return;
  }
  state.pending_train.reset();
  port_work.train.reset();
  port_work.train_status = {};
}

void run_next(Self self) {
  auto& state = self->state;
  PortWork& port_work = *state.port_work;
  deliver_results(self);
  if (state.working || (!port_work.executor.has_work() && !port_work.train.has_value())) {
    return;
  }
  state.working = true;
  port_work.deps.port->run([shared = state.port_work] { return shared->iterate(); },
                           caf::actor_cast<caf::strong_actor_ptr>(self),
                           caf::make_message(atom::worked_v));
}

void on_worked(Self self) {
  auto& state = self->state;
  state.working = false;
  deliver_results(self);
  if (!state.port_work->engine_status.ok()) {
    self->quit(to_caf_error(state.port_work->engine_status));
    return;
  }
  settle_training(self);
  for (const auto& command : std::exchange(state.inbox, {})) {
    command();
  }
  run_next(self);
}

void submit(Self self, RolloutRequest request, caf::typed_response_promise<RolloutResult> promise) {
  auto& state = self->state;
  const SampleId id = request.id;
  // A second request for a sample follows a lost lease. The first requester has given up.
  if (state.pending_rollouts.contains(id)) {
    state.port_work->deps.rollout->cancel(id);
    deliver_results(self);
  }
  if (const Status status =
          state.port_work->deps.rollout->submit(std::move(request), *state.port_work);
      !status.ok()) {
    promise.deliver(to_caf_error(status));
    return;
  }
  state.pending_rollouts.emplace(id, std::move(promise));
}

DeviceActor::behavior_type device(Self self, DeviceDeps deps) {
  self->state.port_work = std::make_shared<PortWork>(std::move(deps));
  return {
      [self](atom::generate, RolloutRequest& request) {
        auto promise = self->make_response_promise<RolloutResult>();
        between_iterations(self, [self, promise, request = std::move(request)]() mutable {
          submit(self, std::move(request), promise);
        });
        return promise;
      },
      [self](atom::cancel, SampleId id) {
        between_iterations(self, [self, id] { self->state.port_work->deps.rollout->cancel(id); });
      },
      [self](atom::load, Snapshot& snapshot) {
        auto promise = self->make_response_promise<PolicyVersion>();
        between_iterations(self, [self, promise, snapshot = std::move(snapshot)]() mutable {
          const PolicyVersion version = snapshot.version;
          const Status status = self->state.port_work->deps.rollout->load(
              std::move(snapshot), engines::WeightArrival::kFinish);
          if (status.ok()) {
            promise.deliver(version);
          } else {
            promise.deliver(to_caf_error(status));
          }
        });
        return promise;
      },
      [self](atom::train, TrainJob& job) -> caf::result<TrainOutcome> {
        auto& state = self->state;
        if (state.pending_train.has_value() || state.port_work->deps.train == nullptr) {
          return to_caf_error(
              {Errc::kUnavailable, "the device is training or has no training view"});
        }
        auto promise = self->make_response_promise<TrainOutcome>();
        state.pending_train = promise;
        between_iterations(self, [self, job = std::move(job)]() mutable {
          PortWork& port_work = *self->state.port_work;
          port_work.train.emplace(*port_work.deps.train, port_work.deps.make_loss, std::move(job));
        });
        return promise;
      },
      [self](atom::capture) -> caf::result<OptimizerState> {
        auto& state = self->state;
        if (state.pending_train.has_value() || state.port_work->deps.train == nullptr) {
          return to_caf_error(
              {Errc::kUnavailable, "the device is training or has no training view"});
        }
        auto promise = self->make_response_promise<OptimizerState>();
        between_iterations(self, [self, promise]() mutable {
          auto tensors = self->state.port_work->deps.train->optimizer_state();
          if (tensors.ok()) {
            promise.deliver(OptimizerState{std::move(tensors).value()});
          } else {
            promise.deliver(to_caf_error(tensors.status()));
          }
        });
        return promise;
      },
      [self](atom::worked) { on_worked(self); },
  };
}

}  // namespace

DeviceActor spawn_device(caf::actor_system& system, DeviceDeps deps) {
  return system.spawn(device, std::move(deps));
}

}  // namespace tidemill::actors
