// SPDX-License-Identifier: Apache-2.0
// Makes reward engines.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/result.hpp"
#include "engines/reward/reward_options.hpp"
#include "engines/reward_engine.hpp"

namespace tidemill::engines {

/// Makes the engine of one reward. A `command` program is started here, so that a program that
/// cannot be run is known before the run begins.
///
/// `clock` must outlive the engine; it alone decides time limits and pauses before restarts.
/// Errors: `kInvalidArgument` naming the option (`pattern`, `tolerance`, `command`, ...);
/// `kUnavailable` when the program cannot be started.
[[nodiscard]] Result<std::unique_ptr<RewardEngine>> make_reward_engine(const RewardOptions& options,
                                                                       const Clock& clock);

/// One reward of several.
struct RewardPart {
  std::string name;     // what its errors begin with
  double weight = 1.0;  // finite
  std::unique_ptr<RewardEngine> engine;
};

/// Makes an engine that asks every part about every sample: the reward is the sum of weight times
/// reward, in their order, and the results hold each part's own. A sample that one part cannot
/// score has no reward; its error is that part's. Requires at least one part.
[[nodiscard]] std::unique_ptr<RewardEngine> make_reward_sum(std::vector<RewardPart> parts);

/// Makes a check that a row's reference answer is one the reward can judge against, so that a row
/// without is known before anything is generated for it. Empty for a `command`: all answers are
/// good.
/// Errors: as `make_reward_engine`; no program is started. Of the check: `kInvalidArgument`.
[[nodiscard]] Result<AnswerCheck> make_answer_check(const RewardOptions& options);

}  // namespace tidemill::engines
