// SPDX-License-Identifier: Apache-2.0
// Computes the scores of an evaluation from its rewards.
#pragma once

#include <cstddef>
#include <span>

namespace tidemill::actors {

/// Scores over prompts with k samples each. A response is correct if its reward is at least 1.
struct EvalScores {
  double mean_at_k = 0.0;  // mean reward over all samples
  double pass_at_k = 0.0;  // share of prompts with a correct response
};

/// Returns the scores of `rewards`, which are ordered by prompt and then by sample. Without
/// prompts, both scores are 0.
/// Shapes: `rewards` (prompts * `samples`). Requires `samples` > 0.
[[nodiscard]] EvalScores eval_scores(std::span<const double> rewards, std::size_t samples);

}  // namespace tidemill::actors
