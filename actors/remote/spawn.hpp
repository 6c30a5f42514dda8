// SPDX-License-Identifier: Apache-2.0
// Spawns the actors through which two processes reach each other's actors.
//
//   process of a worker                          process of the stream (the owner of the run)
//   worker -> stream proxy -> port  == link ==>  port -> gate -> stream
//             worker host  <- port  <== link ==  port <- gate <- remote worker <- supervisor
//
// A worker holds a `StreamConsumerActor` and does not notice where the stream is. The supervisor
// sees a remote worker as it sees any other.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include <caf/fwd.hpp>

#include "actors/remote/handles.hpp"
#include "actors/remote/peer_port.hpp"
#include "actors/stream/handles.hpp"
#include "actors/supervisor/spawn.hpp"
#include "base/clock.hpp"
#include "base/result.hpp"

namespace tidemill::actors {

/// How long a process may take to start a worker, which may include the start of the process.
inline constexpr Duration kWorkerStartDeadline = std::chrono::minutes(5);

/// Dependencies of a worker gate.
struct WorkerGateDeps {
  std::string process;             // its name, such as "reward process 0", for messages
  std::shared_ptr<PeerPort> port;  // closed when the gate ends
  StreamConsumerActor stream;
  /// Takes a line of the process for the log of the run. May be empty.
  std::function<void(const std::string&)> log;
  /// Called when the gate has ended because the process is lost or breaks the rules, with the
  /// reason. Not called if the gate is killed. May be empty.
  std::function<void(const Status&)> on_end;
};

/// Spawns a worker gate. The caller then opens the port for it.
[[nodiscard]] WorkerGateActor spawn_worker_gate(caf::actor_system& system, WorkerGateDeps deps);

/// Spawns an actor that stands for the worker `worker`, which `starter` starts within `deadline`.
[[nodiscard]] RemoteWorkerActor spawn_remote_worker(caf::actor_system& system,
                                                    const WorkerStarterActor& starter,
                                                    StartWorker worker,
                                                    Duration deadline = kWorkerStartDeadline);

/// Spawns the proxy of the stream that is at the other end of `port`.
[[nodiscard]] StreamConsumerActor spawn_stream_proxy(caf::actor_system& system,
                                                     std::shared_ptr<PeerPort> port);

/// Dependencies of a worker host.
struct WorkerHostDeps {
  std::shared_ptr<PeerPort> port;  // closed when the host ends
  /// Returns the worker of this kind and number.
  std::function<Result<WorkerSpec>(const std::string& kind, std::uint32_t number)> make_worker;
  /// Called when the link has ended, with the reason.
  std::function<void(const std::string&)> on_end;
};

/// Spawns a worker host. The caller then opens the port for it.
[[nodiscard]] WorkerHostActor spawn_worker_host(caf::actor_system& system, WorkerHostDeps deps);

}  // namespace tidemill::actors
