// SPDX-License-Identifier: Apache-2.0
#include "workflows/rl/reward_role.hpp"

#include <caf/all.hpp>

namespace tidemill::workflows {

using namespace tidemill::actors;  // NOLINT(google-build-using-namespace): this file connects them

WorkerFactory reward_worker_factory(caf::actor_system& system, const RewardRoleOptions& options,
                                    const RewardConnections& connections) {
  return {"reward", options.workers, [&system, options, connections](std::uint32_t number) {
            RewardWorkerDeps deps;
            deps.name = "reward-" + std::to_string(number);
            deps.max_in_flight = options.max_in_flight;
            deps.stream = connections.stream;
            deps.decode = options.decode;
            deps.port = options.ports.at(number % options.ports.size());
            deps.log = options.log;
            return WorkerSpec{
                deps.name,
                [&system, deps, number, make = options.make_reward]() mutable {
                  deps.engine = make(number);  // the old engine may hang
                  return caf::actor_cast<caf::actor>(spawn_reward_worker(system, deps));
                },
                "reward", options.on_failure};
          }};
}

}  // namespace tidemill::workflows
