// SPDX-License-Identifier: Apache-2.0
// Per-token estimators of the divergence from a reference policy.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/result.hpp"
#include "engines/rl/token_rows.hpp"

namespace tidemill::engines {

/// With `d = logprob - reference_logprob`.
enum class KlEstimator : std::uint8_t {
  kK1,              // d
  kAbs,             // |d|
  kK2,              // d^2 / 2
  kK3,              // exp(-d) - 1 + d
  kK3GradientOfK2,  // the value of k3 with the gradient of k2, whose expectation is right
};

/// What the output clamp of an estimator with importance ratio acts on.
enum class KlClampPoint : std::uint8_t { kEstimator, kProduct };

struct KlOptions {
  KlEstimator estimator = KlEstimator::kK3;
  /// Clips the exponent of k3 to +- this.
  std::optional<double> input_clamp;
  /// Clips the result to +- this.
  std::optional<double> output_clamp;
  /// Multiplies by the importance ratio, gradient through both factors: an estimate that is
  /// unbiased although the tokens came from an older policy (DeepSeek-V3.2).
  bool unbiased = false;
  KlClampPoint clamp_point = KlClampPoint::kEstimator;
};

/// Checks ranges.
/// Errors: `bad_option`.
[[nodiscard]] Status validate(const KlOptions& options);

/// One token's estimate and its partial derivatives.
struct KlTerm {
  double value = 0.0;
  double by_logprob = 0.0;  // with the importance ratio held fixed
  double by_ratio = 0.0;    // 0 unless `unbiased`
};

/// Computes one token's estimate from `log_ratio = logprob - reference_logprob` and the importance
/// ratio, which only `unbiased` reads. Clamps have gradient 1 inside and on their bounds.
/// Source: Schulman 2020, "Approximating KL divergence", for k1, k2, k3.
[[nodiscard]] KlTerm kl_term(double log_ratio, double importance_ratio, const KlOptions& options);

template <class Real>
struct KlInputs {
  TokenRows rows;
  std::span<const Real> logprobs;            // (N)
  std::span<const Real> reference_logprobs;  // (N)
  std::span<const Real> proximal_logprobs;   // (N), read when `unbiased`; or empty
};

template <class Real>
struct KlOutputs {
  std::span<Real> kl;        // (N)
  std::span<Real> gradient;  // (N) of the sum, with respect to logprobs
};

/// Computes the estimates of all valid tokens and returns their sum; the importance ratio is
/// `exp(logprob - proximal_logprob)`.
/// Errors: `bad_shape`, `bad_mask`, `bad_option`, `non_finite` naming row and token,
/// `non_finite_result`.
template <class Real>
[[nodiscard]] Result<double> estimate_kl(const KlInputs<Real>& inputs, const KlOptions& options,
                                         const KlOutputs<Real>& out);

}  // namespace tidemill::engines
