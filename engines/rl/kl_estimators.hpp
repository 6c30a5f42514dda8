// SPDX-License-Identifier: Apache-2.0
// Per-token estimators of the divergence from a reference policy.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/result.hpp"
#include "engines/rl/token_rows.hpp"

namespace tidemill::engines {

/// The estimate of one token, with `d = logprob - reference_logprob`.
enum class KlEstimator : std::uint8_t {
  kK1,              // d
  kAbs,             // |d|
  kK2,              // d^2 / 2
  kK3,              // exp(-d) - 1 + d
  kK3GradientOfK2,  // the value of k3 with the gradient of k2, which is unbiased
};

/// What the output clamp applies to if `unbiased` is set: the estimate alone, or its product with
/// the importance ratio.
enum class KlClampPoint : std::uint8_t { kEstimator, kProduct };

/// Selects an estimator and its clamps.
struct KlOptions {
  KlEstimator estimator = KlEstimator::kK3;
  /// If set, the exponent of k3 is clipped to +- this.
  std::optional<double> input_clamp;
  /// If set, the result is clipped to +- this.
  std::optional<double> output_clamp;
  /// Multiplies the estimate by the importance ratio, with a gradient through both factors. The
  /// product is unbiased even if an older policy sampled the tokens (DeepSeek-V3.2).
  bool unbiased = false;
  KlClampPoint clamp_point = KlClampPoint::kEstimator;
};

/// Checks that the options are in range.
/// Errors: `bad_option`.
[[nodiscard]] Status validate(const KlOptions& options);

/// One token's estimate and its partial derivatives.
struct KlTerm {
  double value = 0.0;
  double by_logprob = 0.0;  // with the importance ratio held fixed
  double by_ratio = 0.0;    // 0 unless `unbiased`
};

/// Computes one token's estimate from `log_ratio = logprob - reference_logprob`. The importance
/// ratio is read only if `unbiased` is set. Clamps have gradient 1 inside and on their bounds.
/// Source: Schulman 2020, "Approximating KL divergence", for k1, k2, k3.
[[nodiscard]] KlTerm kl_term(double log_ratio, double importance_ratio, const KlOptions& options);

/// The columns that `estimate_kl` reads.
template <class Real>
struct KlInputs {
  TokenRows rows;
  std::span<const Real> logprobs;            // (N)
  std::span<const Real> reference_logprobs;  // (N)
  std::span<const Real> proximal_logprobs;   // (N) if `unbiased`, which reads them; or empty
};

/// The outputs of `estimate_kl`. Borrows: all spans.
template <class Real>
struct KlOutputs {
  std::span<Real> kl;        // (N)
  std::span<Real> gradient;  // (N) of the sum with respect to `logprobs`
};

/// Computes the estimates of all valid tokens and returns their sum. The importance ratio is
/// `exp(logprob - proximal_logprob)`.
/// Errors: `bad_shape`, `bad_mask`, `bad_option`, `non_finite` naming row and token,
/// `non_finite_result`.
template <class Real>
[[nodiscard]] Result<double> estimate_kl(const KlInputs<Real>& inputs, const KlOptions& options,
                                         const KlOutputs<Real>& out);

}  // namespace tidemill::engines
