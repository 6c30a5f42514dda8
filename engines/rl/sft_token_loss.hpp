// SPDX-License-Identifier: Apache-2.0
// The supervised loss: the weighted mean negative log-probability of the targets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "engines/rl/aggregate.hpp"
#include "engines/training_job.hpp"

namespace tidemill::engines {

/// Computes `-sum(w l) / sum(w)` over the targets of one optimizer step, with their
/// log-probabilities l and token weights w. Without weights, that is the mean over the targets.
///
/// The loss is created with the counts of the whole step, so that micro-batches add up. Sums are
/// added sequence by sequence, so the bits do not depend on how the step is split. If all weights
/// are 1, the bits are those without weights. A step whose targets have no weight has loss 0 and
/// gradient 0. Adds "loss" to the sums, and over the targets "tokens" and, if the engine computes
/// entropies, "entropy_sum", neither of which depends on the weights.
class SftTokenLoss final : public TokenLoss {
public:
  /// Creates the loss of a step; `totals` are the step's `count_targets`.
  explicit SftTokenLoss(const BatchCounts& totals)
      : total_targets_(totals.tokens),
        total_weight_(totals.weight.value_or(static_cast<double>(totals.tokens))) {}

  /// Errors: `non_finite`, `bad_shape`, `bad_mask` and `bad_weight` naming the sample, `bad_option`
  /// if a sequence has targets although the total is 0.
  [[nodiscard]] Status evaluate(std::span<const LossSequence> sequences, LossSums& sums) override;

  [[nodiscard]] bool is_token_local() const override { return true; }
  /// Errors: as `evaluate`.
  [[nodiscard]] Status token_gradients(const LossTokens& tokens) override;

private:
  Status evaluate_sequence(const LossSequence& current, LossSums& sums);
  // Returns the gradient of the log-probability of token `t`, a target.
  [[nodiscard]] float gradient(const TrainSequence& sequence, std::size_t t) const;

  std::int64_t total_targets_;
  double total_weight_;
  std::vector<std::uint8_t> mask_;  // scratch: the mask of the current sequence
};

}  // namespace tidemill::engines
