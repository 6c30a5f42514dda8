// SPDX-License-Identifier: Apache-2.0
// The keys of section `reward`: how responses are scored. The help texts in reward_options.cpp
// explain the keys.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/schema/schema.hpp"

namespace tidemill::workflows {

/// Rewards a response that equals the reference answer.
struct ExactMatchReward {};

/// Rewards a response whose last number is that of the reference answer.
struct NumberReward {
  double tolerance = 1e-6;
};

/// Rewards a response that matches a pattern.
struct RegexReward {
  std::string pattern;
};

/// Lets a program of the user score responses.
struct CommandReward {
  std::vector<std::string> command;  // program and arguments
  std::int64_t timeout_ms = 30'000;
};

/// The only reward of a run, or one part of a weighted sum.
struct RewardOptions {
  OneOf scoring{"exact_match", ExactMatchReward{}};
  std::optional<std::string> name;  // absent: the name of the kind
  double weight = 1.0;
};

/// Returns the name of a reward in records and error messages.
[[nodiscard]] std::string reward_name(const RewardOptions& options);

void describe(Schema<ExactMatchReward>& s);
void describe(Schema<NumberReward>& s);
void describe(Schema<RegexReward>& s);
void describe(Schema<CommandReward>& s);
void describe(Schema<RewardOptions>& s);

}  // namespace tidemill::workflows
