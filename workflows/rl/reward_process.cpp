// SPDX-License-Identifier: Apache-2.0
#include "workflows/rl/reward_process.hpp"

#include <memory>
#include <utility>
#include <vector>

#include "actors/data/text_codec.hpp"
#include "actors/work/work_port.hpp"
#include "base/clock.hpp"
#include "workflows/model_run.hpp"
#include "workflows/process_limits.hpp"
#include "workflows/processes/worker_process.hpp"
#include "workflows/rewards.hpp"
#include "workflows/rl/reward_plan.hpp"
#include "workflows/rl/reward_role.hpp"

namespace tidemill::workflows {
namespace {

// One port for each worker of a process, whose rewards may block.
Result<std::vector<std::unique_ptr<actors::WorkPort>>> start_ports(
    const RewardPlacement& placement) {
  const auto processes = static_cast<std::uint32_t>(placement.processes);
  std::vector<std::unique_ptr<actors::WorkPort>> ports;
  while (ports.size() * processes < num_workers(placement)) {
    TIDEMILL_ASSIGN_OR_RETURN(ports.emplace_back(),
                              start_port("reward-" + std::to_string(ports.size())));
  }
  return ports;
}

}  // namespace

Status run_reward_process(const RlOptions& options, const RewardProcess& process) {
  TIDEMILL_ASSIGN_OR_RETURN(
      const actors::TextCodec codec,
      actors::TextCodec::load(options.model.path, process.started, chat_options(options.data)));
  TIDEMILL_ASSIGN_OR_RETURN(const auto ports, start_ports(options.placement.reward));
  const SystemClock clock;
  return run_worker_process(
      process.address,
      [&](const WorkerConnections& connections, const std::string& kind,
          std::uint32_t number) -> Result<actors::WorkerSpec> {
        RewardRoleOptions role = reward_role_options(options, codec, [&] {
          return make_rewards(options.reward,
                              {{connections.system, clock, process.directory}, process.extensions});
        });
        role.log = connections.log;
        for (const auto& port : ports) {
          role.ports.push_back(port.get());
        }
        const WorkerFactory factory =
            reward_worker_factory(connections.system, role, {connections.stream});
        if (kind != factory.kind) {
          return Status(Errc::kNotFound, "a reward process has no workers of kind " + kind);
        }
        // Workers of one process have numbers that differ by the number of processes.
        return factory.make(number);
      });
}

}  // namespace tidemill::workflows
