// SPDX-License-Identifier: Apache-2.0
// How answers are rewarded. Meanings: reward_options.cpp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/schema.hpp"

namespace tidemill::workflows {

/// The answer is the reference answer.
struct ExactMatchReward {};

/// The last number of the answer is the reference number.
struct NumberReward {
  double tolerance = 1e-6;
};

/// The answer matches a pattern.
struct RegexReward {
  std::string pattern;
};

/// A program of the user's judges.
struct CommandReward {
  std::vector<std::string> command;  // program and arguments
  std::int64_t timeout_ms = 30'000;
};

/// One reward, or a part of a weighted sum.
struct RewardOptions {
  OneOf scoring{"exact_match", ExactMatchReward{}};
  std::optional<std::string> name;  // none: the kind's
  double weight = 1.0;
};

/// Returns what records and errors call a reward.
[[nodiscard]] std::string reward_name(const RewardOptions& options);

void describe(Schema<ExactMatchReward>& s);
void describe(Schema<NumberReward>& s);
void describe(Schema<RegexReward>& s);
void describe(Schema<CommandReward>& s);
void describe(Schema<RewardOptions>& s);

}  // namespace tidemill::workflows
