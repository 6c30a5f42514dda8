// SPDX-License-Identifier: Apache-2.0
#include "workflows/rewards.hpp"

#include <optional>
#include <utility>

#include "engines/reward/factory.hpp"

namespace tidemill::workflows {
namespace {

using Engine = std::unique_ptr<engines::RewardEngine>;

bool is_sum(const std::vector<RewardOptions>& rewards) {
  return rewards.size() > 1 || rewards.front().weight != 1.0;
}

// Returns "reward." if there is only one reward, else e.g. "reward[1]." for the second one.
std::string key_of(const std::vector<RewardOptions>& rewards, std::size_t index) {
  return rewards.size() == 1 ? "reward." : "reward[" + std::to_string(index) + "].";
}

Status at_key(const std::string& key, const Status& status) {
  return {status.code(), key + status.message()};
}

// Returns the engine options of a built-in reward kind, or nothing for a kind that an embedding
// program added.
std::optional<engines::RewardOptions> engine_options(const OneOf& scoring) {
  engines::RewardOptions reward;
  if (const auto* number = scoring.get<NumberReward>()) {
    reward.kind = engines::RewardKind::kNumber;
    reward.tolerance = number->tolerance;
  } else if (const auto* regex = scoring.get<RegexReward>()) {
    reward.kind = engines::RewardKind::kRegex;
    reward.pattern = regex->pattern;
  } else if (const auto* command = scoring.get<CommandReward>()) {
    reward.kind = engines::RewardKind::kCommand;
    reward.command = command->command;
    reward.timeout = std::chrono::milliseconds(command->timeout_ms);
  } else if (scoring.get<ExactMatchReward>() == nullptr) {
    return std::nullopt;
  }
  return reward;
}

Result<Engine> make_one(const RewardOptions& options, const RewardContext& context, bool alone) {
  std::optional<engines::RewardOptions> wanted = engine_options(options.scoring);
  if (!wanted.has_value()) {
    const auto own = context.extensions.rewards.find(options.scoring.name());
    return own == context.extensions.rewards.end()
               ? invalid_argument("kind: no engine is registered for " + options.scoring.name())
               : own->second(options.scoring, context.environment);
  }
  const std::string file = "reward" + (alone ? "" : '-' + reward_name(options)) + "-stderr.txt";
  wanted->stderr_path = (context.environment.directory / file).string();
  return engines::make_reward_engine(*wanted, context.environment.clock);
}

}  // namespace

Result<Engine> make_rewards(const std::vector<RewardOptions>& rewards,
                            const RewardContext& context) {
  std::vector<engines::RewardPart> parts;
  for (std::size_t i = 0; i < rewards.size(); ++i) {
    auto engine = make_one(rewards[i], context, rewards.size() == 1);
    if (!engine.ok()) {
      return at_key(key_of(rewards, i), engine.status());
    }
    parts.push_back({reward_name(rewards[i]), rewards[i].weight, std::move(engine).value()});
  }
  return is_sum(rewards) ? engines::make_reward_sum(std::move(parts))
                         : std::move(parts.front().engine);
}

Result<engines::ReferenceAnswerCheck> make_reference_answer_check(
    const std::vector<RewardOptions>& rewards) {
  std::vector<engines::ReferenceAnswerCheck> checks;
  for (std::size_t i = 0; i < rewards.size(); ++i) {
    const auto wanted = engine_options(rewards[i].scoring);
    auto check = wanted.has_value() ? engines::make_reference_answer_check(*wanted)
                                    : engines::ReferenceAnswerCheck();
    if (!check.ok()) {
      return at_key(key_of(rewards, i), check.status());
    }
    if (check.value()) {
      checks.push_back(std::move(check).value());
    }
  }
  if (checks.empty()) {
    return engines::ReferenceAnswerCheck();
  }
  return engines::ReferenceAnswerCheck([checks = std::move(checks)](const std::string& reference) {
    for (const engines::ReferenceAnswerCheck& check : checks) {
      TIDEMILL_RETURN_IF_ERROR(check(reference));
    }
    return Status();
  });
}

std::vector<std::string> part_names(const std::vector<RewardOptions>& rewards) {
  std::vector<std::string> names;
  for (const RewardOptions& reward : rewards) {
    names.push_back(reward_name(reward));
  }
  return is_sum(rewards) ? names : std::vector<std::string>{};
}

}  // namespace tidemill::workflows
