// SPDX-License-Identifier: Apache-2.0
// A worker process of a run, from the inside.
#pragma once

#include <functional>
#include <string>

#include <caf/fwd.hpp>

#include "actors/stream/handles.hpp"
#include "actors/supervisor/spawn.hpp"
#include "base/result.hpp"
#include "workflows/processes/worker_address.hpp"

namespace tidemill::workflows {

/// What the workers of a process use.
struct WorkerConnections {
  caf::actor_system& system;
  actors::StreamConsumerActor stream;
  std::function<void(const std::string&)> log;  // sends a line to the log of the run
};

/// Makes the worker of this kind and number. Errors: `kNotFound` if there are no such workers.
using MakeWorker = std::function<Result<actors::WorkerSpec>(
    const WorkerConnections& connections, const std::string& kind, std::uint32_t number)>;

/// Runs the workers that the process of the run starts, until that ends this process, or the link
/// to it has ended. Blocks. Requires `begin_worker_process`. Errors: `kUnavailable` with the reason
/// if the link has ended.
[[nodiscard]] Status run_worker_process(const WorkerProcessAddress& address,
                                        const MakeWorker& make_worker);

}  // namespace tidemill::workflows
