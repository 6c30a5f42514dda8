// SPDX-License-Identifier: Apache-2.0
// Defines which actors a reinforcement-learning run consists of, and how they are connected.
//
// This is the only file that does. Real, embedded and simulated runs differ only in the engines,
// ports, files and clocks in their `RlPlan`.
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
#include "actors/router/spawn.hpp"
#include "actors/source/spawn.hpp"
#include "actors/stream/spawn.hpp"
#include "actors/supervisor/spawn.hpp"
#include "actors/trainer/spawn.hpp"

namespace tidemill::workflows {

/// The engines and record files of one incarnation, opened at its origin.
struct RlEngines {
  std::shared_ptr<void> runtime;  // keeps the views alive
  engines::RolloutEngine* rollout = nullptr;
  engines::TrainingJob* train = nullptr;
  engines::NamedAdapters* adapters = nullptr;  // null: requests name no adapters
  actors::OpenAdapter open_adapter;
  /// The engines of the devices that only serve, in addition to the one above.
  std::vector<engines::RolloutEngine*> servers;
  /// The weights that all views hold, until the trainer takes them. Their version carries the
  /// incarnation.
  engines::Snapshot weights;
  /// The record files, truncated to the marks of the origin.
  std::shared_ptr<actors::RecordFiles> records;
  /// The rows of the commit, until the stream takes them. `spawn_rl_run` fills them in.
  std::shared_ptr<const actors::RestoredStream> restored;
};

/// The parts of a run that all its incarnations share.
struct RlPlan {
  // Sizes and rules.
  std::uint32_t rollout_workers = 1;
  std::uint32_t reward_workers = 1;
  std::int64_t max_concurrent_rows = 1;
  actors::SampleStreamOptions stream;
  actors::TrainerOptions trainer;
  /// Template of the rollout workers. `spawn_rl_run` fills in handles and name.
  actors::RolloutWorkerDeps rollout;
  engines::ExecutorOptions executor;
  std::uint32_t rewards_in_flight = 64;  // rows, per reward worker

  // Replaceable parts.
  std::function<Result<std::shared_ptr<RlEngines>>(const actors::RunOrigin&)> open_engines;
  /// Makes the reward engine of the worker with this number, or of the evaluator if there is none.
  std::function<std::shared_ptr<engines::RewardEngine>(std::optional<std::uint32_t>)> make_reward;
  std::shared_ptr<actors::PromptReader> reader;
  std::shared_ptr<actors::CommitStore> commits;
  actors::DecideGroup decide;
  actors::LossFactory make_loss;
  actors::DecodeText decode;
  std::vector<std::string> reward_parts;  // names of the parts of a weighted sum
  actors::RecordObserver observer;
  actors::StreamInspector inspector;  // for simulation; may be empty
  /// Takes one line for each failure that the run handled. Called from any thread.
  std::function<void(const std::string&)> log;
  /// Template of the evaluator. `spawn_rl_run` fills in handle, engine and port. None: no
  /// evaluation.
  std::optional<actors::EvaluatorDeps> evaluator;

  // Ports. They must outlive the run.
  actors::WorkPort* device_port = nullptr;
  std::vector<actors::WorkPort*> server_ports;  // one per engine in `RlEngines::servers`
  actors::WorkPort* io_port = nullptr;          // reads data, writes records, prepares starts
  actors::WorkPort* commit_port = nullptr;      // writes commits, which take too long for `io_port`
  std::vector<actors::WorkPort*> reward_ports;  // one per worker
  actors::WorkPort* eval_port = nullptr;
};

/// Callbacks of a run, its first incarnation, and how often it may restart.
struct RlHooks {
  std::function<void(Result<actors::RunSummary>)> on_end;
  /// Called with the actors of every incarnation before they start. May wrap the functions that
  /// spawn workers. For simulation.
  std::function<void(actors::RunParts&)> on_spawn;
  std::uint32_t first_incarnation = 0;
  std::uint32_t max_restarts = 3;
};

/// Spawns the supervisor of a run. The run begins when the supervisor receives `atom::start`.
[[nodiscard]] actors::SupervisorActor spawn_rl_run(caf::actor_system& system, RlPlan plan,
                                                   RlHooks hooks);

}  // namespace tidemill::workflows
