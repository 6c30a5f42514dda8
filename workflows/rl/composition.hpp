// SPDX-License-Identifier: Apache-2.0
// Defines which roles a reinforcement-learning run consists of, and how they are connected.
//
// Real, embedded and simulated runs differ only in the engines, ports, files and clocks in their
// `RlPlan`. The roles exchange only the messages of `StreamConsumerActor` and `ServingActor`. A
// program that lets devices join or leave sends the messages of `RosterActor`. The supervisor
// starts and ends the actors of all roles.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <caf/fwd.hpp>

#include "actors/supervisor/spawn.hpp"
#include "workflows/rl/owner_role.hpp"
#include "workflows/rl/reward_role.hpp"
#include "workflows/rl/rollout_role.hpp"

namespace tidemill::workflows {

/// The engines and record files of one incarnation, opened at the commit that it starts from
/// (`RunOrigin`).
struct RlEngines {
  std::shared_ptr<void> runtime;  // keeps the engines alive
  TrainingEngines training;
  std::vector<ServingEngines> serving_devices;  // of devices that only serve
  /// The owner's initial state, moved out when the owner starts. `spawn_rl_run` sets `restored` and
  /// `device`.
  OwnerState owner;
};

/// The parts of a run that all its incarnations share.
struct RlPlan {
  OwnerRoleOptions owner;
  RolloutRoleOptions rollout;
  RewardRoleOptions reward;
  std::function<Result<std::shared_ptr<RlEngines>>(const actors::RunOrigin&)> open_engines;
  /// Makes the factory of the reward workers of an incarnation, which are in other processes.
  /// Empty: they are in this process, as `reward` says.
  std::function<WorkerFactory(const actors::RunOrigin&, const actors::StreamConsumerActor&)>
      remote_reward;
  /// Makes the factory of the rollout workers of an incarnation, which are in other processes, each
  /// with a device that joins the run. Empty: they are in this process, as `rollout` says.
  std::function<WorkerFactory(const actors::RunOrigin&, const actors::StreamConsumerActor&,
                              const actors::RosterActor&)>
      remote_rollout;
  /// Replaces devices of an incarnation that only serve by proxies of devices in other processes.
  /// Empty: all of them are in this process.
  std::function<ServingDevices(ServingDevices)> remote_serving;
};

/// Callbacks of a run, its first incarnation, and how often it may restart.
struct RlHooks {
  std::function<void(Result<actors::RunSummary>)> on_end;
  /// Called with the actors of every incarnation before they start. May wrap the functions that
  /// make and spawn workers. For simulation.
  std::function<void(actors::RunParts&)> on_spawn;
  /// Called with the roster of every incarnation, which devices that only serve may join and leave.
  /// A device that joins is owned by the program that started it, not by the run. If it ends, the
  /// run goes on with the other devices or, if none of them serves, starts again.
  std::function<void(const actors::RosterActor&)> on_roster;
  std::uint32_t first_incarnation = 0;
  std::uint32_t max_restarts = 3;
};

/// Spawns the supervisor of a run, whose incarnations start all roles. The run begins when the
/// supervisor receives `atom::start`.
[[nodiscard]] actors::SupervisorActor spawn_rl_run(caf::actor_system& system, RlPlan plan,
                                                   RlHooks hooks);

}  // namespace tidemill::workflows
