// SPDX-License-Identifier: Apache-2.0
#include "engines/rl/kl_estimators.hpp"

#include <algorithm>
#include <cmath>

#include "engines/rl/refusal.hpp"

namespace tidemill::engines {
namespace {

/// A value with one derivative.
struct Dual {
  double value = 0.0;
  double slope = 0.0;
};

Dual k3(double d, const std::optional<double>& input_clamp) {
  const double limit = input_clamp.value_or(HUGE_VAL);
  const double e = std::clamp(-d, -limit, limit);
  const bool inside = std::abs(d) <= limit;
  // expm1 keeps the digits that exp(e) - 1 loses when the policies nearly agree.
  return {std::expm1(e) - e, inside ? -std::expm1(e) : 0.0};
}

Dual estimator(double d, const KlOptions& options) {
  switch (options.estimator) {
    case KlEstimator::kK1: return {d, 1.0};
    case KlEstimator::kAbs: return {std::abs(d), d > 0.0 ? 1.0 : (d < 0.0 ? -1.0 : 0.0)};
    case KlEstimator::kK2: return {0.5 * d * d, d};
    case KlEstimator::kK3: return k3(d, options.input_clamp);
    case KlEstimator::kK3GradientOfK2: return {k3(d, options.input_clamp).value, d};
  }
  return {};
}

bool within(double value, const std::optional<double>& clamp) {
  return !clamp || std::abs(value) <= *clamp;
}

double clamped(double value, const std::optional<double>& clamp) {
  return clamp ? std::clamp(value, -*clamp, *clamp) : value;
}

}  // namespace

Status validate(const KlOptions& options) {
  for (const std::optional<double>& clamp : {options.input_clamp, options.output_clamp}) {
    if (clamp && !(*clamp >= 0.0)) {
      return refuse(kBadOption, "a kl clamp must be at least 0");
    }
  }
  return {};
}

KlTerm kl_term(double log_ratio, double importance_ratio, const KlOptions& options) {
  Dual kl = estimator(log_ratio, options);
  const bool clamp_product = options.unbiased && options.clamp_point == KlClampPoint::kProduct;
  // The value of k3 with the gradient of k2 is a straight-through estimate: the clamp changes the
  // value but not the gradient.
  const bool straight_through = options.estimator == KlEstimator::kK3GradientOfK2;
  if (!clamp_product) {
    kl.slope = within(kl.value, options.output_clamp) || straight_through ? kl.slope : 0.0;
    kl.value = clamped(kl.value, options.output_clamp);
  }
  if (!options.unbiased) {
    return {kl.value, kl.slope, 0.0};
  }
  KlTerm term{kl.value * importance_ratio, kl.slope * importance_ratio, kl.value};
  if (clamp_product && !within(term.value, options.output_clamp)) {
    term = {clamped(term.value, options.output_clamp), 0.0, 0.0};
  }
  return term;
}

template <class Real>
Result<double> estimate_kl(const KlInputs<Real>& inputs, const KlOptions& options,
                           const KlOutputs<Real>& out) {
  const TokenRows& rows = inputs.rows;
  TIDEMILL_RETURN_IF_ERROR(check_token_rows(rows));
  TIDEMILL_RETURN_IF_ERROR(validate(options));
  TIDEMILL_RETURN_IF_ERROR(check_token_column(rows, "logprobs", inputs.logprobs));
  TIDEMILL_RETURN_IF_ERROR(
      check_token_column(rows, "reference_logprobs", inputs.reference_logprobs));
  if (options.unbiased) {
    TIDEMILL_RETURN_IF_ERROR(
        check_token_column(rows, "proximal_logprobs", inputs.proximal_logprobs));
  }
  TIDEMILL_RETURN_IF_ERROR(check_output_size("kl", out.kl.size(), rows.num_positions()));
  TIDEMILL_RETURN_IF_ERROR(
      check_output_size("gradient", out.gradient.size(), rows.num_positions()));
  double sum = 0.0;
  for (std::size_t t = 0; t < rows.num_positions(); ++t) {
    if (rows.mask[t] == 0) {
      out.kl[t] = Real{0};
      out.gradient[t] = Real{0};
      continue;
    }
    const double logprob = inputs.logprobs[t];
    const double ratio = options.unbiased ? std::exp(logprob - inputs.proximal_logprobs[t]) : 1.0;
    const KlTerm term = kl_term(logprob - inputs.reference_logprobs[t], ratio, options);
    out.kl[t] = static_cast<Real>(term.value);
    out.gradient[t] = static_cast<Real>(term.by_logprob + term.by_ratio * ratio);
    sum += term.value;
  }
  TIDEMILL_RETURN_IF_ERROR(check_token_result<Real>(rows, "kl", out.kl));
  TIDEMILL_RETURN_IF_ERROR(check_token_result<Real>(rows, "gradient", out.gradient));
  if (!std::isfinite(static_cast<Real>(sum))) {
    return refuse(kNonFiniteResult, "the sum overflows");
  }
  return sum;
}

template Result<double> estimate_kl(const KlInputs<float>&, const KlOptions&,
                                    const KlOutputs<float>&);
template Result<double> estimate_kl(const KlInputs<double>&, const KlOptions&,
                                    const KlOutputs<double>&);

}  // namespace tidemill::engines
