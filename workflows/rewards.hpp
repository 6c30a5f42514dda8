// SPDX-License-Identifier: Apache-2.0
// Makes reward engines from the `reward` section of a run.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "engines/reward_engine.hpp"
#include "workflows/extensions.hpp"
#include "workflows/reward_options.hpp"

namespace tidemill::workflows {

/// What reward engines are made with.
struct RewardContext {
  RewardEnvironment environment;  // its directory takes the stderr files of reward programs
  const Extensions& extensions;   // borrowed until the engines are made
};

/// Makes the engine of a run's rewards: that of the only reward, or one that computes the weighted
/// sum of several.
/// Errors: `kInvalidArgument` naming the key ("reward[1].pattern: ..."); `kUnavailable`.
[[nodiscard]] Result<std::unique_ptr<engines::RewardEngine>> make_rewards(
    const std::vector<RewardOptions>& rewards, const RewardContext& context);

/// Makes a function that checks whether all rewards can be computed with a row's reference answer.
/// The function is empty if no reward restricts the reference answer. Starts no program.
/// Errors: those of `make_rewards`.
[[nodiscard]] Result<engines::ReferenceAnswerCheck> make_reference_answer_check(
    const std::vector<RewardOptions>& rewards);

/// Returns the names of the parts of a weighted sum, in order. Returns an empty list if the run has
/// a single reward of weight 1.
[[nodiscard]] std::vector<std::string> part_names(const std::vector<RewardOptions>& rewards);

}  // namespace tidemill::workflows
