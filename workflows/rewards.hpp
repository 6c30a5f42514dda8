// SPDX-License-Identifier: Apache-2.0
// From the `reward` section to engines.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "engines/reward_engine.hpp"
#include "workflows/extensions.hpp"
#include "workflows/reward_options.hpp"

namespace tidemill::workflows {

/// How rewards are made.
struct RewardContext {
  RewardPlace place;             // what reward programs write to stderr goes to its directory
  const Extensions& extensions;  // borrowed until the engines are made
};

/// Makes the engine of a run's rewards: of the one, or of their weighted sum.
/// Errors: `kInvalidArgument` naming the key ("reward[1].pattern: ..."); `kUnavailable`.
[[nodiscard]] Result<std::unique_ptr<engines::RewardEngine>> make_rewards(
    const std::vector<RewardOptions>& rewards, const RewardContext& context);

/// Makes a check that all of them can judge against a row's reference answer; empty when any answer
/// will do. Errors: as above; no program is started.
[[nodiscard]] Result<engines::AnswerCheck> make_answer_check(
    const std::vector<RewardOptions>& rewards);

/// Returns the names of the parts of a sum, in order; nothing when a single reward counts as it is.
[[nodiscard]] std::vector<std::string> part_names(const std::vector<RewardOptions>& rewards);

}  // namespace tidemill::workflows
