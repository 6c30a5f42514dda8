// SPDX-License-Identifier: Apache-2.0
// How good a model is: what it answers to a run's evaluation prompts, from its files alone.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "workflows/rewards.hpp"
#include "workflows/rl_options.hpp"

namespace tidemill::workflows {

/// One graded answer.
struct GradedAnswer {
  std::string prompt;
  std::string response;
  std::string answer;   // the right one, if the data has it
  double reward = 0.0;  // 0 when it could not be scored
};

/// The answers of a model, by prompt and then by sample.
struct Grades {
  std::vector<GradedAnswer> answers;
  std::size_t samples = 1;  // of each prompt
  std::size_t failed = 0;   // answers that could not be generated or scored
  double mean_at_k = 0.0;   // mean reward
  double pass_at_k = 0.0;   // share of prompts with a reward of 1 or more
};

/// Which model is graded, and where.
struct GradedModel {
  std::filesystem::path model;
  std::optional<std::filesystem::path> adapter;
  std::string now;  // for chat templates, "YYYY-MM-DDTHH:MM:SS"
};

/// Lets a model answer `data.eval` as `eval` says (greedily by default) and scores the answers with
/// `reward`. Blocks until it is done.
/// Errors: of the files, naming them; `kUnavailable` when the reward engine gives up.
[[nodiscard]] Result<Grades> grade_model(const RlOptions& options, const GradedModel& graded,
                                         const RewardContext& context);

}  // namespace tidemill::workflows
