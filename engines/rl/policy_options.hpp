// SPDX-License-Identifier: Apache-2.0
// The options of the policy loss: its clipping, weights, masks and denominators.
#pragma once

#include <cstdint>
#include <optional>

#include "engines/rl/aggregate.hpp"
#include "engines/rl/kl_estimators.hpp"
#include "engines/rl/rollout_correction.hpp"

namespace tidemill::engines {

/// The loss of one token, with importance ratio r, advantage A and log-probability l. sg(x) is x as
/// a constant: no gradient flows through it.
enum class PolicyLossKind : std::uint8_t {
  kPpo,        // max(-A min(r, ratio_cap), -A clip(r, 1 - clip_low, 1 + clip_high))
  kReinforce,  // -A l
  kCispo,      // -sg(clip(r, cispo_low, cispo_high)) A l
  kSapo,       // -(4 / tau) sigmoid(tau (r - 1)) A
};

/// The log-ratio that a token uses.
enum class RatioLevel : std::uint8_t {
  kToken,     // the token's own
  kSequence,  // the mean over the valid tokens of its row (GSPO, arXiv:2507.18071)
};

/// Which log-probabilities receive the gradient of a sequence ratio.
enum class SequenceGradient : std::uint8_t {
  kSequence,  // those of all valid tokens of the row, through the mean
  kToken,     // the token's own (GSPO-token); the value of the loss is the same
};

/// The advantage that a token uses with a sequence ratio: its own or the mean of its row.
enum class SequenceAdvantage : std::uint8_t { kOwn, kRowMean };

/// The tokens that denominators count: all valid tokens, or only those that were not rejected.
enum class RejectDenominator : std::uint8_t { kOriginal, kKept };

/// What denominators that count tokens count if the tokens have weights: each token as 1, or as its
/// weight. These are the number of tokens of the batch in a token mean, and those of the rows in a
/// mean of row means.
enum class WeightDenominator : std::uint8_t { kTokens, kWeights };

/// The options of `policy_loss`, which documents how they act together.
struct PolicyLossOptions {
  PolicyLossKind kind = PolicyLossKind::kPpo;

  RatioLevel ratio_level = RatioLevel::kToken;
  SequenceGradient sequence_gradient = SequenceGradient::kSequence;
  SequenceAdvantage sequence_advantage = SequenceAdvantage::kOwn;
  /// If set, the log-ratio is clipped to +- this before exp.
  std::optional<double> log_ratio_clamp = 20.0;

  double clip_low = 0.2;
  double clip_high = 0.2;
  /// If set, an upper bound on the ratio of the unclipped branch.
  std::optional<double> ratio_cap;
  /// If set to c, which must be above 1, bounds the loss by -c A where A < 0 (arXiv:1912.09729).
  std::optional<double> dual_clip;
  std::optional<double> cispo_low;
  std::optional<double> cispo_high = 1.28;
  double sapo_tau_positive = 1.0;   // for A > 0
  double sapo_tau_negative = 1.05;  // for A <= 0

  /// If set, tokens are weighted and rejected by comparing proximal with behavior log-probabilities
  /// (decoupled PPO).
  std::optional<RolloutCorrectionOptions> rollout_correction;
  RejectDenominator reject_denominator = RejectDenominator::kOriginal;
  /// If set, tokens with A < 0 get weight 0 in rows whose mean(behavior - l) is above this
  /// (DeepSeek-V3.2). Denominators still count them.
  std::optional<double> off_policy_delta;
  /// `kWeights` requires a token mean without `global_tokens`, or `aggregate.global_weight`.
  WeightDenominator weight_denominator = WeightDenominator::kTokens;

  double kl_coefficient = 0.0;
  KlOptions kl;

  AggregateOptions aggregate;
  /// If set, replaces the scale that `aggregate` gives to each row. Meant for rows that are parts
  /// of longer ones.
  std::optional<double> row_scale;
};

/// Checks that the options are in range and can be combined.
/// Errors: `bad_option`.
[[nodiscard]] Status validate(const PolicyLossOptions& options);

}  // namespace tidemill::engines
