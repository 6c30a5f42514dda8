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
//   running    -> ending     the run is cancelled: all actors are told to end
//   preparing  -> over       the port has prepared a start, but the run was cancelled meanwhile
//   ending     -> over       all actors have terminated, and the run was cancelled: the run fails
//
// Workers have states of their own while the run is running; see worker_table.hpp.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <caf/all.hpp>

#include "actors/errors.hpp"
#include "actors/supervisor/spawn.hpp"
#include "actors/supervisor/worker_table.hpp"

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
using RunningActors = std::vector<std::pair<caf::actor_addr, std::string>>;

// Removes the actor at `address` from `running` and returns its name, or nothing if it is not
// there.
std::optional<std::string> remove_from(RunningActors& running, const caf::actor_addr& address) {
  const auto it = std::find_if(running.begin(), running.end(),
                               [&](const auto& entry) { return entry.first == address; });
  if (it == running.end()) {
    return std::nullopt;
  }
  std::string name = std::move(it->second);
  running.erase(it);
  return name;
}

// A worker that was added to the run.
struct AddedWorker {
  std::string name;
  std::string kind;
  std::uint32_t number = 0;
};

enum class Phase { kPreparing, kRunning, kEnding, kOver };

struct SupervisorState {
  static inline const char* name = "supervisor";
  SupervisorState() = default;  // not an aggregate: CAF would build it from `self`

  SupervisorDeps deps;
  Phase phase = Phase::kPreparing;
  std::shared_ptr<Preparation> preparation;
  RunParts parts;
  RunningActors core;
  RunningActors workers;
  std::vector<WorkerSpec> specs;  // of all workers of this incarnation
  WorkerTable table;              // of the workers that run or will start again
  // Changes that every incarnation repeats.
  std::vector<AddedWorker> added;
  std::map<std::string, std::uint32_t> last_added;  // the number of the last one, by kind
  std::set<std::string> removed;
  // Workers that end with a process whose end is in the log, and its reason.
  std::map<std::string, std::string> explained;
  std::uint32_t incarnation = 0;
  std::uint32_t failures = 0;  // in a row, without a commit in between
  std::uint64_t last_commit = 0;
  Status failure;                     // why the incarnation ended
  std::optional<RunSummary> summary;  // set once the trainer is done
  bool stop_requested = false;
  bool cancelled = false;
  bool told_full = false;  // that no worker could be added since the last one that was
};

using Self = SupervisorActor::stateful_pointer<SupervisorState>;

// Passes on a line about a change that was asked for.
void inform(const SupervisorState& state, const std::string& line) {
  (state.deps.inform ? state.deps.inform : state.deps.log)(line);
}

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

// Drops the handles to the actors of an incarnation that has ended.
void forget_parts(SupervisorState& state) {
  state.parts = {};
  state.specs.clear();
  state.explained.clear();
}

Status cancelled_status() {
  return {Errc::kUnavailable, "the run was cancelled"};
}

void end_run(Self self, Result<RunSummary> result) {
  auto& state = self->state;
  state.phase = Phase::kOver;
  forget_parts(state);
  state.deps.on_end(std::move(result));
  self->quit();
}

void spawn_worker(Self self, const WorkerSpec& spec) {
  const caf::actor worker = spec.spawn();
  self->state.workers.emplace_back(worker.address(), spec.name);
  self->state.explained.erase(spec.name);
  self->monitor(worker);
}

void start_worker(Self self, WorkerSpec spec) {
  auto& state = self->state;
  spawn_worker(self, spec);
  state.table.add(spec.name, spec.kind, spec.on_failure, self->clock().now());
  state.specs.push_back(std::move(spec));
}

// Starts the workers of a new incarnation, with the changes that were made to earlier ones.
void start_workers(Self self) {
  auto& state = self->state;
  state.table = WorkerTable({state.deps.max_restarts, state.deps.worker_delay});
  state.specs.clear();
  for (const WorkerSpec& spec : state.parts.workers) {
    if (!state.removed.contains(spec.name)) {
      start_worker(self, spec);
    }
  }
  for (const AddedWorker& added : state.added) {
    if (auto spec = state.parts.make_worker(added.kind, added.number); spec.ok()) {
      start_worker(self, std::move(spec).value());
    }
  }
}

void on_prepared(Self self) {
  auto& state = self->state;
  const auto work = std::exchange(state.preparation, nullptr);
  if (!work->prepared.ok() || state.cancelled) {
    end_run(self, state.cancelled ? cancelled_status() : work->prepared.status());
    return;
  }
  const std::uint64_t committed =
      work->origin.commit.has_value() ? work->origin.commit->weights.version.step : 0;
  state.failures = committed > state.last_commit ? 0 : state.failures;
  state.last_commit = committed;
  state.parts = state.deps.spawn(work->origin, work->prepared.value(),
                                 caf::actor_cast<RunListenerActor>(self));
  for (const CorePart& part : state.parts.core) {
    state.core.emplace_back(part.actor.address(), part.name);
    self->monitor(part.actor);
  }
  start_workers(self);
  state.phase = Phase::kRunning;
  state.parts.start();
  if (state.stop_requested) {
    state.parts.stop();
  }
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
  if (state.cancelled) {
    end_run(self, cancelled_status());
    return;
  }
  if (would_repeat(state.failure) || ++state.failures > state.deps.max_restarts) {
    end_run(self, state.failure);
    return;
  }
  ++state.incarnation;
  state.deps.log(state.failure.message() + "; restarting from the last commit incarnation=" +
                 std::to_string(state.incarnation));
  forget_parts(state);
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

void cancel(Self self) {
  self->state.cancelled = true;
  if (self->state.phase == Phase::kRunning) {
    end_parts(self, caf::exit_reason::kill);
  }
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
  const bool dropped = std::ranges::any_of(state.parts.core, [&](const CorePart& part) {
    return part.name == name && part.on_failure == FailurePolicy::kDrop;
  });
  if (dropped) {
    return;
  }
  Status failure = from_caf_error(reason).with_context(name);
  if (failure.ok()) {
    failure = {Errc::kInternal, name + " ended before the run did"};
  }
  end_after_failure(self, std::move(failure));
}

// No later incarnation has this worker.
void forget_worker(Self self, const std::string& name) {
  auto& state = self->state;
  std::erase_if(state.specs, [&](const WorkerSpec& spec) { return spec.name == name; });
  const auto added =
      std::erase_if(state.added, [&](const AddedWorker& a) { return a.name == name; });
  if (added == 0) {
    state.removed.insert(name);
  }
}

// Logs the end of a worker, unless that of its process is in the log already.
void log_worker_end(Self self, const std::string& name, const Status& why, const WorkerEnd& end) {
  auto& state = self->state;
  if (const auto explained = state.explained.extract(name);
      !explained.empty() && explained.mapped() == why.message()) {
    return;
  }
  const auto spec = std::ranges::find(state.specs, name, &WorkerSpec::name);
  std::size_t others = 0;
  if (end.action == WorkerEnd::Action::kRestart && spec != state.specs.end() &&
      !spec->process.empty() && why.message().starts_with(spec->process + ": ")) {
    for (const auto& [address, running] : state.workers) {
      const auto other = std::ranges::find(state.specs, running, &WorkerSpec::name);
      if (other != state.specs.end() && other->process == spec->process) {
        state.explained[running] = why.message();
        ++others;
      }
    }
  }
  state.deps.log(others == 0 ? end.note
                             : why.message() + "; its " + std::to_string(others + 1) +
                                   " workers will be restarted");
}

void on_worker_down(Self self, const std::string& name, const caf::error& reason) {
  auto& state = self->state;
  if (state.phase != Phase::kRunning) {
    continue_when_all_ended(self);
    return;
  }
  const bool known = state.table.find(name) != nullptr;
  const Status why = from_caf_error(reason);
  WorkerEnd end = state.table.ended(name, why, self->clock().now());
  if (end.action == WorkerEnd::Action::kFailRun) {
    end_after_failure(self, std::move(end.failure));
    return;
  }
  if (end.wanted) {
    inform(state, end.note);
  } else if (!end.note.empty()) {
    log_worker_end(self, name, why, end);
  }
  if (state.parts.release) {
    state.parts.release(name);
  }
  if (end.action == WorkerEnd::Action::kRestart) {
    self->delayed_send(self, end.delay, atom::wake_v, name);
  } else if (known) {
    forget_worker(self, name);  // it was dropped or drained
  }
}

void on_down(Self self, const caf::down_msg& down) {
  auto& state = self->state;
  if (const auto part = remove_from(state.core, down.source); part.has_value()) {
    on_core_down(self, *part, down.reason);
  } else if (const auto worker = remove_from(state.workers, down.source); worker.has_value()) {
    on_worker_down(self, *worker, down.reason);
  }
}

void restart_worker(Self self, const std::string& name) {
  auto& state = self->state;
  const WorkerStatus* worker = state.table.find(name);
  if (state.phase != Phase::kRunning || worker == nullptr ||
      worker->state != WorkerState::kWaiting) {
    return;
  }
  state.table.restarted(name, self->clock().now());
  for (const WorkerSpec& spec : state.specs) {
    if (spec.name == name) {
      spawn_worker(self, spec);
    }
  }
}

caf::error not_running() {
  return to_caf_error({Errc::kUnavailable, "the run is starting or ending"});
}

// Numbers are not used twice: the stream may still know the consumer of an earlier worker.
std::uint32_t next_number(const SupervisorState& state, const std::string& kind) {
  const auto initial = std::ranges::count_if(
      state.parts.workers, [&](const WorkerSpec& spec) { return spec.kind == kind; });
  const auto last = state.last_added.find(kind);
  return last == state.last_added.end() ? static_cast<std::uint32_t>(initial) : last->second + 1;
}

caf::result<WorkerStatus> add_worker(Self self, const std::string& kind) {
  auto& state = self->state;
  if (state.phase != Phase::kRunning) {
    return not_running();
  }
  if (!state.parts.make_worker) {
    return to_caf_error({Errc::kNotFound, "this run has no workers of kind " + kind});
  }
  if (state.table.workers().size() >= state.deps.max_workers) {
    const std::string why =
        "the run has " + std::to_string(state.deps.max_workers) + " workers, the maximum";
    if (!std::exchange(state.told_full, true)) {
      state.deps.log("no " + kind + " worker was added: " + why);
    }
    return to_caf_error({Errc::kResourceExhausted, why});
  }
  const std::uint32_t number = next_number(state, kind);
  auto spec = state.parts.make_worker(kind, number);
  if (!spec.ok()) {
    return to_caf_error(spec.status());
  }
  const std::string name = spec.value().name;
  state.told_full = false;
  state.last_added[kind] = number;
  state.added.push_back({name, kind, number});
  start_worker(self, std::move(spec).value());
  inform(state, name + " was added");
  return *state.table.find(name);
}

// The actor of a worker, or null if it does not run.
caf::actor running_worker(const SupervisorState& state, const std::string& name) {
  for (const auto& [address, of] : state.workers) {
    if (of == name) {
      return caf::actor_cast<caf::actor>(address);
    }
  }
  return {};
}

caf::result<WorkerStatus> drain_worker(Self self, const std::string& name) {
  auto& state = self->state;
  if (state.phase != Phase::kRunning) {
    return not_running();
  }
  if (const Status status = state.table.drain(name); !status.ok()) {
    return to_caf_error(status);
  }
  forget_worker(self, name);
  if (const caf::actor worker = running_worker(state, name)) {
    caf::anon_send(worker, atom::drain_v);
  }
  return *state.table.find(name);
}

caf::result<WorkerStatus> remove_worker(Self self, const std::string& name) {
  auto& state = self->state;
  if (state.phase != Phase::kRunning) {
    return not_running();
  }
  const WorkerStatus* found = state.table.find(name);
  const WorkerStatus before = found == nullptr ? WorkerStatus{} : *found;
  if (const Status status = state.table.remove(name); !status.ok()) {
    return to_caf_error(status);
  }
  forget_worker(self, name);
  inform(state, name + " was removed");
  if (const caf::actor worker = running_worker(state, name)) {
    self->send_exit(worker, caf::exit_reason::kill);
  }
  return before;
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
      [self](atom::cancel) { cancel(self); },
      [self](atom::worked) { on_prepared(self); },
      [self](atom::add, const std::string& kind) { return add_worker(self, kind); },
      [self](atom::drain, const std::string& name) { return drain_worker(self, name); },
      [self](atom::remove, const std::string& name) { return remove_worker(self, name); },
      [self](atom::status) { return WorkerList{self->state.table.workers()}; },
      [self](atom::wake, const std::string& name) { restart_worker(self, name); },
  };
}

}  // namespace

SupervisorActor spawn_supervisor(caf::actor_system& system, SupervisorDeps deps) {
  return system.spawn(supervisor, std::move(deps));
}

}  // namespace tidemill::actors
