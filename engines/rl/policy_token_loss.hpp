// SPDX-License-Identifier: Apache-2.0
// The policy loss as a `TokenLoss`, which the training engine evaluates micro-batch by micro-batch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "engines/rl/aggregate.hpp"
#include "engines/rl/policy_options.hpp"
#include "engines/training_job.hpp"

namespace tidemill::engines {

/// The log-probabilities in the denominator of importance ratios.
enum class OldLogprobs : std::uint8_t {
  /// `behavior_logprobs`.
  kBehavior,
  /// `proximal_logprobs`. The loss is also multiplied by weights that compare proximal with
  /// behavior log-probabilities (the decoupled form). `policy.rollout_correction` configures them;
  /// if it is unset, its defaults apply.
  kProximal,
};

/// Configures a `PolicyTokenLoss`.
struct PolicyTokenLossOptions {
  /// `aggregate.global_*` are set from the batch. Options that need the whole batch at once are
  /// refused: batch-normalized weights, and denominators of kept tokens or of token weights.
  PolicyLossOptions policy;
  OldLogprobs old_logprobs = OldLogprobs::kBehavior;
  /// The aggregated entropy times this is subtracted from the loss; >= 0.
  double entropy_coefficient = 0.0;
};

/// A policy loss over the tokens of one optimizer step.
///
/// The loss is created with the counts of the whole batch, and every metric is added sequence by
/// sequence. Gradients and sums therefore have the same bits however the batch is split into
/// micro-batches, if the sequences come in the same order and all of them add to the same
/// `LossSums`.
///
/// The token weights of a sequence multiply the losses, KL estimates and entropies of its tokens.
/// Denominators that count tokens add up their weights instead: with the token losses L, a token
/// mean is sum(w L) / sum(w), and a mean of sequence means is sum_i(sum_t(w L) / sum_t(w)) /
/// sequences. Other denominators do not change. If all weights are 1, the bits are those without
/// weights.
///
/// Adds "loss" to the sums, and over the targets "tokens", "rejected_tokens", "clipped_tokens",
/// "ratio_sum", "kl_k1_sum" and "kl_k3_sum" (estimates of KL(behavior || current), with log-ratios
/// clipped to +-20), and "entropy_sum" (if the engine computes entropies). A mean is a sum divided
/// by "tokens". Only "loss" depends on the token weights.
class PolicyTokenLoss final : public TokenLoss {
public:
  /// Creates the loss of a batch whose counts are `totals`, as returned by `count_targets`.
  /// Errors: `bad_option`.
  [[nodiscard]] static Result<PolicyTokenLoss> create(PolicyTokenLossOptions options,
                                                      const BatchCounts& totals);

  /// Errors: `non_finite` and `bad_shape` naming sample and column, `bad_mask`, `bad_weight`,
  /// `bad_option` if a sequence has targets although the totals have none, `non_finite_result`.
  [[nodiscard]] Status evaluate(std::span<const LossSequence> sequences, LossSums& sums) override;

  /// Returns false if ratios, weights or rejections are those of whole sequences.
  [[nodiscard]] bool is_token_local() const override;
  /// Errors: as `evaluate`.
  [[nodiscard]] Status token_gradients(const LossTokens& tokens) override;

  /// Returns the largest importance ratio since `create`. It is not one of the sums because a
  /// maximum does not add up over micro-batches.
  [[nodiscard]] double ratio_max() const noexcept { return ratio_max_; }

private:
  PolicyTokenLoss(PolicyTokenLossOptions options, Aggregator aggregator)
      : options_(std::move(options)), aggregator_(aggregator) {}

  Status evaluate_sequence(const LossSequence& current, LossSums& sums);

  PolicyTokenLossOptions options_;
  Aggregator aggregator_;
  double ratio_max_ = 0.0;
  std::vector<std::uint8_t> mask_;  // scratch: the mask of the current sequence
};

}  // namespace tidemill::engines
