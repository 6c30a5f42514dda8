// SPDX-License-Identifier: Apache-2.0
// Corrections for tokens sampled by a policy other than the one the update starts from: importance
// weights, and the rejection of tokens or rows that are too far off-policy.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engines/rl/token_rows.hpp"

namespace tidemill::engines {

/// Whether each token has its own importance weight, or all tokens of a row share one.
enum class CorrectionLevel : std::uint8_t { kToken, kSequence };

/// How the log-ratios of a row's tokens are combined into the weight of the row.
enum class SequenceWeight : std::uint8_t {
  kProduct,    // exp of their sum
  kGeometric,  // exp of their mean
};

/// How weights outside the bounds are handled.
enum class CorrectionRule : std::uint8_t {
  kNone,      // all weights are 1
  kRaw,       // weights are not changed
  kTruncate,  // weights are clipped to the bounds (TIS)
  kZero,      // the weight becomes 0, but the token still counts (IcePop)
  kMask,      // the token is removed from the kept mask
  kSeqMask,   // the row is removed from the kept mask if the row's weight is outside (MIS)
};

/// A statistic of `x = clip(proximal - behavior, +-20)`.
enum class RejectStat : std::uint8_t {
  kRatio,  // x, compared with the logs of the bounds
  kK1,     // -x, compared with the logs of the bounds
  kK2,     // x^2 / 2, compared with `upper`
  kK3,     // exp(x) - 1 - x, compared with `upper`
};

/// What a rule tests: the statistic of each token, or its sum, mean or maximum over the valid
/// tokens of a row.
enum class RejectScope : std::uint8_t { kToken, kSeqSum, kSeqMean, kSeqMax };

/// A condition that tokens or rows must meet to be kept. Bounds are inclusive.
struct RejectRule {
  RejectStat stat = RejectStat::kRatio;
  RejectScope scope = RejectScope::kToken;
  std::optional<double> lower;
  std::optional<double> upper;
};

/// Configures the importance weights and the rejection.
struct RolloutCorrectionOptions {
  CorrectionLevel level = CorrectionLevel::kToken;
  CorrectionRule rule = CorrectionRule::kTruncate;
  double upper = 2.0;
  std::optional<double> lower;  // 0 if unset
  SequenceWeight sequence_weight = SequenceWeight::kProduct;
  /// Clips log-weights to +- this before exp.
  double log_clamp = 20.0;
  std::vector<RejectRule> reject;
  /// Finally divides the weights by their mean. With `level` kToken, that is the mean over kept
  /// tokens. With kSequence, it is the mean of the row means, over rows with kept tokens. The
  /// weights are not divided if their mean is at most 1e-8.
  bool batch_normalize = false;
};

/// Checks that the options are in range.
/// Errors: `bad_option`.
[[nodiscard]] Status validate(const RolloutCorrectionOptions& options);

/// The log-probabilities that the correction compares.
template <class Real>
struct RolloutCorrectionInputs {
  TokenRows rows;
  std::span<const Real> proximal_logprobs;  // (N)
  std::span<const Real> behavior_logprobs;  // (N)
};

/// The outputs of the correction. Borrows: all spans.
template <class Real>
struct RolloutCorrectionOutputs {
  std::span<Real> weights;            // (N), 0 outside the kept mask
  std::span<std::uint8_t> kept_mask;  // (N)
};

/// Computes `w = exp(proximal - behavior)` per token or row, applies the bounds, and rejects tokens
/// or rows.
///
/// Sources: truncated importance sampling and the variants named at `CorrectionRule`. Decoupled
/// PPO, arXiv:2505.24298, applies the same weight to the loss of a proximal policy.
/// Errors: `bad_shape`, `bad_mask`, `bad_option`, `non_finite` naming row and token,
/// `non_finite_result`.
template <class Real>
[[nodiscard]] Status rollout_correction(const RolloutCorrectionInputs<Real>& inputs,
                                        const RolloutCorrectionOptions& options,
                                        const RolloutCorrectionOutputs<Real>& out);

}  // namespace tidemill::engines
