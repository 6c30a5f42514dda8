// SPDX-License-Identifier: Apache-2.0
// Spawns an evaluator.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <caf/fwd.hpp>

#include "actors/device/handles.hpp"
#include "actors/evaluator/handles.hpp"
#include "actors/source/spawn.hpp"
#include "actors/work/work_port.hpp"
#include "engines/reward_engine.hpp"
#include "engines/sampling/sampling_options.hpp"

namespace tidemill::actors {

/// Dependencies of an evaluator.
struct EvaluatorDeps {
  ServingActor serving;
  std::shared_ptr<engines::RewardEngine> engine;
  std::function<std::string(const std::vector<std::int32_t>&)> decode;
  std::vector<Prompt> prompts;
  std::uint32_t samples = 1;  // of each prompt
  engines::SamplingOptions sampling;
  std::uint64_t seed = 0;
  std::int32_t max_new_tokens = 1;
  std::vector<std::int32_t> stop_ids;
  std::vector<std::string> stop_strings;
  /// The maximum number of requests at the device at the same time, at least 1. It bounds how many
  /// responses of an evaluation a rollout may have to wait for.
  std::uint32_t max_in_flight = 256;
  /// How long the device may take to reply to a request, including the time that the request waits
  /// behind rollouts.
  Duration response_deadline = std::chrono::hours(24);
  /// How long one step of the reward engine may wait for an external program.
  Duration patience = std::chrono::milliseconds(200);
  WorkPort* port = nullptr;  // outlives the evaluator
};

/// Spawns an evaluator.
[[nodiscard]] EvaluatorActor spawn_evaluator(caf::actor_system& system, EvaluatorDeps deps);

}  // namespace tidemill::actors
