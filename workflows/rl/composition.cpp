// SPDX-License-Identifier: Apache-2.0
#include "workflows/rl/composition.hpp"

#include <utility>

#include <caf/all.hpp>

namespace tidemill::workflows {
namespace {

using namespace tidemill::actors;  // NOLINT(google-build-using-namespace): this file connects them

// The workers of all kinds, and how to make more of them.
void add_workers(const std::vector<WorkerFactory>& factories, RunParts& parts) {
  for (const WorkerFactory& factory : factories) {
    for (std::uint32_t number = 0; number < factory.initial; ++number) {
      parts.workers.push_back(factory.make(number));
    }
  }
  parts.make_worker = [factories](const std::string& kind,
                                  std::uint32_t number) -> Result<WorkerSpec> {
    for (const WorkerFactory& factory : factories) {
      if (factory.kind == kind) {
        return factory.make(number);
      }
    }
    return Status(Errc::kNotFound, "this run has no workers of kind " + kind);
  };
}

struct Incarnation {
  RunParts parts;
  RosterActor roster;
};

Incarnation compose(caf::actor_system& system, const RlPlan& plan, const RunOrigin& origin,
                    const std::shared_ptr<RlEngines>& engines, RunListenerActor run_listener) {
  OwnerState state = std::exchange(engines->owner, {});
  state.device = start_training_device(system, plan.owner, engines->training, engines);
  ServingDevices serving =
      start_serving_devices(system, plan.rollout, engines->serving_devices, engines);
  if (plan.remote_serving) {
    serving = plan.remote_serving(std::move(serving));
  }
  RunParts parts;
  parts.core = state.device.core;
  parts.core.insert(parts.core.end(), serving.core.begin(), serving.core.end());
  const OwnerHandles owner = start_owner(
      system, plan.owner, {serving.devices, std::move(run_listener)}, origin, std::move(state));
  parts.core.insert(parts.core.end(), owner.core.begin(), owner.core.end());
  const WorkerFactory reward = plan.remote_reward
                                   ? plan.remote_reward(origin, owner.stream)
                                   : reward_worker_factory(system, plan.reward, {owner.stream});
  const WorkerFactory rollout =
      plan.remote_rollout
          ? plan.remote_rollout(origin, owner.stream, owner.roster)
          : rollout_worker_factory(system, plan.rollout, {owner.stream, owner.router});
  add_workers({rollout, reward, owner.advantage}, parts);
  parts.start = [source = owner.source, trainer = owner.trainer] {
    caf::anon_send(source, atom::start_v);
    caf::anon_send(trainer, atom::start_v);
  };
  parts.stop = [trainer = owner.trainer] { caf::anon_send(trainer, atom::stop_v); };
  parts.release = [stream = owner.stream](const std::string& name) {
    caf::anon_send(stream, atom::release_v, name);
  };
  return {std::move(parts), owner.roster};
}

}  // namespace

SupervisorActor spawn_rl_run(caf::actor_system& system, RlPlan plan, RlHooks hooks) {
  const auto shared = std::make_shared<const RlPlan>(std::move(plan));
  SupervisorDeps deps;
  deps.commits = shared->owner.commits;
  deps.prepare = [shared](const RunOrigin& origin) -> Result<std::shared_ptr<void>> {
    std::shared_ptr<const RestoredStream> restored;
    if (origin.commit.has_value()) {
      TIDEMILL_ASSIGN_OR_RETURN(restored, decode_stream_image(origin.commit->stream));
    }
    TIDEMILL_ASSIGN_OR_RETURN(std::shared_ptr<RlEngines> engines, shared->open_engines(origin));
    engines->owner.restored = std::move(restored);
    return std::shared_ptr<void>(std::move(engines));
  };
  deps.spawn = [&system, shared, on_spawn = hooks.on_spawn, on_roster = hooks.on_roster](
                   const RunOrigin& origin, const std::shared_ptr<void>& prepared,
                   RunListenerActor listener) {
    Incarnation incarnation =
        compose(system, *shared, origin, std::static_pointer_cast<RlEngines>(prepared),
                std::move(listener));
    if (on_spawn) {
      on_spawn(incarnation.parts);
    }
    if (on_roster) {
      on_roster(incarnation.roster);
    }
    return std::move(incarnation.parts);
  };
  deps.on_end = std::move(hooks.on_end);
  deps.log = shared->owner.log;
  deps.inform = shared->owner.inform;
  deps.port = shared->owner.io_port;
  deps.first_incarnation = hooks.first_incarnation;
  deps.max_restarts = hooks.max_restarts;
  return spawn_supervisor(system, std::move(deps));
}

}  // namespace tidemill::workflows
