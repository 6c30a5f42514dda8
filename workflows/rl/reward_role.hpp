// SPDX-License-Identifier: Apache-2.0
// The role "reward" of a reinforcement-learning run: workers that score responses.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <caf/fwd.hpp>

#include "actors/reward/spawn.hpp"
#include "actors/stream/handles.hpp"
#include "workflows/rl/worker_factory.hpp"

namespace tidemill::workflows {

/// Makes the reward engine of the worker with this number, or of the evaluator if there is none.
using MakeRewardEngine =
    std::function<std::shared_ptr<engines::RewardEngine>(std::optional<std::uint32_t>)>;

/// Options of the role.
struct RewardRoleOptions {
  std::uint32_t workers = 1;
  std::uint32_t max_in_flight = 64;                                    // rows, per worker
  actors::FailurePolicy on_failure = actors::FailurePolicy::kRestart;  // of a worker
  MakeRewardEngine make_reward;
  actors::DecodeText decode;
  /// Takes one line for each failure that the workers handled. Called from any thread.
  std::function<void(const std::string&)> log;
  /// The ports of the workers; not empty. Worker i uses port i modulo the number of ports. They
  /// outlive the run.
  std::vector<actors::WorkPort*> ports;
};

/// What the workers of the role send messages to.
struct RewardConnections {
  actors::StreamConsumerActor stream;
};

/// Returns the factory of the reward workers, for the supervisor. Every start of a worker makes a
/// new reward engine.
[[nodiscard]] WorkerFactory reward_worker_factory(caf::actor_system& system,
                                                  const RewardRoleOptions& options,
                                                  const RewardConnections& connections);

}  // namespace tidemill::workflows
