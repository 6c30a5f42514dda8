// SPDX-License-Identifier: Apache-2.0
// Evaluates the model in a directory on a run's evaluation prompts.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "workflows/rewards.hpp"
#include "workflows/rl_options.hpp"

namespace tidemill::workflows {

/// One scored response.
struct ScoredResponse {
  std::string prompt;
  std::string response;
  std::string reference_answer;  // empty if the data has none
  double reward = 0.0;           // 0 if it could not be scored
};

/// The scored responses of a model, ordered by prompt and then by sample.
struct ModelScores {
  std::vector<ScoredResponse> responses;
  std::size_t samples = 1;  // of each prompt
  std::size_t failed = 0;   // responses that could not be generated or scored
  double mean_at_k = 0.0;   // mean reward
  double pass_at_k = 0.0;   // share of prompts with a reward of 1 or more
};

/// The files of the model to evaluate.
struct EvaluatedModel {
  std::filesystem::path model;
  std::optional<std::filesystem::path> adapter;
  std::string now;  // for chat templates, "YYYY-MM-DDTHH:MM:SS"
};

/// Generates responses to the prompts of `data.eval` with the settings of `eval` (greedy by
/// default) and scores them with `reward`. Blocks until it is done.
/// Errors: those of `TextCodec::load`, `open_model`, `open_adapter`, `open_runtime` and
/// `make_rewards`; `kInvalidArgument` naming a file and line of `data.eval`; `kUnavailable` if the
/// reward engine gives up.
[[nodiscard]] Result<ModelScores> evaluate_model(const RlOptions& options,
                                                 const EvaluatedModel& evaluated,
                                                 const RewardContext& context);

}  // namespace tidemill::workflows
