// SPDX-License-Identifier: Apache-2.0
// The policy loss as the training engine takes it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "engines/rl/aggregate.hpp"
#include "engines/rl/policy_options.hpp"
#include "engines/train_engine.hpp"

namespace tidemill::engines {

/// The log-probabilities that importance ratios start from.
enum class OldLogprobs : std::uint8_t {
  /// `behavior_logprobs`.
  kBehavior,
  /// `proximal_logprobs`, and the loss is multiplied by weights of proximal against behavior: the
  /// decoupled form. `policy.rollout_correction` says how; without it, its defaults.
  kProximal,
};

struct PolicyTokenLossOptions {
  /// Its `aggregate.global_*` are set from the batch. What needs the whole batch at once is
  /// refused: batch-normalised weights, denominators of kept tokens or of token weights.
  PolicyLossOptions policy;
  OldLogprobs old_logprobs = OldLogprobs::kBehavior;
  /// Times the aggregated entropy is subtracted from the loss; >= 0.
  double entropy_coefficient = 0.0;
};

/// A policy loss over the tokens of one optimizer step.
///
/// It is made with the counts of the whole batch, and every figure is added row by row: gradients
/// and sums have the same bits however the batch is cut into micro-batches, as long as its rows
/// come in the same order and one `LossSums` takes all.
///
/// Adds to the sums: "loss"; over the targets "tokens", "rejected_tokens", "clipped_tokens",
/// "ratio_sum", "kl_k1_sum" and "kl_k3_sum" (estimates of KL(behavior || current), log-ratio
/// clipped to +-20), "entropy_sum" (when the engine gives entropies). Means are these by "tokens".
class PolicyTokenLoss final : public TokenLoss {
public:
  /// Makes the loss of a batch with the counts `totals`, of `count_targets`.
  /// Errors: `bad_option`.
  [[nodiscard]] static Result<PolicyTokenLoss> create(PolicyTokenLossOptions options,
                                                      const BatchCounts& totals);

  /// Errors: `non_finite` and `bad_shape` naming sample and column, `bad_mask`, `bad_option` for
  /// targets although the totals have none, `non_finite_result`.
  [[nodiscard]] Status evaluate(std::span<const LossRow> rows, LossSums& sums) override;

  /// Returns the largest importance ratio so far; a maximum does not add up, so it is no sum.
  [[nodiscard]] double ratio_max() const noexcept { return ratio_max_; }

private:
  PolicyTokenLoss(PolicyTokenLossOptions options, Aggregator aggregator)
      : options_(std::move(options)), aggregator_(aggregator) {}

  Status evaluate_row(const LossRow& row, LossSums& sums);

  PolicyTokenLossOptions options_;
  Aggregator aggregator_;
  double ratio_max_ = 0.0;
  std::vector<std::uint8_t> mask_;  // scratch: of the row at hand
};

}  // namespace tidemill::engines
