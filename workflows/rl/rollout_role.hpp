// SPDX-License-Identifier: Apache-2.0
// The role "rollout" of a reinforcement-learning run: devices that serve, and rollout workers.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <caf/fwd.hpp>

#include "actors/device/spawn.hpp"
#include "actors/rollout/spawn.hpp"
#include "actors/stream/handles.hpp"
#include "workflows/rl/role_workers.hpp"

namespace tidemill::workflows {

/// What a model's runtime offers to a device. The runtime outlives the device.
struct DeviceEngines {
  engines::RolloutEngine* rollout = nullptr;
  engines::TrainingJob* train = nullptr;       // null: the device only serves
  engines::NamedAdapters* adapters = nullptr;  // null: requests name no adapters
  actors::OpenAdapter open_adapter;
};

/// Options of the role.
struct RolloutRoleOptions {
  std::uint32_t workers = 1;
  /// Template of the workers. The role fills in handles and names.
  actors::RolloutWorkerDeps worker;
  actors::FailurePolicy on_failure = actors::FailurePolicy::kRestart;  // of a worker
  /// Of a device that only serves. With `kDrop` the run goes on with the others.
  actors::FailurePolicy on_device_failure = actors::FailurePolicy::kFailRun;
  engines::ExecutorOptions executor;
  actors::LossFactory make_loss;                // of the device that trains
  std::vector<actors::WorkPort*> device_ports;  // one per device; they outlive the run
};

/// The devices of a process. At most the first one trains.
struct DeviceHandles {
  std::vector<actors::ServingDevice> devices;
  actors::TrainingActor training;      // null: none
  std::vector<actors::CorePart> core;  // the devices, for the supervisor
};

/// What the workers of the role send messages to.
struct RolloutConnections {
  actors::StreamConsumerActor stream;
  actors::ServingActor serving;
};

/// Starts the devices of a process. `runtime` keeps their engines alive. They need no connection,
/// so they start before the owner, which has them load versions.
[[nodiscard]] DeviceHandles start_devices(caf::actor_system& system,
                                          const RolloutRoleOptions& options,
                                          const std::vector<DeviceEngines>& engines,
                                          const std::shared_ptr<void>& runtime);

/// Returns the rollout workers, for a supervisor to start.
[[nodiscard]] RoleWorkers start_rollout(caf::actor_system& system,
                                        const RolloutRoleOptions& options,
                                        const RolloutConnections& connections);

}  // namespace tidemill::workflows
