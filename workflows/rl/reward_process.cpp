// SPDX-License-Identifier: Apache-2.0
#include "workflows/rl/reward_process.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/data/text_codec.hpp"
#include "actors/work/work_port.hpp"
#include "base/clock.hpp"
#include "engines/reward/factory.hpp"
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

bool starts_program(const RewardOptions& reward) {
  return reward.scoring.get<CommandReward>() != nullptr;
}

}  // namespace

Status run_reward_process(const RlOptions& options, const RewardProcess& process) {
  if (!is_of_this_process(process.address) && std::ranges::any_of(options.reward, starts_program)) {
    TIDEMILL_RETURN_IF_ERROR(engines::start_program_guard());
  }
  TIDEMILL_ASSIGN_OR_RETURN(const auto ports, start_ports(options.placement.reward));
  const SystemClock clock;
  std::optional<actors::TextCodec> codec;
  std::map<std::uint32_t, std::size_t> ports_of;  // workers
  const auto make = [&](const WorkerConnections& connections, const std::string& kind,
                        std::uint32_t number) -> Result<actors::WorkerSpec> {
    if (!codec.has_value()) {  // only now, so that the run learns of a failure
      TIDEMILL_ASSIGN_OR_RETURN(codec, actors::TextCodec::load(options.model.path, process.started,
                                                               chat_options(options.data)));
    }
    RewardRoleOptions role = reward_role_options(
        options, *codec, [&options, &process, &clock, &system = connections.system] {
          return make_rewards(options.reward,
                              {{system, clock, process.directory}, process.extensions});
        });
    role.log = connections.log;
    // A worker that is started again keeps its port.
    const auto port = ports_of.try_emplace(number, ports_of.size() % ports.size()).first;
    role.ports = {ports[port->second].get()};
    const WorkerFactory factory =
        reward_worker_factory(connections.system, role, {connections.stream});
    if (kind != factory.kind) {
      return Status(Errc::kNotFound, "a reward process has no workers of kind " + kind);
    }
    return factory.make(number);
  };
  const PrepareProcess prepare = [&make](const WorkerConnections& connections) {
    return [&make, connections](const std::string& kind, std::uint32_t number) {
      return make(connections, kind, number);
    };
  };
  return run_worker_process(process.address, prepare, process.stop);
}

}  // namespace tidemill::workflows
