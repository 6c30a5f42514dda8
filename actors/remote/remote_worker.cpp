// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include <caf/all.hpp>

#include "actors/end_with.hpp"
#include "actors/errors.hpp"
#include "actors/remote/spawn.hpp"

namespace tidemill::actors {
namespace {

// How much later than the process itself the gate may reply.
constexpr Duration kGateMargin = std::chrono::seconds(10);

struct RemoteWorkerState {
  static inline const char* name = "remote_worker";
  RemoteWorkerState() = default;  // not an aggregate: CAF would build it from `self`

  bool started = false;  // the worker runs
};

using Self = RemoteWorkerActor::stateful_pointer<RemoteWorkerState>;

RemoteWorkerActor::behavior_type remote_worker(Self self, const WorkerStarterActor& starter,
                                               const StartWorker& worker, Duration deadline) {
  end_with(self, starter);
  self->request(starter, deadline + kGateMargin, atom::start_v, worker)
      .then([self](const WorkerStatus&) { self->state.started = true; },
            [self](const caf::error& error) {
              // If the starter has ended, `end_with` gets the reason.
              if (error != caf::sec::request_receiver_down) {
                self->quit(error);
              }
            });
  return {
      [self, starter, name = worker.name](atom::drain) {
        if (self->state.started) {
          self->send(starter, atom::drain_v, name);
        } else {
          self->quit();  // it holds nothing yet
        }
      },
      [self](atom::stop) { self->quit(); },
  };
}

}  // namespace

RemoteWorkerActor spawn_remote_worker(caf::actor_system& system, const WorkerStarterActor& starter,
                                      StartWorker worker, Duration deadline) {
  return system.spawn(remote_worker, starter, std::move(worker), deadline);
}

}  // namespace tidemill::actors
