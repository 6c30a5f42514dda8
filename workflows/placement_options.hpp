// SPDX-License-Identifier: Apache-2.0
// The keys of section `placement`: in which processes the roles of a run work. The help texts in
// placement_options.cpp explain the keys.
#pragma once

#include <cstdint>
#include <optional>

#include "base/schema/schema.hpp"

namespace tidemill::workflows {

/// How the process of a run and another one exchange messages.
enum class TransportChoice : std::uint8_t { kAuto, kLoopback, kShm, kZmq };

/// The most processes of each role.
inline constexpr std::int32_t kMaxRolloutProcesses = 32;
inline constexpr std::int32_t kMaxRewardProcesses = 64;

/// Where the workers of the role "reward" are.
struct RewardPlacement {
  std::int32_t processes = 0;           // 0: the workers are in the process of the run
  std::optional<std::int32_t> workers;  // absent: one in each process
  TransportChoice transport = TransportChoice::kAuto;
};

/// Where responses are generated.
struct RolloutPlacement {
  std::int32_t processes = 0;  // 0: the process of the run generates
  TransportChoice transport = TransportChoice::kAuto;
};

/// Where the roles of a run are.
struct PlacementOptions {
  RolloutPlacement rollout;
  RewardPlacement reward;
};

/// Returns the number of processes of a role that run besides that of the run. The others are
/// threads of the process of the run.
[[nodiscard]] std::int32_t child_processes(const RolloutPlacement& role);
[[nodiscard]] std::int32_t child_processes(const RewardPlacement& role);
/// The same for all roles.
[[nodiscard]] std::int32_t child_processes(const PlacementOptions& placement);

/// Returns whether the run has processes besides its own, or threads in their place.
[[nodiscard]] bool has_processes(const PlacementOptions& placement);

/// Returns the number of workers.
[[nodiscard]] std::uint32_t num_workers(const RewardPlacement& placement);

void describe(EnumSchema<TransportChoice>& e);
void describe(Schema<RewardPlacement>& s);
void describe(Schema<RolloutPlacement>& s);
void describe(Schema<PlacementOptions>& s);

}  // namespace tidemill::workflows
