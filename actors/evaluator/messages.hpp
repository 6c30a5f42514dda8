// SPDX-License-Identifier: Apache-2.0
// The result of an evaluation.
#pragma once

#include <cstdint>
#include <vector>

namespace tidemill::actors {

/// Scores over the held-out prompts, with k samples each. A response is correct if its reward is at
/// least 1.
struct EvalReport {
  /// The smallest step whose weights generated a token, or the requested step if none did.
  std::uint64_t step = 0;
  std::uint64_t num_prompts = 0;
  std::uint64_t num_samples = 0;  // k
  double mean_at_k = 0.0;         // mean reward over all samples
  double pass_at_k = 0.0;         // share of prompts with a correct response
  std::uint64_t num_failed = 0;   // samples not generated or not scored; their rewards count as 0
  /// The mean reward of each part of a sum of rewards, before its weight. Empty without a sum.
  std::vector<double> part_means;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, EvalReport& x) {
  return f(x.step, x.num_prompts, x.num_samples, x.mean_at_k, x.pass_at_k, x.num_failed,
           x.part_means);
}

}  // namespace tidemill::actors
