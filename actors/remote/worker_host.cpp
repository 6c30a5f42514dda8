// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <utility>

#include <caf/all.hpp>

#include "actors/errors.hpp"
#include "actors/remote/spawn.hpp"

namespace tidemill::actors {
namespace {

struct WorkerHostState {
  static inline const char* name = "worker_host";
  WorkerHostState() = default;  // not an aggregate: CAF would build it from `self`

  struct Worker {
    caf::actor actor;
    std::uint64_t start = 0;
  };

  WorkerHostDeps deps;
  std::map<std::string, Worker> workers;  // by name
};

using Self = WorkerHostActor::stateful_pointer<WorkerHostState>;

Status start(Self self, const StartWorker& wanted) {
  auto& state = self->state;
  if (state.workers.contains(wanted.name)) {
    return {Errc::kUnavailable, "worker host: a worker " + wanted.name + " runs already"};
  }
  TIDEMILL_ASSIGN_OR_RETURN(const WorkerSpec spec,
                            state.deps.make_worker(wanted.kind, wanted.number));
  if (spec.name != wanted.name) {
    return invalid_argument("worker host: worker " + std::to_string(wanted.number) + " of kind " +
                            wanted.kind + " is " + spec.name + " here, not " + wanted.name);
  }
  const caf::actor worker = spec.spawn();
  self->monitor(worker);
  state.workers[wanted.name] = {worker, wanted.start};
  return {};
}

void on_request(Self self, const PeerMessage& message) {
  auto& state = self->state;
  if (message.kind == MessageKind::kStartWorker) {
    const auto wanted = from_wire<StartWorker>(message.body);
    const Status started = wanted.ok() ? start(self, wanted.value()) : wanted.status();
    if (started.ok()) {
      state.deps.port->reply(message.number, MessageKind::kDone, Buffer());
    } else {
      state.deps.port->reply(message.number, MessageKind::kFailure, to_wire(started));
    }
    return;
  }
  const auto named = from_wire<StartedWorker>(message.body);
  const auto worker = named.ok() ? state.workers.find(named.value().name) : state.workers.end();
  if (worker == state.workers.end() || worker->second.start != named.value().start) {
    return;  // it has ended
  }
  const caf::actor& actor = worker->second.actor;
  if (message.kind == MessageKind::kDrainWorker) {
    caf::anon_send(actor, atom::drain_v);
  } else if (message.kind == MessageKind::kStopWorker) {
    self->demonitor(actor.address());
    self->send_exit(actor, caf::exit_reason::kill);
    state.workers.erase(worker);
  }
}

void on_down(Self self, const caf::down_msg& down) {
  auto& state = self->state;
  for (auto worker = state.workers.begin(); worker != state.workers.end(); ++worker) {
    if (worker->second.actor.address() == down.source) {
      state.deps.port->tell(
          MessageKind::kWorkerEnded,
          to_wire(WorkerEnded{worker->first, from_caf_error(down.reason), worker->second.start}));
      state.workers.erase(worker);
      return;
    }
  }
}

WorkerHostActor::behavior_type worker_host(Self self, WorkerHostDeps deps) {
  self->state.deps = std::move(deps);
  self->set_down_handler([self](const caf::down_msg& down) { on_down(self, down); });
  self->attach_functor([port = self->state.deps.port] { port->close("its host has ended"); });
  return {
      [self](atom::deliver, const PeerMessagePtr& message) {
        if (message->call == 0) {
          on_request(self, *message);
        }
      },
      [self](atom::closed, const std::string& reason) {
        for (const auto& [name, worker] : self->state.workers) {
          self->send_exit(worker.actor, caf::exit_reason::kill);
        }
        self->state.workers.clear();
        self->state.deps.on_end(reason);
        self->quit();
      },
      [self](atom::record, const std::string& line) {
        self->state.deps.port->tell(MessageKind::kLogLine, to_wire(LogLine{line}));
      },
  };
}

}  // namespace

WorkerHostActor spawn_worker_host(caf::actor_system& system, WorkerHostDeps deps) {
  return system.spawn(worker_host, std::move(deps));
}

}  // namespace tidemill::actors
