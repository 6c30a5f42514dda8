// SPDX-License-Identifier: Apache-2.0
#include "actors/evaluator/scores.hpp"

#include <algorithm>
#include <numeric>

namespace tidemill::actors {

EvalScores eval_scores(std::span<const double> rewards, std::size_t samples) {
  EvalScores scores;
  for (auto rest = rewards; rest.size() >= samples; rest = rest.subspan(samples)) {
    const auto responses = rest.first(samples);
    scores.mean_at_k = std::accumulate(responses.begin(), responses.end(), scores.mean_at_k);
    scores.pass_at_k += *std::max_element(responses.begin(), responses.end()) >= 1.0 ? 1.0 : 0.0;
  }
  const std::size_t whole_prompts = rewards.size() / samples;
  const auto prompts = static_cast<double>(std::max<std::size_t>(whole_prompts, 1));
  scores.mean_at_k /= prompts * static_cast<double>(samples);
  scores.pass_at_k /= prompts;
  return scores;
}

}  // namespace tidemill::actors
