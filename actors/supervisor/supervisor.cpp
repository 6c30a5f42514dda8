// SPDX-License-Identifier: Apache-2.0
// The supervisor. Its states and transitions:
//
//   preparing  -> running    the port has loaded the last commit and opened the model
//   preparing  -> over       the port could not do so: the run fails
//   running    -> ending     an actor of the core has terminated, or a worker has terminated with a
//                            failure that would repeat or too often in a row: all others are told
//                            to end
//   ending     -> preparing  all actors have terminated, and the failure may be transient
//   ending     -> over       all actors have terminated, and the failure would repeat or too many
//                            starts have failed: the run fails
//   running    -> ending     the trainer is done: all others are told to end
//   ending     -> over       all actors have terminated: the run ends well
#include <algorithm>
#include <map>
#include <utility>

#include <caf/all.hpp>

#include "actors/errors.hpp"
#include "actors/supervisor/spawn.hpp"

namespace tidemill::actors {
namespace {

// Shared with the work at the port.
struct Preparation {
  RunOrigin origin;
  Result<std::shared_ptr<void>> prepared = std::shared_ptr<void>{};
};

// Frees the parts of the commit that only the preparation reads. It does so at the port, because
// they are larger than the weights.
void release_prepared_parts(RunOrigin& origin) {
  if (origin.commit.has_value()) {
    origin.commit->optimizer.clear();
    origin.commit->stream = {};
  }
}

// Addresses and names of actors, in the order in which the actors were spawned. Exit messages are
// sent in that order, whatever the addresses are.
using Roster = std::vector<std::pair<caf::actor_addr, std::string>>;

// Removes the actor at `address` from `roster` and returns its name, or nothing if it is not there.
std::optional<std::string> remove_from(Roster& roster, const caf::actor_addr& address) {
  const auto it = std::find_if(roster.begin(), roster.end(),
                               [&](const auto& entry) { return entry.first == address; });
  if (it == roster.end()) {
    return std::nullopt;
  }
  std::string name = std::move(it->second);
  roster.erase(it);
  return name;
}

// Once a worker has run for this long, its earlier terminations no longer count.
constexpr Duration kStableAfter = std::chrono::minutes(1);

struct WorkerHistory {
  TimePoint started_at;
  std::uint32_t deaths = 0;  // in a row
};

enum class Phase { kPreparing, kRunning, kEnding, kOver };

struct SupervisorState {
  static inline const char* name = "supervisor";
  SupervisorState() = default;  // not an aggregate: CAF would build it from `self`

  SupervisorDeps deps;
  Phase phase = Phase::kPreparing;
  std::shared_ptr<Preparation> preparation;
  RunParts parts;
  Roster core;                                          // still running
  Roster workers;                                       // still running
  std::map<std::string, WorkerHistory> worker_history;  // by name
  std::uint32_t incarnation = 0;
  std::uint32_t failures = 0;  // in a row, without a commit in between
  std::uint64_t last_commit = 0;
  Status failure;                     // why the incarnation ended
  std::optional<RunSummary> summary;  // set once the trainer is done
  bool stop_requested = false;
};

using Self = SupervisorActor::stateful_pointer<SupervisorState>;

void prepare(Self self) {
  auto& state = self->state;
  state.phase = Phase::kPreparing;
  state.preparation = std::make_shared<Preparation>();
  state.preparation->origin.incarnation = state.incarnation;
  state.deps.port->run(
      [work = state.preparation, commits = state.deps.commits, prepare = state.deps.prepare] {
        auto commit = commits->load();
        if (commit.ok()) {
          work->origin.commit = std::move(commit).value();
          work->prepared = prepare(work->origin);
          release_prepared_parts(work->origin);
        } else {
          work->prepared = commit.status();
        }
        return Duration{0};
      },
      caf::actor_cast<caf::strong_actor_ptr>(self), caf::make_message(atom::worked_v));
}

void end_run(Self self, Result<RunSummary> result) {
  auto& state = self->state;
  state.phase = Phase::kOver;
  state.parts = {};
  state.deps.on_end(std::move(result));
  self->quit();
}

void spawn_worker(Self self, const WorkerSpec& spec) {
  const caf::actor worker = spec.spawn();
  self->state.worker_history[spec.name].started_at = self->clock().now();
  self->state.workers.emplace_back(worker.address(), spec.name);
  self->monitor(worker);
}

void on_prepared(Self self) {
  auto& state = self->state;
  const auto work = std::exchange(state.preparation, nullptr);
  if (!work->prepared.ok()) {
    end_run(self, work->prepared.status());
    return;
  }
  const std::uint64_t committed =
      work->origin.commit.has_value() ? work->origin.commit->weights.version.step : 0;
  state.failures = committed > state.last_commit ? 0 : state.failures;
  state.last_commit = committed;
  state.parts =
      state.deps.spawn(work->origin, work->prepared.value(), caf::actor_cast<RunOwnerActor>(self));
  state.worker_history.clear();
  for (const auto& [name, part] : state.parts.core) {
    state.core.emplace_back(part.address(), name);
    self->monitor(part);
  }
  for (const WorkerSpec& spec : state.parts.workers) {
    spawn_worker(self, spec);
  }
  state.phase = Phase::kRunning;
  state.parts.start();
  if (state.stop_requested) {
    state.parts.stop();
  }
}

// Returns whether another start would fail in the same way.
bool would_repeat(const Status& failure) {
  const Errc code = failure.code();
  return code == Errc::kInvalidArgument || code == Errc::kCorruptData ||
         code == Errc::kResourceExhausted || code == Errc::kUnimplemented;
}

// Ends or restarts the run once all actors of the incarnation have terminated.
void continue_when_all_ended(Self self) {
  auto& state = self->state;
  if (state.phase != Phase::kEnding || !state.core.empty() || !state.workers.empty()) {
    return;
  }
  if (state.summary.has_value()) {
    end_run(self, std::move(*state.summary));
    return;
  }
  if (would_repeat(state.failure) || ++state.failures > state.deps.max_restarts) {
    end_run(self, state.failure);
    return;
  }
  ++state.incarnation;
  state.deps.log(state.failure.message() + "; restarting from the last commit incarnation=" +
                 std::to_string(state.incarnation));
  state.parts = {};
  prepare(self);
}

void end_parts(Self self, caf::exit_reason reason) {
  auto& state = self->state;
  state.phase = Phase::kEnding;
  for (const auto* parts : {&state.core, &state.workers}) {
    for (const auto& [address, name] : *parts) {
      if (auto part = caf::actor_cast<caf::actor>(address)) {
        self->send_exit(part, reason);
      }
    }
  }
  continue_when_all_ended(self);
}

void end_after_failure(Self self, Status failure) {
  self->state.failure = std::move(failure);
  end_parts(self, caf::exit_reason::kill);
}

void on_core_down(Self self, const std::string& name, const caf::error& reason) {
  auto& state = self->state;
  if (state.phase != Phase::kRunning) {
    continue_when_all_ended(self);
    return;
  }
  if (state.summary.has_value()) {
    end_parts(self, caf::exit_reason::user_shutdown);
    return;
  }
  Status failure = from_caf_error(reason).with_context(name);
  if (failure.ok()) {
    failure = {Errc::kInternal, name + " ended before the run did"};
  }
  end_after_failure(self, std::move(failure));
}

void on_worker_down(Self self, const std::string& name, const caf::error& reason) {
  auto& state = self->state;
  if (state.phase != Phase::kRunning) {
    continue_when_all_ended(self);
    return;
  }
  const Status failure = from_caf_error(reason);
  if (would_repeat(failure)) {
    end_after_failure(self, failure.with_context(name));
    return;
  }
  WorkerHistory& history = state.worker_history[name];
  if (TimePoint{self->clock().now()} - history.started_at >= kStableAfter) {
    history.deaths = 0;
  }
  ++history.deaths;
  if (history.deaths > state.deps.max_restarts) {
    const Status why =
        failure.ok() ? Status(Errc::kInternal, "it ended before the run did") : failure;
    const std::string often = " died " + std::to_string(history.deaths) + " times in a row";
    end_after_failure(self, why.with_context(name + often));
    return;
  }
  state.deps.log(name + " died and will be restarted: " + failure.message());
  if (state.parts.release) {
    state.parts.release(name);
  }
  // The delay doubles with each termination in a row: a worker that always fails then costs little.
  const std::uint32_t doublings = std::min(history.deaths - 1, 6U);
  self->delayed_send(self, state.deps.worker_delay * (1U << doublings), atom::wake_v, name);
}

void on_down(Self self, const caf::down_msg& down) {
  auto& state = self->state;
  if (const auto part = remove_from(state.core, down.source); part.has_value()) {
    on_core_down(self, *part, down.reason);
  } else if (const auto worker = remove_from(state.workers, down.source); worker.has_value()) {
    on_worker_down(self, *worker, down.reason);
  }
}

SupervisorActor::behavior_type supervisor(Self self, SupervisorDeps deps) {
  self->state.incarnation = deps.first_incarnation;
  self->state.deps = std::move(deps);
  self->set_down_handler([self](const caf::down_msg& down) { on_down(self, down); });
  return {
      [self](atom::finish, RunSummary& summary) {
        if (!summary.reason.empty()) {
          self->state.deps.log(summary.reason);
        }
        self->state.summary = std::move(summary);  // the trainer terminates next
      },
      [self](atom::start) { prepare(self); },
      [self](atom::stop) {
        self->state.stop_requested = true;
        if (self->state.phase == Phase::kRunning) {
          self->state.parts.stop();
        }
      },
      [self](atom::worked) { on_prepared(self); },
      [self](atom::wake, const std::string& name) {
        auto& state = self->state;
        if (state.phase != Phase::kRunning) {
          return;
        }
        for (const WorkerSpec& spec : state.parts.workers) {
          const bool alive = std::any_of(state.workers.begin(), state.workers.end(),
                                         [&](const auto& entry) { return entry.second == name; });
          if (spec.name == name && !alive) {
            spawn_worker(self, spec);
          }
        }
      },
  };
}

}  // namespace

SupervisorActor spawn_supervisor(caf::actor_system& system, SupervisorDeps deps) {
  return system.spawn(supervisor, std::move(deps));
}

}  // namespace tidemill::actors
