// SPDX-License-Identifier: Apache-2.0
#include "workflows/rl/composition.hpp"

#include <utility>

#include <caf/all.hpp>

namespace tidemill::workflows {
namespace {

using namespace tidemill::actors;  // NOLINT(google-build-using-namespace): this file connects them

KeeperOptions keeper_options(const RlPlan& plan, const engines::Snapshot& weights,
                             const StreamOrigin& rows) {
  KeeperOptions options;
  options.group_size = plan.stream.group_size;
  options.batch_rows =
      static_cast<std::int64_t>(plan.trainer.groups_per_step) * plan.stream.group_size;
  options.max_staleness = static_cast<std::int64_t>(plan.trainer.max_staleness);
  options.max_concurrent = plan.max_concurrent_rows;
  options.total_steps = plan.trainer.total_steps;
  options.generation_order =
      plan.trainer.fixed_batches ? GenerationOrder::kFixed : GenerationOrder::kFree;
  options.incarnation = weights.version.incarnation;
  options.step = weights.version.step;
  options.first_group = rows.next_group;
  options.finished_rows = rows.finished_rows;
  options.unfinished_rows = rows.unfinished_rows;
  return options;
}

// The core actors of a run. Each holds handles only of those above it.
struct Core {
  std::vector<ServingDevice> devices;
  TrainingActor training;  // one of the devices
  RouterActor router;
  KeeperActor keeper;
  StreamActor stream;
  RecorderActor recorder;
  EvaluatorActor evaluator;
  PromptSourceActor source;
  TrainerActor trainer;
};

TrainerDeps trainer_deps(const RlPlan& plan, const RunOrigin& origin, engines::Snapshot weights,
                         const Core& core, RunOwnerActor owner) {
  TrainerDeps deps;
  deps.options = plan.trainer;
  deps.stream = core.stream;
  deps.training = core.training;
  deps.serving = core.router;
  deps.keeper = core.keeper;
  deps.recorder = core.recorder;
  deps.evaluator = core.evaluator;
  deps.owner = std::move(owner);
  deps.commits = plan.commits;
  deps.commit_port = plan.commit_port;
  deps.io_port = plan.io_port;
  deps.reward_parts = plan.reward_parts;
  deps.weights = std::move(weights);
  if (origin.commit.has_value()) {
    deps.best = origin.commit->best;
    deps.evaluated_step = origin.commit->evaluated_step;
  }
  return deps;
}

// Spawns the device that trains and serves, and those that only serve.
void spawn_devices(caf::actor_system& system, const RlPlan& plan,
                   const std::shared_ptr<RlEngines>& engines, Core& core) {
  DeviceDeps deps;
  deps.runtime = engines;
  deps.rollout = engines->rollout;
  deps.train = engines->train;
  deps.make_loss = plan.make_loss;
  deps.port = plan.device_port;
  deps.executor = plan.executor;
  deps.adapters = engines->adapters;
  deps.open_adapter = engines->open_adapter;
  const DeviceActor device = spawn_device(system, std::move(deps));
  core.training = device;
  core.devices.push_back({"device", device});
  for (std::size_t i = 0; i < engines->servers.size(); ++i) {
    DeviceDeps server;
    server.runtime = engines;
    server.rollout = engines->servers[i];
    server.port = plan.server_ports.at(i);
    server.executor = plan.executor;
    core.devices.push_back(
        {"device-" + std::to_string(i + 1), spawn_device(system, std::move(server))});
  }
}

Core spawn_core(caf::actor_system& system, const RlPlan& plan, const RunOrigin& origin,
                const std::shared_ptr<RlEngines>& engines, RunOwnerActor owner) {
  auto restored = std::exchange(engines->restored, nullptr);
  const StreamOrigin rows = restored != nullptr ? restored->origin : StreamOrigin{};
  Core core;
  spawn_devices(system, plan, engines, core);
  core.router = spawn_router(system, {core.devices});
  core.keeper = spawn_keeper(
      system, {core.devices, core.router, keeper_options(plan, engines->weights, rows), plan.log});
  SampleStreamOptions stream = plan.stream;
  stream.incarnation = origin.incarnation;
  core.stream = spawn_stream(system, {stream, core.keeper, std::move(restored), plan.inspector});
  core.recorder = spawn_recorder(
      system, {engines->records, origin.commit.has_value() ? origin.commit->records : RecordMarks{},
               plan.observer, plan.decode, plan.io_port});
  if (plan.evaluator.has_value()) {
    EvaluatorDeps deps = *plan.evaluator;
    deps.serving = core.router;
    deps.engine = plan.make_reward(std::nullopt);
    deps.port = plan.eval_port;
    core.evaluator = spawn_evaluator(system, std::move(deps));
  }
  PromptSourceDeps source;
  source.group_size = plan.stream.group_size;
  source.first_draw = rows.next_draw;
  source.stream = core.stream;
  source.keeper = core.keeper;
  source.reader = plan.reader;
  source.port = plan.io_port;
  core.source = spawn_prompt_source(system, std::move(source));
  core.trainer = spawn_trainer(
      system,
      trainer_deps(plan, origin, std::exchange(engines->weights, {}), core, std::move(owner)));
  return core;
}

std::vector<WorkerSpec> worker_specs(caf::actor_system& system,
                                     const std::shared_ptr<const RlPlan>& plan, const Core& core) {
  std::vector<WorkerSpec> workers;
  for (std::uint32_t i = 0; i < plan->rollout_workers; ++i) {
    RolloutWorkerDeps deps = plan->rollout;
    deps.stream = core.stream;
    deps.serving = core.router;
    deps.name = "rollout-" + std::to_string(i);
    workers.push_back({deps.name, [&system, deps] {
                         return caf::actor_cast<caf::actor>(spawn_rollout_worker(system, deps));
                       }});
  }
  for (std::uint32_t i = 0; i < plan->reward_workers; ++i) {
    RewardWorkerDeps deps;
    deps.name = "reward-" + std::to_string(i);
    deps.max_in_flight = plan->rewards_in_flight;
    deps.stream = core.stream;
    deps.decode = plan->decode;
    deps.port = plan->reward_ports[i];
    deps.log = plan->log;
    workers.push_back({deps.name, [&system, plan, deps, i]() mutable {
                         deps.engine = plan->make_reward(i);  // the old engine may hang
                         return caf::actor_cast<caf::actor>(spawn_reward_worker(system, deps));
                       }});
  }
  AdvantageWorkerDeps deps;
  deps.stream = core.stream;
  deps.decide = plan->decide;
  workers.push_back({deps.name, [&system, deps] {
                       return caf::actor_cast<caf::actor>(spawn_advantage_worker(system, deps));
                     }});
  return workers;
}

RunParts compose(caf::actor_system& system, const std::shared_ptr<const RlPlan>& plan,
                 const RunOrigin& origin, const std::shared_ptr<RlEngines>& engines,
                 RunOwnerActor owner) {
  const Core core = spawn_core(system, *plan, origin, engines, std::move(owner));
  RunParts parts;
  for (const ServingDevice& device : core.devices) {
    parts.core.emplace_back(device.name, caf::actor_cast<caf::actor>(device.actor));
  }
  parts.core.insert(parts.core.end(), {{"router", caf::actor_cast<caf::actor>(core.router)},
                                       {"keeper", caf::actor_cast<caf::actor>(core.keeper)},
                                       {"stream", caf::actor_cast<caf::actor>(core.stream)},
                                       {"recorder", caf::actor_cast<caf::actor>(core.recorder)},
                                       {"source", caf::actor_cast<caf::actor>(core.source)},
                                       {"trainer", caf::actor_cast<caf::actor>(core.trainer)}});
  if (core.evaluator) {
    parts.core.emplace_back("evaluator", caf::actor_cast<caf::actor>(core.evaluator));
  }
  parts.workers = worker_specs(system, plan, core);
  parts.start = [source = core.source, trainer = core.trainer] {
    caf::anon_send(source, atom::start_v);
    caf::anon_send(trainer, atom::start_v);
  };
  parts.stop = [trainer = core.trainer] { caf::anon_send(trainer, atom::stop_v); };
  parts.release = [stream = core.stream](const std::string& name) {
    caf::anon_send(stream, atom::release_v, name);
  };
  return parts;
}

}  // namespace

SupervisorActor spawn_rl_run(caf::actor_system& system, RlPlan plan, RlHooks hooks) {
  const auto shared = std::make_shared<const RlPlan>(std::move(plan));
  SupervisorDeps deps;
  deps.commits = shared->commits;
  deps.prepare = [shared](const RunOrigin& origin) -> Result<std::shared_ptr<void>> {
    std::shared_ptr<const RestoredStream> restored;
    if (origin.commit.has_value()) {
      TIDEMILL_ASSIGN_OR_RETURN(restored, decode_stream_image(origin.commit->stream));
    }
    TIDEMILL_ASSIGN_OR_RETURN(std::shared_ptr<RlEngines> engines, shared->open_engines(origin));
    engines->restored = std::move(restored);
    return std::shared_ptr<void>(std::move(engines));
  };
  deps.spawn = [&system, shared, on_spawn = hooks.on_spawn](const RunOrigin& origin,
                                                            const std::shared_ptr<void>& prepared,
                                                            RunOwnerActor owner) {
    RunParts parts = compose(system, shared, origin, std::static_pointer_cast<RlEngines>(prepared),
                             std::move(owner));
    if (on_spawn) {
      on_spawn(parts);
    }
    return parts;
  };
  deps.on_end = std::move(hooks.on_end);
  deps.log = shared->log;
  deps.port = shared->io_port;
  deps.first_incarnation = hooks.first_incarnation;
  deps.max_restarts = hooks.max_restarts;
  return spawn_supervisor(system, std::move(deps));
}

}  // namespace tidemill::workflows
