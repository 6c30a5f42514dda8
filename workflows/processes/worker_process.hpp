// SPDX-License-Identifier: Apache-2.0
// A worker process of a run, from the inside.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>

#include <caf/fwd.hpp>

#include "actors/remote/peer_port.hpp"
#include "actors/stream/handles.hpp"
#include "actors/supervisor/spawn.hpp"
#include "base/result.hpp"
#include "workflows/processes/worker_address.hpp"

namespace tidemill::workflows {

/// What the actors of a process use.
struct WorkerConnections {
  caf::actor_system& system;
  actors::StreamConsumerActor stream;
  std::function<void(const std::string&)> log;  // sends a line to the log of the run
  std::shared_ptr<actors::PeerPort> port;       // not opened yet
};

/// Makes the worker of this kind and number. Errors: `kNotFound` if there are no such workers.
using MakeWorker =
    std::function<Result<actors::WorkerSpec>(const std::string& kind, std::uint32_t number)>;
/// Prepares the process before it gets messages, and returns how its workers are made.
using PrepareProcess = std::function<MakeWorker(const WorkerConnections& connections)>;

/// Runs the workers that the process of the run starts, until that ends this process, `stop` asks
/// for it, or the link to it has ended. Blocks. Requires `begin_worker_process`, unless a thread of
/// the process of the run works in the place of a process (`is_of_this_process`).
/// Errors: `kResourceExhausted` if a thread cannot be started; `kUnavailable` with the reason if
/// the link has ended.
[[nodiscard]] Status run_worker_process(const WorkerProcessAddress& address,
                                        const PrepareProcess& prepare,
                                        const std::stop_token& stop = {});

}  // namespace tidemill::workflows
