// SPDX-License-Identifier: Apache-2.0
// What a program that embeds Tidemill adds to its runs.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include <caf/fwd.hpp>

#include "base/clock.hpp"
#include "base/result.hpp"
#include "base/schema_types.hpp"
#include "engines/reward_engine.hpp"
#include "engines/rl/algorithm_options.hpp"

namespace tidemill::workflows {

/// What the engine of a reward kind of one's own is made with.
struct RewardPlace {
  caf::actor_system& system;        // for engines that ask actors (actors/reward/judge_engine.hpp)
  const Clock& clock;               // outlives the engine
  std::filesystem::path directory;  // the run's
};

/// Makes the engine of a reward kind from the options that the schema read.
/// Errors: naming the option ("pattern: is missing").
using MakeReward = std::function<Result<std::unique_ptr<engines::RewardEngine>>(
    const OneOf& scoring, const RewardPlace& place)>;

/// What a run knows beside what Tidemill brings. Names are those that the schema was given:
/// `schema.add_kind<MyReward>("reward", "mine", ...)`, `schema.add_preset("algorithm", "mine",
/// ...)`.
struct Extensions {
  std::map<std::string, MakeReward> rewards;                     // by kind
  std::map<std::string, engines::AdvantageFunction> advantages;  // by the algorithm's row
};

}  // namespace tidemill::workflows
