// SPDX-License-Identifier: Apache-2.0
#include "engines/reward/factory.hpp"

#include "base/check.hpp"
#include "engines/reward/command_engine.hpp"
#include "engines/reward/rule_engine.hpp"
#include "engines/reward/rules.hpp"
#include "engines/reward/weighted_engine.hpp"

namespace tidemill::engines {
namespace {

using Engine = std::unique_ptr<RewardEngine>;

// Returns the rule of a kind that scores a response by its text, or null for kCommand.
Result<std::unique_ptr<RewardRule>> make_rule(const RewardOptions& options) {
  switch (options.kind) {
    case RewardKind::kExactMatch: return make_exact_match_rule();
    case RewardKind::kNumber: return make_number_rule(options.tolerance);
    case RewardKind::kRegex: return make_regex_rule(options.pattern);
    case RewardKind::kCommand: return std::unique_ptr<RewardRule>();
  }
  return invalid_argument("kind: is unknown");
}

}  // namespace

Result<Engine> make_reward_engine(const RewardOptions& options, const Clock& clock) {
  if (options.kind == RewardKind::kCommand) {
    TIDEMILL_ASSIGN_OR_RETURN(auto engine, CommandRewardEngine::start(options, clock));
    return Engine(std::move(engine));
  }
  TIDEMILL_ASSIGN_OR_RETURN(auto rule, make_rule(options));
  return Engine(std::make_unique<RuleRewardEngine>(std::move(rule)));
}

Engine make_reward_sum(std::vector<RewardPart> parts) {
  TIDEMILL_CHECK(!parts.empty());
  return std::make_unique<WeightedRewardEngine>(std::move(parts));
}

Result<ReferenceAnswerCheck> make_reference_answer_check(const RewardOptions& options) {
  TIDEMILL_ASSIGN_OR_RETURN(auto made, make_rule(options));
  const std::shared_ptr<RewardRule> rule = std::move(made);
  if (rule == nullptr) {
    return ReferenceAnswerCheck();
  }
  return ReferenceAnswerCheck([rule](const std::string& answer) {
    RewardRequest request;
    request.reference_answer = answer;
    return rule->score(request).status();
  });
}

}  // namespace tidemill::engines
