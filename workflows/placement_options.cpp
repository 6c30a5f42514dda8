// SPDX-License-Identifier: Apache-2.0
#include "workflows/placement_options.hpp"

#include <algorithm>

namespace tidemill::workflows {

std::uint32_t num_workers(const RewardPlacement& placement) {
  return static_cast<std::uint32_t>(placement.workers.value_or(std::max(placement.processes, 1)));
}

std::int32_t child_processes(const RolloutPlacement& role) {
  return role.transport == TransportChoice::kLoopback ? 0 : role.processes;
}

std::int32_t child_processes(const RewardPlacement& role) {
  return role.transport == TransportChoice::kLoopback ? 0 : role.processes;
}

std::int32_t child_processes(const PlacementOptions& placement) {
  return child_processes(placement.rollout) + child_processes(placement.reward);
}

bool has_processes(const PlacementOptions& placement) {
  return placement.rollout.processes > 0 || placement.reward.processes > 0;
}

void describe(EnumSchema<TransportChoice>& e) {
  e.name("auto", TransportChoice::kAuto, "The fastest one that can be used.")
      .name("loopback", TransportChoice::kLoopback,
            "The memory of the process of the run: threads of it take the place of the processes. "
            "For looking for errors.")
      .name("shm", TransportChoice::kShm, "Shared memory.")
      .name("zmq", TransportChoice::kZmq, "ZeroMQ, over sockets of this machine.");
}

void describe(Schema<RewardPlacement>& s) {
  s.field("processes", &RewardPlacement::processes,
          "Processes that score responses; 0: the process of the run does. A process that dies is "
          "started again.")
      .range(0, kMaxRewardProcesses)
      .also_called({"num_processes"});
  s.field("workers", &RewardPlacement::workers,
          "Workers in all these processes together, each of which scores with its own reward. "
          "Default: one for each process.")
      .range(1, 256)
      .also_called({"num_workers"});
  s.field("transport", &RewardPlacement::transport,
          "How the processes exchange messages with the process of the run.");
  s.check("workers", [](const RewardPlacement& o) {
    return o.workers.has_value() && *o.workers < o.processes ? "must be at least processes" : "";
  });
}

void describe(Schema<RolloutPlacement>& s) {
  s.field("processes", &RolloutPlacement::processes,
          "Processes that generate responses, each with the whole model and `rollout.workers` "
          "workers; 0: the process of the run does. A process that dies is started again.")
      .range(0, kMaxRolloutProcesses)
      .also_called({"num_processes", "allocation_mode", "rollout_num_gpus"});
  s.field("transport", &RolloutPlacement::transport,
          "How the processes exchange messages with the process of the run.");
}

void describe(Schema<PlacementOptions>& s) {
  s.field("rollout", &PlacementOptions::rollout, "Where responses are generated.");
  s.field("reward", &PlacementOptions::reward, "Where responses are scored.");
}

}  // namespace tidemill::workflows
