// SPDX-License-Identifier: Apache-2.0
// Starting the supervisor of a run.
//
// A run is a core and workers. Workers are stateless: one that dies is started again, its leases
// come back, the run goes on. The core (device, stream, keeper, source, trainer, recorder) is one
// state: when a part of it dies the rest is ended too, and the run starts again from its last
// commit, as a new incarnation. A worker that dies too often in a row is a failure of the run too.
// Failures that would only repeat (bad data, a full disk, rewards that can never be computed) end
// the run at once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <caf/actor.hpp>
#include <caf/fwd.hpp>
#include <caf/replies_to.hpp>
#include <caf/typed_actor.hpp>

#include "actors/commit/run_commit.hpp"
#include "actors/trainer/handles.hpp"
#include "actors/work/work_port.hpp"
#include "base/clock.hpp"
#include "base/result.hpp"

namespace tidemill::actors {

/// SUPERVISOR: starts a run, keeps it alive, and says how it ended.
using SupervisorActor = RunOwnerActor::extend<
    // Begins.
    caf::reacts_to<atom::start>,
    // Ends the run after the step in work.
    caf::reacts_to<atom::stop>,
    // What was handed to the port is done: a start is prepared.
    caf::reacts_to<atom::worked>,
    // Time to start a worker again.
    caf::reacts_to<atom::wake, std::string>>;

/// A worker and how to start it.
struct WorkerSpec {
  std::string name;  // its consumer name at the stream
  std::function<caf::actor()> spawn;
};

/// One incarnation of a run, spawned but not yet started.
struct RunParts {
  std::vector<std::pair<std::string, caf::actor>> core;
  std::vector<WorkerSpec> workers;
  /// Sends the first messages, once everything is monitored.
  std::function<void()> start;
  /// Asks the trainer to end after its step.
  std::function<void()> stop;
  /// Tells the stream that a worker of this name has died. May be empty.
  std::function<void(const std::string&)> release;
};

/// What a new incarnation starts from.
struct RunOrigin {
  std::optional<RunCommit> commit;
  std::uint32_t incarnation = 0;
};

/// What a supervisor is made of.
struct SupervisorDeps {
  std::shared_ptr<CommitStore> commits;
  /// Does the slow part of a start (opens the model); its result is passed to `spawn`. Called
  /// through the port.
  std::function<Result<std::shared_ptr<void>>(const RunOrigin&)> prepare;
  /// Spawns the actors of an incarnation; `owner` is told when the trainer is done.
  std::function<RunParts(const RunOrigin&, std::shared_ptr<void>, RunOwnerActor owner)> spawn;
  /// Called once, on the supervisor's actor, after all parts have ended.
  std::function<void(Result<RunSummary>)> on_end;
  /// Called for every death and restart, and for an early end that needs explaining, with one line.
  std::function<void(const std::string&)> log;
  WorkPort* port = nullptr;  // outlives the supervisor
  std::uint32_t first_incarnation = 0;
  /// Starts of the run that may fail in a row without a commit in between; and deaths of one worker
  /// in a row, each within a minute of its start, after which the run counts as failed.
  std::uint32_t max_restarts = 3;
  Duration worker_delay = std::chrono::milliseconds(200);
};

/// Spawns a supervisor.
[[nodiscard]] SupervisorActor spawn_supervisor(caf::actor_system& system, SupervisorDeps deps);

}  // namespace tidemill::actors
