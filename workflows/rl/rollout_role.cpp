// SPDX-License-Identifier: Apache-2.0
#include "workflows/rl/rollout_role.hpp"

#include <string>
#include <utility>

#include <caf/all.hpp>

namespace tidemill::workflows {

using namespace tidemill::actors;  // NOLINT(google-build-using-namespace): this file connects them

ServingDevices start_serving_devices(caf::actor_system& system, const RolloutRoleOptions& options,
                                     const std::vector<ServingEngines>& engines,
                                     const std::shared_ptr<void>& runtime) {
  ServingDevices devices;
  for (std::size_t i = 0; i < engines.size(); ++i) {
    const ServingActor device =
        spawn_device(system, serving_deps(engines[i], runtime, options.device_ports.at(i)));
    const std::string name = "device-" + std::to_string(i + 1);
    devices.devices.push_back({name, device});
    devices.core.push_back({name, caf::actor_cast<caf::actor>(device), options.on_device_failure});
  }
  return devices;
}

WorkerFactory rollout_worker_factory(caf::actor_system& system, const RolloutRoleOptions& options,
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
