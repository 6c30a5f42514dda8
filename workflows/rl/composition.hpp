// SPDX-License-Identifier: Apache-2.0
// Which actors a reinforcement-learning run consists of, and how they are wired.
//
// This is the one place that knows; a real run, an embedded one and a simulated one differ in what
// they plug in: engines, ports, files, clocks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <caf/fwd.hpp>

#include "actors/advantage/spawn.hpp"
#include "actors/commit/run_commit.hpp"
#include "actors/device/spawn.hpp"
#include "actors/evaluator/spawn.hpp"
#include "actors/keeper/spawn.hpp"
#include "actors/recorder/spawn.hpp"
#include "actors/reward/spawn.hpp"
#include "actors/rollout/spawn.hpp"
#include "actors/source/spawn.hpp"
#include "actors/stream/spawn.hpp"
#include "actors/supervisor/spawn.hpp"
#include "actors/trainer/spawn.hpp"

namespace tidemill::workflows {

/// The engines of one incarnation, opened from its origin.
struct RlEngines {
  std::shared_ptr<void> runtime;  // keeps the views alive
  engines::RolloutEngine* rollout = nullptr;
  engines::TrainEngine* train = nullptr;
  /// What both views hold; its version carries the incarnation.
  engines::Snapshot weights;
  /// The record files, cut back to the origin's marks.
  std::shared_ptr<actors::RecordFiles> records;
};

/// Everything about a run that does not change between its incarnations.
struct RlPlan {
  // Sizes and rules.
  std::uint32_t rollout_workers = 1;
  std::uint32_t reward_workers = 1;
  std::int64_t max_concurrent_rows = 1;
  actors::SampleStreamOptions stream;
  actors::TrainerOptions trainer;
  /// Template of every rollout worker; handles and name are filled in.
  actors::RolloutWorkerDeps rollout;
  engines::ExecutorOptions executor;
  std::uint32_t rewards_in_flight = 64;  // rows, per reward worker

  // What is plugged in.
  std::function<Result<std::shared_ptr<RlEngines>>(const actors::RunOrigin&)> open_engines;
  /// Makes the reward engine of a worker (its number), or of the evaluator (none).
  std::function<std::shared_ptr<engines::RewardEngine>(std::optional<std::uint32_t>)> make_reward;
  std::shared_ptr<actors::PromptReader> reader;
  std::shared_ptr<actors::CommitStore> commits;
  actors::DecideGroup decide;
  actors::LossFactory make_loss;
  actors::DecodeText decode;
  std::vector<std::string> reward_parts;  // names of the parts of a sum of rewards
  actors::RecordObserver observer;
  actors::StreamInspector inspector;  // simulation
  /// Told of accidents, a line each; from any thread.
  std::function<void(const std::string&)> log;
  /// Template of the evaluator; handle, engine and port are filled in. None: no evaluation.
  std::optional<actors::EvaluatorDeps> evaluator;

  // Ports; they outlive the run.
  actors::WorkPort* device_port = nullptr;
  actors::WorkPort* io_port = nullptr;          // data, records, starts
  actors::WorkPort* commit_port = nullptr;      // long writes, which nothing may wait behind
  std::vector<actors::WorkPort*> reward_ports;  // one per worker
  actors::WorkPort* eval_port = nullptr;
};

/// How a run's end is made known, and how it begins.
struct RlHooks {
  std::function<void(Result<actors::RunSummary>)> on_end;
  /// Sees the actors of every incarnation before they begin, and may wrap how workers are spawned;
  /// for simulation.
  std::function<void(actors::RunParts&)> on_spawn;
  std::uint32_t first_incarnation = 0;
  std::uint32_t max_restarts = 3;
};

/// Spawns the supervisor of a run; `atom::start` begins it.
[[nodiscard]] actors::SupervisorActor spawn_rl_run(caf::actor_system& system, RlPlan plan,
                                                   RlHooks hooks);

}  // namespace tidemill::workflows
