// SPDX-License-Identifier: Apache-2.0
// The workers of a role in processes of their own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <caf/fwd.hpp>

#include "actors/keeper/handles.hpp"
#include "actors/stream/handles.hpp"
#include "actors/wire/serving_messages.hpp"
#include "actors/work/work_port.hpp"
#include "workflows/actor_end.hpp"
#include "workflows/processes/core_plan.hpp"
#include "workflows/processes/process_hub.hpp"
#include "workflows/processes/process_table.hpp"
#include "workflows/rl/worker_factory.hpp"

namespace tidemill::workflows {

/// The devices of a role's processes.
struct ProcessDevices {
  actors::StartDevice start;  // without `segments`
  actors::RosterActor roster;
  actors::WorkPort* work = nullptr;  // lends weights; outlives `WorkerProcessesOptions::ends`
};

/// The processes of a role.
struct WorkerProcessesOptions {
  std::string role;             // also the kind of its workers
  std::uint32_t processes = 1;  // at the start of the run
  std::uint32_t workers = 1;    // in all of them
  TransportChoice transport = TransportChoice::kAuto;
  /// The log of the run. Takes lines of the workers, and lines about the processes.
  std::function<void(const std::string&)> log;
  /// By process. One without cores of its own shares those of the process of the run.
  std::vector<CoreList> cores = {};
  std::shared_ptr<ProcessTable> table = {};  // has the role; may be null
  /// Gets the actors that use the hub and `ProcessDevices::work`, which both outlive them.
  std::shared_ptr<ActorEnds> ends = std::make_shared<ActorEnds>();
  std::optional<ProcessDevices> devices = {};  // absent: the processes have no devices
};

/// Returns a factory of workers, each in one of the role's processes. The actor of a worker is a
/// remote worker. A process is started for the first worker that needs it. When a process ends, its
/// remote workers end with the reason, and the next worker placed in it starts a replacement. A
/// process that ends three times in a row before one of its workers has run is given up: its
/// workers leave the run, until the number of processes is set again. If no other process of the
/// role is running, the workers end with `kResourceExhausted` instead, which ends the run. If none
/// serves, a failure that would repeat ends the run the first time.
///
/// Destroying the last copy of the factory and of the specs that it has made ends the processes. It
/// does not wait for them. `system` and `hub` must outlive these copies and the actors of
/// `WorkerProcessesOptions::ends`.
[[nodiscard]] WorkerFactory remote_worker_factory(caf::actor_system& system, ProcessHub& hub,
                                                  const WorkerProcessesOptions& options,
                                                  std::uint32_t incarnation,
                                                  const actors::StreamConsumerActor& stream);

}  // namespace tidemill::workflows
