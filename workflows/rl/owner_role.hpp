// SPDX-License-Identifier: Apache-2.0
// The role "owner" of a reinforcement-learning run: the actors whose states form the run, and the
// device that trains. No other role gets a `TrainingActor`.
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
#include "actors/evaluator/spawn.hpp"
#include "actors/keeper/spawn.hpp"
#include "actors/recorder/spawn.hpp"
#include "actors/router/spawn.hpp"
#include "actors/source/spawn.hpp"
#include "actors/stream/spawn.hpp"
#include "actors/supervisor/spawn.hpp"
#include "actors/trainer/spawn.hpp"
#include "workflows/rl/reward_role.hpp"
#include "workflows/rl/role_devices.hpp"
#include "workflows/rl/worker_factory.hpp"
#include "workflows/shared_job.hpp"

namespace tidemill::workflows {

/// Options of the role.
struct OwnerRoleOptions {
  std::int64_t max_concurrent_rows = 1;  // the maximum number in flight
  actors::SampleStreamOptions stream;
  actors::TrainerOptions trainer;
  std::shared_ptr<actors::PromptReader> reader;  // reads the training prompts
  std::shared_ptr<actors::CommitStore> commits;  // where the trainer saves commits
  actors::DecideGroup decide;                    // computes advantages or filters a group
  actors::DecodeText decode;                     // turns the ids of a response into text
  std::vector<std::string> reward_parts;         // names of the parts of a weighted sum
  actors::RecordObserver observer;               // gets every record of the recorder; may be empty
  actors::StreamInspector inspector;             // for simulation; may be empty
  /// Called with one line for each failure that the run handled. May be called from any thread.
  std::function<void(const std::string&)> log;
  /// Takes one line for each device that joins or leaves. Likewise; may be empty.
  std::function<void(const std::string&)> inform;
  /// Template of the evaluator, without its handle, engine and port. If absent, the run evaluates
  /// nothing.
  std::optional<actors::EvaluatorDeps> evaluator;
  MakeRewardEngine make_reward;  // for the evaluator

  // Options of the device that trains.
  actors::LossFactory make_loss;
  engines::ExecutorOptions executor;

  // Ports. They must outlive the run.
  actors::WorkPort* device_port = nullptr;  // of the device that trains
  /// Reads data, writes records and opens the engines for each start.
  actors::WorkPort* io_port = nullptr;
  actors::WorkPort* commit_port = nullptr;  // writes commits, which take too long for `io_port`
  actors::WorkPort* eval_port = nullptr;
};

/// What the device that trains works with: a model's runtime, or a job on the device of a server.
/// Both outlive the device.
struct TrainingEngines {
  ServingEngines serving;  // the device serves, too
  engines::TrainingJob* train = nullptr;
  const SharedJob* shared = nullptr;  // if set, the other fields are not used
};

/// The device that trains. The owner keeps it: other roles reach it through the owner's router.
struct TrainingDevice {
  actors::ServingDevice serving;
  actors::TrainingActor training;
  std::vector<actors::CorePart> core;  // the same device, for the supervisor
};

/// What one incarnation of the owner starts from.
struct OwnerState {
  TrainingDevice device;
  /// The weights that all devices hold. Their version carries the incarnation.
  engines::Snapshot weights;
  /// The record files, truncated to the marks of the commit that the incarnation starts from.
  std::shared_ptr<actors::RecordFiles> records;
  /// The rows of the commit; null for a new run.
  std::shared_ptr<const actors::RestoredStream> restored;
};

/// What the owner sends messages to, in other roles and in the supervisor.
struct OwnerConnections {
  std::vector<actors::ServingDevice> serving_devices;  // devices that only serve
  actors::RunListenerActor run_listener;               // receives the summary of the run
};

/// The actors of the role.
struct OwnerHandles {
  actors::StreamActor stream;
  actors::RouterActor router;
  actors::RosterActor roster;
  actors::PromptSourceActor source;
  actors::TrainerActor trainer;
  /// The actors of the core that the role started, except the device, for the supervisor.
  std::vector<actors::CorePart> core;
  WorkerFactory advantage;  // makes the workers that compute advantages
};

/// Starts the device that trains, named "device". `runtime` keeps the engines alive. The device
/// needs no connection, so it starts before all other actors of a run.
[[nodiscard]] TrainingDevice start_training_device(caf::actor_system& system,
                                                   const OwnerRoleOptions& options,
                                                   const TrainingEngines& engines,
                                                   const std::shared_ptr<void>& runtime);

/// Starts the other actors of the role. For the advantage worker, it returns a factory instead. The
/// supervisor, which is not part of the role, calls this once for each incarnation.
[[nodiscard]] OwnerHandles start_owner(caf::actor_system& system, const OwnerRoleOptions& options,
                                       const OwnerConnections& connections,
                                       const actors::RunOrigin& origin, OwnerState state);

}  // namespace tidemill::workflows
