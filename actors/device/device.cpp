// SPDX-License-Identifier: Apache-2.0
// The device actor. While a piece of work is out at the port, the engines belong to the port;
// what arrives meanwhile waits in the inbox. When it comes back, results go out, the inbox goes in,
// and the next iteration starts if there is anything to do.
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

// What the work at the port touches; shared with it, so that it survives the actor's death.
struct Bench : engines::RolloutSink {
  explicit Bench(DeviceDeps d)
      : deps(std::move(d)), executor(deps.rollout, deps.train, deps.executor) {}

  void on_rollout(RolloutResult result) override { results.push_back(std::move(result)); }

  // One iteration, and what training needs before and after it.
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
  Status train_status;   // of the training job alone: its asker is told
  Status engine_status;  // of the engine: the device ends
};

struct DeviceState {
  static inline const char* name = "device";
  DeviceState() = default;  // not an aggregate: CAF would build it from `self`

  std::shared_ptr<Bench> bench;
  bool working = false;
  std::map<SampleId, caf::typed_response_promise<RolloutResult>> asked;
  std::optional<caf::typed_response_promise<TrainOutcome>> trainer;
  // What arrived while working, in order of arrival.
  std::deque<std::function<void()>> inbox;
};

using Self = DeviceActor::stateful_pointer<DeviceState>;

void run_next(Self self);

// Runs `command` now, or after the work in flight.
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
  for (RolloutResult& result : std::exchange(state.bench->results, {})) {
    if (const auto it = state.asked.find(result.id); it != state.asked.end()) {
      it->second.deliver(std::move(result));
      state.asked.erase(it);
    }
  }
}

void settle_training(Self self) {
  auto& state = self->state;
  Bench& bench = *state.bench;
  if (!bench.train.has_value()) {
    return;  // no job, or one that still waits in the inbox
  }
  if (!bench.train_status.ok()) {
    state.trainer->deliver(to_caf_error(bench.train_status));
  } else if (bench.train->finished()) {
    state.trainer->deliver(bench.train->take_outcome());
  } else {
    return;
  }
  state.trainer.reset();
  bench.train.reset();
  bench.train_status = {};
}

void run_next(Self self) {
  auto& state = self->state;
  Bench& bench = *state.bench;
  deliver_results(self);
  if (state.working || (!bench.executor.has_work() && !bench.train.has_value())) {
    return;
  }
  state.working = true;
  bench.deps.port->run([shared = state.bench] { return shared->iterate(); },
                       caf::actor_cast<caf::strong_actor_ptr>(self),
                       caf::make_message(atom::worked_v));
}

void on_worked(Self self) {
  auto& state = self->state;
  state.working = false;
  deliver_results(self);
  if (!state.bench->engine_status.ok()) {
    self->quit(to_caf_error(state.bench->engine_status));
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
  if (state.asked.contains(id)) {  // asked again after a lost lease: the first asker has given up
    state.bench->deps.rollout->cancel(id);
    deliver_results(self);
  }
  if (const Status status = state.bench->deps.rollout->submit(std::move(request), *state.bench);
      !status.ok()) {
    promise.deliver(to_caf_error(status));
    return;
  }
  state.asked.emplace(id, std::move(promise));
}

DeviceActor::behavior_type device(Self self, DeviceDeps deps) {
  self->state.bench = std::make_shared<Bench>(std::move(deps));
  return {
      [self](atom::generate, RolloutRequest& request) {
        auto promise = self->make_response_promise<RolloutResult>();
        between_iterations(self, [self, promise, request = std::move(request)]() mutable {
          submit(self, std::move(request), promise);
        });
        return promise;
      },
      [self](atom::cancel, SampleId id) {
        between_iterations(self, [self, id] { self->state.bench->deps.rollout->cancel(id); });
      },
      [self](atom::load, Snapshot& snapshot) {
        auto promise = self->make_response_promise<PolicyVersion>();
        between_iterations(self, [self, promise, snapshot = std::move(snapshot)]() mutable {
          const PolicyVersion version = snapshot.version;
          const Status status = self->state.bench->deps.rollout->load(
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
        if (state.trainer.has_value() || state.bench->deps.train == nullptr) {
          return to_caf_error({Errc::kUnavailable, "the device is already training, or cannot"});
        }
        auto promise = self->make_response_promise<TrainOutcome>();
        state.trainer = promise;
        between_iterations(self, [self, job = std::move(job)]() mutable {
          Bench& bench = *self->state.bench;
          bench.train.emplace(*bench.deps.train, bench.deps.make_loss, std::move(job));
        });
        return promise;
      },
      [self](atom::capture) -> caf::result<OptimizerState> {
        auto& state = self->state;
        if (state.trainer.has_value() || state.bench->deps.train == nullptr) {
          return to_caf_error({Errc::kUnavailable, "the device is training, or cannot"});
        }
        auto promise = self->make_response_promise<OptimizerState>();
        between_iterations(self, [self, promise]() mutable {
          auto tensors = self->state.bench->deps.train->optimizer_state();
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
