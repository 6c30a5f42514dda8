// SPDX-License-Identifier: Apache-2.0
// Corrections for tokens sampled by another policy than the one the update starts from: importance
// weights, and the tokens or rows that are too far off to learn from.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engines/rl/token_rows.hpp"

namespace tidemill::engines {

/// What one importance weight covers.
enum class CorrectionLevel : std::uint8_t { kToken, kSequence };

/// How token log-ratios become the weight of a row.
enum class SequenceWeight : std::uint8_t {
  kProduct,    // exp of their sum
  kGeometric,  // exp of their mean
};

/// What happens to weights outside the bounds.
enum class CorrectionRule : std::uint8_t {
  kNone,      // all weights are 1
  kRaw,       // weights stay as they are
  kTruncate,  // clipped to the bounds (TIS)
  kZero,      // 0, the token still counts (IcePop)
  kMask,      // the token leaves the kept mask
  kSeqMask,   // the row leaves the kept mask if its own weight is outside; weights stay (MIS)
};

/// A statistic of `x = clip(proximal - behavior, +-20)`.
enum class RejectStat : std::uint8_t {
  kRatio,  // x, compared with the logs of the bounds
  kK1,     // -x, compared with the logs of the bounds
  kK2,     // x^2 / 2, compared with `upper`
  kK3,     // exp(x) - 1 - x, compared with `upper`
};

/// What the statistic is taken over; the row's are over its valid tokens.
enum class RejectScope : std::uint8_t { kToken, kSeqSum, kSeqMean, kSeqMax };

/// A condition tokens or rows must pass to be kept; bounds included.
struct RejectRule {
  RejectStat stat = RejectStat::kRatio;
  RejectScope scope = RejectScope::kToken;
  std::optional<double> lower;
  std::optional<double> upper;
};

struct RolloutCorrectionOptions {
  CorrectionLevel level = CorrectionLevel::kToken;
  CorrectionRule rule = CorrectionRule::kTruncate;
  double upper = 2.0;
  std::optional<double> lower;  // none: 0
  SequenceWeight sequence_weight = SequenceWeight::kProduct;
  /// Clips log-weights to +- this before exp.
  double log_clamp = 20.0;
  std::vector<RejectRule> reject;
  /// Last, divides by the mean weight: over kept tokens, or over rows with kept tokens of the
  /// row's mean, as `level` says; not if that mean is at most 1e-8.
  bool batch_normalize = false;
};

/// Checks ranges.
/// Errors: `bad_option`.
[[nodiscard]] Status validate(const RolloutCorrectionOptions& options);

template <class Real>
struct RolloutCorrectionInputs {
  TokenRows rows;
  std::span<const Real> proximal_logprobs;  // (N)
  std::span<const Real> behavior_logprobs;  // (N)
};

template <class Real>
struct RolloutCorrectionOutputs {
  std::span<Real> weights;            // (N) 0 outside the kept mask
  std::span<std::uint8_t> kept_mask;  // (N)
};

/// Computes `w = exp(proximal - behavior)` per token or row, bounds it, and rejects.
///
/// Sources: truncated importance sampling and its kin as named at `CorrectionRule`; decoupled PPO,
/// arXiv:2505.24298, is the same weight on the loss of a proximal policy.
/// Errors: `bad_shape`, `bad_mask`, `bad_option`, `non_finite` naming row and token,
/// `non_finite_result`.
template <class Real>
[[nodiscard]] Status rollout_correction(const RolloutCorrectionInputs<Real>& inputs,
                                        const RolloutCorrectionOptions& options,
                                        const RolloutCorrectionOutputs<Real>& out);

}  // namespace tidemill::engines
