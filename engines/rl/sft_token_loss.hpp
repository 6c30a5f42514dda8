// SPDX-License-Identifier: Apache-2.0
// The supervised loss: the mean negative log-probability of the targets.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "engines/train_engine.hpp"

namespace tidemill::engines {

/// Computes `-(sum of the target log-probabilities) / targets` over one optimizer step.
///
/// The loss is created with the number of targets of the whole step, so that micro-batches add up.
/// Sums are added row by row, so the bits do not depend on how the step is split. A step without
/// targets has loss 0 and gradient 0.
/// Adds "loss" to the sums, and over the targets "tokens" and, if the engine computes entropies,
/// "entropy_sum".
class SftTokenLoss final : public TokenLoss {
public:
  /// Creates the loss of a step; `total_targets` is the step's `count_targets(...).tokens`.
  explicit SftTokenLoss(std::int64_t total_targets) : total_targets_(total_targets) {}

  /// Errors: `non_finite`, `bad_shape` and `bad_mask` naming the sample, `bad_option` if a row has
  /// targets although the total is 0.
  [[nodiscard]] Status evaluate(std::span<const LossRow> rows, LossSums& sums) override;

private:
  Status evaluate_row(const LossRow& row, LossSums& sums);

  std::int64_t total_targets_;
  std::vector<std::uint8_t> mask_;  // scratch: the mask of the current row
};

}  // namespace tidemill::engines
