// SPDX-License-Identifier: Apache-2.0
// The supervisor. Its states and what moves it:
//
//   preparing  -> running    the port has loaded the last commit and opened the model
//   running    -> ending     a part of the core has died, or a worker that would only die again or
//                            too often in a row: the rest is told to end
//   ending     -> preparing  all parts are gone, and the failure may pass
//   ending     -> over       all parts are gone, and it may not, or failed too often
//   running    -> ending     the trainer is done: the rest is told to end
//   ending     -> over       all parts are gone: the run ends well
#include <algorithm>
#include <map>
#include <utility>

#include <caf/all.hpp>

#include "actors/errors.hpp"
#include "actors/supervisor/spawn.hpp"

namespace tidemill::actors {
namespace {

// What the work at the port touches; shared with it.
struct Preparation {
  RunOrigin origin;
  Result<std::shared_ptr<void>> prepared = std::shared_ptr<void>{};
};

// Actors by address in the order in which they were spawned: exits go out in that order, whatever
// the addresses are.
using Roster = std::vector<std::pair<caf::actor_addr, std::string>>;

// Takes the name of the actor at `address` out of `roster`.
std::optional<std::string> strike(Roster& roster, const caf::actor_addr& address) {
  const auto it = std::find_if(roster.begin(), roster.end(),
                               [&](const auto& entry) { return entry.first == address; });
  if (it == roster.end()) {
    return std::nullopt;
  }
  std::string name = std::move(it->second);
  roster.erase(it);
  return name;
}

// A worker that has lived this long is well: what it died of before does not count any more.
constexpr Duration kWorkerIsWell = std::chrono::minutes(1);

struct WorkerLife {
  TimePoint begun;
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
  Roster core;                              // alive
  Roster workers;                           // alive
  std::map<std::string, WorkerLife> lives;  // by worker
  std::uint32_t incarnation = 0;
  std::uint32_t failures = 0;  // in a row, without a commit in between
  std::uint64_t last_commit = 0;
  Status failure;                     // why the core ended
  std::optional<RunSummary> summary;  // the trainer is done
  bool stop_asked = false;
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
  self->state.lives[spec.name].begun = self->clock().now();
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
  state.lives.clear();
  for (const auto& [name, part] : state.parts.core) {
    state.core.emplace_back(part.address(), name);
    self->monitor(part);
  }
  for (const WorkerSpec& spec : state.parts.workers) {
    spawn_worker(self, spec);
  }
  state.phase = Phase::kRunning;
  state.parts.start();
  if (state.stop_asked) {
    state.parts.stop();
  }
}

// Whether another start would end in the same way.
bool would_repeat(const Status& failure) {
  const Errc code = failure.code();
  return code == Errc::kInvalidArgument || code == Errc::kCorruptData ||
         code == Errc::kResourceExhausted || code == Errc::kUnimplemented;
}

// Goes on once nothing of the incarnation is left.
void when_all_gone(Self self) {
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
  state.deps.log(state.failure.message() + "; starting again from the last commit incarnation=" +
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
  when_all_gone(self);
}

void end_for(Self self, Status failure) {
  self->state.failure = std::move(failure);
  end_parts(self, caf::exit_reason::kill);
}

void on_core_down(Self self, const std::string& name, const caf::error& reason) {
  auto& state = self->state;
  if (state.phase != Phase::kRunning) {
    when_all_gone(self);
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
  end_for(self, std::move(failure));
}

void on_worker_down(Self self, const std::string& name, const caf::error& reason) {
  auto& state = self->state;
  if (state.phase != Phase::kRunning) {
    when_all_gone(self);
    return;
  }
  const Status failure = from_caf_error(reason);
  if (would_repeat(failure)) {
    end_for(self, failure.with_context(name));
    return;
  }
  WorkerLife& life = state.lives[name];
  if (TimePoint{self->clock().now()} - life.begun >= kWorkerIsWell) {
    life.deaths = 0;
  }
  ++life.deaths;
  if (life.deaths > state.deps.max_restarts) {
    const Status why =
        failure.ok() ? Status(Errc::kInternal, "it ended before the run did") : failure;
    const std::string often = " died " + std::to_string(life.deaths) + " times in a row";
    end_for(self, why.with_context(name + often));
    return;
  }
  state.deps.log(name + " has died and is started again: " + failure.message());
  if (state.parts.release) {
    state.parts.release(name);
  }
  // Each death in a row waits twice as long, so that a worker that cannot live costs little.
  const std::uint32_t doublings = std::min(life.deaths - 1, 6U);
  self->delayed_send(self, state.deps.worker_delay * (1U << doublings), atom::wake_v, name);
}

void on_down(Self self, const caf::down_msg& down) {
  auto& state = self->state;
  if (const auto part = strike(state.core, down.source); part.has_value()) {
    on_core_down(self, *part, down.reason);
  } else if (const auto worker = strike(state.workers, down.source); worker.has_value()) {
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
        self->state.summary = std::move(summary);  // the trainer's own end follows
      },
      [self](atom::start) { prepare(self); },
      [self](atom::stop) {
        self->state.stop_asked = true;
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
