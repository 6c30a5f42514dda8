// SPDX-License-Identifier: Apache-2.0
// The options of the policy loss: what is clipped, weighted, masked and divided by what.
#pragma once

#include <cstdint>
#include <optional>

#include "engines/rl/aggregate.hpp"
#include "engines/rl/kl_estimators.hpp"
#include "engines/rl/rollout_correction.hpp"

namespace tidemill::engines {

/// The loss of one token, with importance ratio r, advantage A, log-probability l.
enum class PolicyLossKind : std::uint8_t {
  kPpo,        // max(-A min(r, ratio_cap), -A clip(r, 1 - clip_low, 1 + clip_high))
  kReinforce,  // -A l
  kCispo,      // -sg(clip(r, cispo_low, cispo_high)) A l
  kSapo,       // -(4 / tau) sigmoid(tau (r - 1)) A
};

/// What the log-ratio of a token is.
enum class RatioLevel : std::uint8_t {
  kToken,     // its own
  kSequence,  // the mean over its row's valid tokens (GSPO, arXiv:2507.18071)
};

/// What the gradient of a sequence ratio goes through.
enum class SequenceGradient : std::uint8_t {
  kSequence,  // the mean, to all tokens of the row
  kToken,     // the token's own log-probability (GSPO-token); the value is the same
};

/// Which advantage a token takes under a sequence ratio.
enum class SequenceAdvantage : std::uint8_t { kOwn, kRowMean };

/// Whether tokens that rejection removed still count in denominators.
enum class RejectDenominator : std::uint8_t { kOriginal, kKept };

/// What a token mean with token weights divides by.
enum class WeightDenominator : std::uint8_t { kTokens, kWeights };

/// See `policy_loss` for how the parts act together.
struct PolicyLossOptions {
  PolicyLossKind kind = PolicyLossKind::kPpo;

  RatioLevel ratio_level = RatioLevel::kToken;
  SequenceGradient sequence_gradient = SequenceGradient::kSequence;
  SequenceAdvantage sequence_advantage = SequenceAdvantage::kOwn;
  /// Clips the log-ratio to +- this before exp; none: no clip.
  std::optional<double> log_ratio_clamp = 20.0;

  double clip_low = 0.2;
  double clip_high = 0.2;
  /// Caps the ratio of the unclipped branch.
  std::optional<double> ratio_cap;
  /// For A < 0 bounds the loss by -c A, c > 1 (arXiv:1912.09729).
  std::optional<double> dual_clip;
  std::optional<double> cispo_low;
  std::optional<double> cispo_high = 1.28;
  double sapo_tau_positive = 1.0;   // for A > 0
  double sapo_tau_negative = 1.05;  // else

  /// Weights and rejection by proximal and behavior log-probabilities: decoupled PPO.
  std::optional<RolloutCorrectionOptions> rollout_correction;
  RejectDenominator reject_denominator = RejectDenominator::kOriginal;
  /// Gives weight 0 to tokens with A < 0 in rows with mean(behavior - l) above this
  /// (DeepSeek-V3.2); they stay in the denominator.
  std::optional<double> off_policy_delta;
  /// `kWeights` goes with a token mean without `global_tokens` only.
  WeightDenominator weight_denominator = WeightDenominator::kTokens;

  double kl_coefficient = 0.0;
  KlOptions kl;

  AggregateOptions aggregate;
};

/// Checks ranges and combinations.
/// Errors: `bad_option`.
[[nodiscard]] Status validate(const PolicyLossOptions& options);

}  // namespace tidemill::engines
