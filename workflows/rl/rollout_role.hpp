// SPDX-License-Identifier: Apache-2.0
// The role "rollout" of a reinforcement-learning run: rollout workers, and devices that only serve.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <caf/fwd.hpp>

#include "actors/rollout/spawn.hpp"
#include "actors/stream/handles.hpp"
#include "workflows/rl/role_devices.hpp"
#include "workflows/rl/worker_factory.hpp"

namespace tidemill::workflows {

/// Options of the role.
struct RolloutRoleOptions {
  std::uint32_t workers = 1;
  /// Template of the workers. The role fills in handles and names.
  actors::RolloutWorkerDeps worker;
  actors::FailurePolicy on_failure = actors::FailurePolicy::kRestart;  // of a worker
  /// Of a device. With `kDrop` the run goes on with the others.
  actors::FailurePolicy on_device_failure = actors::FailurePolicy::kFailRun;
  std::vector<actors::WorkPort*> device_ports;  // one per device; they outlive the run
};

/// What the workers of the role send messages to.
struct RolloutConnections {
  actors::StreamConsumerActor stream;
  actors::ServingActor serving;
};

/// Starts a device for each of `engines`. The devices are named "device-1", "device-2" and so on.
/// `runtime` keeps the engines alive. The devices need no connection, so they start before the
/// owner, which has them load versions.
[[nodiscard]] ServingDevices start_serving_devices(caf::actor_system& system,
                                                   const RolloutRoleOptions& options,
                                                   const std::vector<ServingEngines>& engines,
                                                   const std::shared_ptr<void>& runtime);

/// Returns the factory of the rollout workers, for the supervisor.
[[nodiscard]] WorkerFactory rollout_worker_factory(caf::actor_system& system,
                                                   const RolloutRoleOptions& options,
                                                   const RolloutConnections& connections);

}  // namespace tidemill::workflows
