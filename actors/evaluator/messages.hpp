// SPDX-License-Identifier: Apache-2.0
// What an evaluation found.
#pragma once

#include <cstdint>
#include <vector>

namespace tidemill::actors {

/// Scores over the held-out prompts, k samples each. An answer is right when its reward is at
/// least 1.
struct EvalReport {
  std::uint64_t step = 0;  // smallest step that answered; the one asked for when none did
  std::uint64_t num_prompts = 0;
  std::uint64_t num_samples = 0;   // k
  double mean_at_k = 0.0;          // mean reward over all answers
  double pass_at_k = 0.0;          // share of prompts with a right answer
  std::uint64_t num_failed = 0;    // answers that could not be generated or scored; they count as 0
  std::vector<double> part_means;  // of a sum of rewards: each part's, before its weight
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, EvalReport& x) {
  return f(x.step, x.num_prompts, x.num_samples, x.mean_at_k, x.pass_at_k, x.num_failed,
           x.part_means);
}

}  // namespace tidemill::actors
