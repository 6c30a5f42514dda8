// SPDX-License-Identifier: Apache-2.0
// The supervised loss: mean negative log-probability of the targets.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "engines/train_engine.hpp"

namespace tidemill::engines {

/// `-sum of logprobs / targets`, both over the whole optimizer step.
///
/// It is made with the number of targets of the whole step, so micro-batches add up; sums are added
/// row by row, so any cut gives the same bits. A step without targets has loss 0 and gradient 0.
/// Adds to the sums: "loss"; over the targets "tokens" and, when the engine gives entropies,
/// "entropy_sum".
class SftTokenLoss final : public TokenLoss {
public:
  /// `total_targets` is `count_targets(...).tokens` of the step.
  explicit SftTokenLoss(std::int64_t total_targets) : total_targets_(total_targets) {}

  /// Errors: `non_finite`, `bad_shape` and `bad_mask` naming the sample, `bad_option` for targets
  /// although the total is 0.
  [[nodiscard]] Status evaluate(std::span<const LossRow> rows, LossSums& sums) override;

private:
  Status evaluate_row(const LossRow& row, LossSums& sums);

  std::int64_t total_targets_;
  std::vector<std::uint8_t> mask_;  // scratch: of the row at hand
};

}  // namespace tidemill::engines
