// SPDX-License-Identifier: Apache-2.0
// The rewards and algorithms that an embedding program adds to its runs.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include <caf/fwd.hpp>

#include "base/clock.hpp"
#include "base/result.hpp"
#include "base/schema/types.hpp"
#include "engines/reward_engine.hpp"
#include "engines/rl/algorithm_options.hpp"

namespace tidemill::workflows {

/// What a `MakeReward` function may use.
struct RewardEnvironment {
  caf::actor_system& system;  // for engines that call actors (actors/reward/scorer_engine.hpp)
  const Clock& clock;         // outlives the engine
  std::filesystem::path directory;  // of the run
};

/// Makes the engine of a custom reward kind. `scoring` holds the options that the schema read.
/// Errors: messages that begin with the option ("pattern: is missing").
using MakeReward = std::function<Result<std::unique_ptr<engines::RewardEngine>>(
    const OneOf& scoring, const RewardEnvironment& environment)>;

/// The custom rewards and algorithms of a run. The keys of the maps are the names under which the
/// program added them to the schema: `schema.add_kind<MyReward>("reward", "mine", ...)` and
/// `schema.add_preset("algorithm", "mine", ...)`.
struct Extensions {
  std::map<std::string, MakeReward> rewards;                     // by kind
  std::map<std::string, engines::AdvantageFunction> advantages;  // by algorithm name
};

}  // namespace tidemill::workflows
