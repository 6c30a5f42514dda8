// SPDX-License-Identifier: Apache-2.0
#include "workflows/rl/rollout_role.hpp"

#include <string>
#include <utility>

#include <caf/all.hpp>

namespace tidemill::workflows {

using namespace tidemill::actors;  // NOLINT(google-build-using-namespace): this file connects them

DeviceHandles start_devices(caf::actor_system& system, const RolloutRoleOptions& options,
                            const std::vector<DeviceEngines>& engines,
                            const std::shared_ptr<void>& runtime) {
  DeviceHandles handles;
  for (std::size_t i = 0; i < engines.size(); ++i) {
    DeviceDeps deps;
    deps.runtime = runtime;
    deps.rollout = engines[i].rollout;
    deps.train = engines[i].train;
    deps.make_loss = options.make_loss;
    deps.port = options.device_ports.at(i);
    deps.executor = options.executor;
    deps.adapters = engines[i].adapters;
    deps.open_adapter = engines[i].open_adapter;
    const DeviceActor device = spawn_device(system, std::move(deps));
    const bool trains = engines[i].train != nullptr;
    if (trains) {
      handles.training = device;
    }
    const std::string name = i == 0 ? "device" : "device-" + std::to_string(i);
    handles.devices.push_back({name, device});
    handles.core.push_back({name, caf::actor_cast<caf::actor>(device),
                            trains ? FailurePolicy::kFailRun : options.on_device_failure});
  }
  return handles;
}

RoleWorkers start_rollout(caf::actor_system& system, const RolloutRoleOptions& options,
                          const RolloutConnections& connections) {
  RolloutWorkerDeps deps = options.worker;
  deps.stream = connections.stream;
  deps.serving = connections.serving;
  return {"rollout", options.workers,
          [&system, deps, policy = options.on_failure](std::uint32_t number) mutable {
            deps.name = "rollout-" + std::to_string(number);
            return WorkerSpec{
                deps.name,
                [&system, deps] {
                  return caf::actor_cast<caf::actor>(spawn_rollout_worker(system, deps));
                },
                "rollout", policy};
          }};
}

}  // namespace tidemill::workflows
