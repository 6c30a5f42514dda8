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

RemoteWorkerActor::behavior_type remote_worker(RemoteWorkerActor::pointer self,
                                               const WorkerStarterActor& starter,
                                               const StartWorker& worker, Duration deadline) {
  end_with(self, starter);
  self->request(starter, deadline + kGateMargin, atom::start_v, worker)
      .then([](const WorkerStatus&) {}, [self](const caf::error& error) { self->quit(error); });
  return {
      [self, starter, name = worker.name](atom::drain) {
        self->send(starter, atom::drain_v, name);
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
