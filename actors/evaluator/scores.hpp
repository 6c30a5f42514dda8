// SPDX-License-Identifier: Apache-2.0
// What the rewards of an evaluation come to.
#pragma once

#include <cstddef>
#include <span>

namespace tidemill::actors {

/// Scores over prompts with k answers each. An answer is right when its reward is at least 1.
struct EvalScores {
  double mean_at_k = 0.0;  // mean reward over all answers
  double pass_at_k = 0.0;  // share of prompts with a right answer
};

/// Returns the scores of `rewards`, ordered by prompt and then by sample.
/// Shapes: `rewards` (prompts * `samples`); no prompts score 0. Requires `samples` > 0.
[[nodiscard]] EvalScores eval_scores(std::span<const double> rewards, std::size_t samples);

}  // namespace tidemill::actors
