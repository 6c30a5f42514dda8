// SPDX-License-Identifier: Apache-2.0
// Spawns the supervisor of a run.
//
// A run consists of a core and workers. Workers are stateless: if a worker terminates, its leases
// return to the stream, the supervisor restarts it, and the run continues; a worker may have
// another `FailurePolicy`. Workers can be added, drained and removed while the run goes on. The
// actors of the core (devices, router, stream, keeper, source, trainer, recorder, evaluator) form
// one state: if one of them terminates, the supervisor ends all others too and restarts the run
// from its last commit, as a new incarnation. A worker that terminates too often in a row fails the
// run as well. Failures that would only repeat (bad data, a full disk, rewards that can never be
// computed) end the run at once.
#pragma once

#include <cstddef>
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
#include "actors/supervisor/messages.hpp"
#include "actors/trainer/handles.hpp"
#include "actors/work/work_port.hpp"
#include "base/clock.hpp"
#include "base/result.hpp"

namespace tidemill::actors {

/// SUPERVISOR: starts a run, restarts what fails, and reports how the run ended. Requests about
/// workers fail with `kUnavailable` while the run is starting or ending. Added workers are part of
/// all later incarnations, and removed ones of none.
using SupervisorActor = RunListenerActor::extend<
    // Starts the run.
    caf::reacts_to<atom::start>,
    // Ends the run after the current step.
    caf::reacts_to<atom::stop>,
    // Ends the run at once, unless it is over. `on_end` then gets `kUnavailable`. What the run did
    // since its last commit is lost.
    caf::reacts_to<atom::cancel>,
    // The port has prepared a start of the run, or failed to.
    caf::reacts_to<atom::worked>,
    // Adds a worker of this kind, and replies with it. Fails with `kNotFound` if the run has no
    // workers of this kind, and with `kResourceExhausted` if it has `SupervisorDeps::max_workers`
    // workers.
    caf::replies_to<atom::add, std::string>::with<WorkerStatus>,
    // Lets the worker of this name finish what it holds and then end for good. Replies as soon as
    // the worker has been told. Fails with `kNotFound`; with `kUnavailable` if the worker is not
    // running; and with `kInvalidArgument` if no other worker of its kind would be left.
    caf::replies_to<atom::drain, std::string>::with<WorkerStatus>,
    // Ends the worker of this name for good; its rows are delivered again. Replies with the worker
    // as it was. Fails with `kNotFound` and `kInvalidArgument` like `drain`.
    caf::replies_to<atom::remove, std::string>::with<WorkerStatus>,
    // Replies with the workers.
    caf::replies_to<atom::status>::with<WorkerList>,
    // Restarts the worker of this name. The supervisor sends this to itself.
    caf::reacts_to<atom::wake, std::string>>;

/// A worker and how to spawn it.
struct WorkerSpec {
  std::string name;  // also its consumer name at the stream
  std::function<caf::actor()> spawn;
  std::string kind = {};  // the workers of a kind can replace each other
  FailurePolicy on_failure = FailurePolicy::kRestart;
  /// The process in which it works, as its failure names that process; empty: that of the run. The
  /// end of a process gets one line in the log, not one for each of its workers.
  std::string process = {};
};

/// An actor of the core.
struct CorePart {
  std::string name;
  caf::actor actor;
  /// `kFailRun`, or `kDrop` if the other parts can do without it, such as one of several serving
  /// devices: they monitor it and decide whether to go on. Parts are never restarted alone.
  FailurePolicy on_failure = FailurePolicy::kFailRun;
};

/// The actors of one incarnation of a run, spawned but not yet started.
struct RunParts {
  std::vector<CorePart> core;
  std::vector<WorkerSpec> workers;
  /// Returns the worker with this number among those of its kind, to be added. The workers above
  /// have the numbers from 0. May be empty. Errors: `kNotFound` if the run has no workers of this
  /// kind.
  std::function<Result<WorkerSpec>(const std::string& kind, std::uint32_t number)> make_worker;
  /// Sends the first messages. Called once all actors are monitored.
  std::function<void()> start;
  /// Asks the trainer to end after its current step.
  std::function<void()> stop;
  /// Tells the stream that the worker of this name has terminated. May be empty.
  std::function<void(const std::string&)> release;
};

/// What a new incarnation starts from.
struct RunOrigin {
  std::optional<RunCommit> commit;
  std::uint32_t incarnation = 0;
};

/// Dependencies and options of a supervisor.
struct SupervisorDeps {
  std::shared_ptr<CommitStore> commits;
  /// Does the slow part of a start, such as opening the model. Runs at the port. Its result is
  /// passed to `spawn`.
  std::function<Result<std::shared_ptr<void>>(const RunOrigin&)> prepare;
  /// Spawns the actors of an incarnation. The trainer must send its summary to `listener`. The
  /// commit of the origin no longer has its optimizer state and its stream, which only `prepare`
  /// reads.
  std::function<RunParts(const RunOrigin&, std::shared_ptr<void>, RunListenerActor listener)> spawn;
  /// Called once, by the supervisor's actor, after all other actors have terminated.
  std::function<void(Result<RunSummary>)> on_end;
  /// Called with one line for every termination and restart, and for an early end that needs an
  /// explanation.
  std::function<void(const std::string&)> log;
  /// Called with one line for every worker that was added, drained or removed. Empty: `log`.
  std::function<void(const std::string&)> inform = {};
  WorkPort* port = nullptr;  // outlives the supervisor
  std::uint32_t first_incarnation = 0;
  /// How many starts of the run may fail in a row without a commit in between. Also how many times
  /// in a row a worker may terminate within a minute of its start before the run fails.
  std::uint32_t max_restarts = 3;
  Duration worker_delay = std::chrono::milliseconds(200);  // before the first restart of a worker
  std::size_t max_workers = 256;
};

/// Spawns a supervisor.
[[nodiscard]] SupervisorActor spawn_supervisor(caf::actor_system& system, SupervisorDeps deps);

}  // namespace tidemill::actors
