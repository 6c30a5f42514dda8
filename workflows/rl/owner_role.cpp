// SPDX-License-Identifier: Apache-2.0
#include "workflows/rl/owner_role.hpp"

#include <utility>

#include <caf/all.hpp>

namespace tidemill::workflows {

using namespace tidemill::actors;  // NOLINT(google-build-using-namespace): this file connects them

namespace {

KeeperOptions keeper_options(const OwnerRoleOptions& owner, const engines::Snapshot& weights,
                             const StreamOrigin& rows) {
  KeeperOptions options;
  options.group_size = owner.stream.group_size;
  options.batch_rows =
      static_cast<std::int64_t>(owner.trainer.groups_per_step) * owner.stream.group_size;
  options.max_staleness = static_cast<std::int64_t>(owner.trainer.max_staleness);
  options.max_concurrent = owner.max_concurrent_rows;
  options.total_steps = owner.trainer.total_steps;
  options.generation_order =
      owner.trainer.fixed_batches ? GenerationOrder::kFixed : GenerationOrder::kFree;
  options.incarnation = weights.version.incarnation;
  options.step = weights.version.step;
  options.next_group = rows.next_group;
  options.finished_rows = rows.finished_rows;
  options.unfinished_rows = rows.unfinished_rows;
  return options;
}

// Returns a bound that a run does not reach: every live row has a request, and so have the
// evaluator and the probe. Requests of workers that have died count until the device replies, and a
// worker dies only a few times in a row.
std::size_t max_requests(const OwnerRoleOptions& options) {
  constexpr std::size_t kDeadWorkers = 8;
  const std::size_t evaluated =
      options.evaluator.has_value() ? options.evaluator->max_in_flight : 0;
  return kDeadWorkers * (static_cast<std::size_t>(options.max_concurrent_rows) + evaluated + 1);
}

EvaluatorActor start_evaluator(caf::actor_system& system, const OwnerRoleOptions& options,
                               const RouterActor& router) {
  if (!options.evaluator.has_value()) {
    return {};
  }
  EvaluatorDeps deps = *options.evaluator;
  deps.serving = router;
  deps.engine = options.make_reward(std::nullopt);
  deps.port = options.eval_port;
  return spawn_evaluator(system, std::move(deps));
}

PromptSourceActor start_source(caf::actor_system& system, const OwnerRoleOptions& options,
                               const StreamActor& stream, const KeeperActor& keeper,
                               std::uint64_t first_draw) {
  PromptSourceDeps deps;
  deps.group_size = options.stream.group_size;
  deps.first_draw = first_draw;
  deps.stream = stream;
  deps.keeper = keeper;
  deps.reader = options.reader;
  deps.port = options.io_port;
  return spawn_prompt_source(system, std::move(deps));
}

// Returns the parts that do not depend on other actors of the role.
TrainerDeps trainer_deps(const OwnerRoleOptions& options, const RunOrigin& origin,
                         OwnerState& state) {
  TrainerDeps deps;
  deps.options = options.trainer;
  deps.training = state.device.training;
  deps.commits = options.commits;
  deps.commit_port = options.commit_port;
  deps.io_port = options.io_port;
  deps.reward_parts = options.reward_parts;
  deps.weights = std::move(state.weights);
  if (origin.commit.has_value()) {
    deps.best = origin.commit->best;
    deps.evaluated_step = origin.commit->evaluated_step;
  }
  return deps;
}

WorkerFactory advantage_workers(caf::actor_system& system, const OwnerRoleOptions& options,
                                const StreamConsumerActor& stream) {
  AdvantageWorkerDeps deps;
  deps.stream = stream;
  deps.decide = options.decide;
  return {"advantage", 1, [&system, deps](std::uint32_t number) mutable {
            deps.name = "advantage-" + std::to_string(number);
            return WorkerSpec{
                deps.name,
                [&system, deps] {
                  return caf::actor_cast<caf::actor>(spawn_advantage_worker(system, deps));
                },
                "advantage", FailurePolicy::kRestart};
          }};
}

}  // namespace

TrainingDevice start_training_device(caf::actor_system& system, const OwnerRoleOptions& options,
                                     const TrainingEngines& engines,
                                     const std::shared_ptr<void>& runtime) {
  const std::string name = "device";
  if (engines.shared != nullptr) {
    const ServingActor serving = engines.shared->start_serving(system, runtime);
    const TrainingActor training = engines.shared->start_training(system, runtime);
    return {{name, serving},
            training,
            {{name, caf::actor_cast<caf::actor>(serving)},
             {"training", caf::actor_cast<caf::actor>(training)}}};
  }
  DeviceDeps deps = serving_deps(engines.serving, runtime, options.device_port);
  deps.train = engines.train;
  deps.make_loss = options.make_loss;
  deps.executor = options.executor;
  const DeviceActor device = spawn_device(system, std::move(deps));
  return {{name, device}, device, {{name, caf::actor_cast<caf::actor>(device)}}};
}

OwnerHandles start_owner(caf::actor_system& system, const OwnerRoleOptions& options,
                         const OwnerConnections& connections, const RunOrigin& origin,
                         OwnerState state) {
  std::vector<ServingDevice> devices{state.device.serving};
  devices.insert(devices.end(), connections.serving_devices.begin(),
                 connections.serving_devices.end());
  const StreamOrigin rows = state.restored != nullptr ? state.restored->origin : StreamOrigin{};
  OwnerHandles owner;
  RouterDeps router;
  router.devices = devices;
  router.max_pending = max_requests(options);
  owner.router = spawn_router(system, std::move(router));
  const KeeperActor keeper =
      spawn_keeper(system, {devices, owner.router, keeper_options(options, state.weights, rows),
                            options.log, state.weights, state.device.serving.name, options.inform});
  owner.roster = keeper;
  SampleStreamOptions stream = options.stream;
  stream.incarnation = origin.incarnation;
  owner.stream =
      spawn_stream(system, {stream, keeper, std::move(state.restored), options.inspector});
  const RecorderActor recorder = spawn_recorder(
      system, {state.records, origin.commit.has_value() ? origin.commit->records : RecordMarks{},
               options.observer, options.decode, options.io_port});
  const EvaluatorActor evaluator = start_evaluator(system, options, owner.router);
  owner.source = start_source(system, options, owner.stream, keeper, rows.next_draw);
  TrainerDeps trainer = trainer_deps(options, origin, state);
  trainer.listener = connections.run_listener;
  trainer.stream = owner.stream;
  trainer.serving = owner.router;
  trainer.keeper = keeper;
  trainer.recorder = recorder;
  trainer.evaluator = evaluator;
  owner.trainer = spawn_trainer(system, std::move(trainer));
  owner.core = {{"router", caf::actor_cast<caf::actor>(owner.router)},
                {"keeper", caf::actor_cast<caf::actor>(keeper)},
                {"stream", caf::actor_cast<caf::actor>(owner.stream)},
                {"recorder", caf::actor_cast<caf::actor>(recorder)},
                {"source", caf::actor_cast<caf::actor>(owner.source)},
                {"trainer", caf::actor_cast<caf::actor>(owner.trainer)}};
  if (evaluator) {
    owner.core.push_back({"evaluator", caf::actor_cast<caf::actor>(evaluator)});
  }
  owner.advantage = advantage_workers(system, options, owner.stream);
  return owner;
}

}  // namespace tidemill::workflows
