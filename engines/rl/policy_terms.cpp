// SPDX-License-Identifier: Apache-2.0
#include "engines/rl/policy_terms.hpp"

#include <algorithm>
#include <cmath>

namespace tidemill::engines {
namespace {

PolicyTerm ppo_term(const PolicyToken& token, const PolicyLossOptions& options) {
  const double r = token.ratio.value;
  const double a = token.advantage;
  const double cap = options.ratio_cap.value_or(HUGE_VAL);
  const double low = 1.0 - options.clip_low;
  const double high = 1.0 + options.clip_high;
  PolicyTerm term{-a * std::min(r, cap), 0.0, r <= cap ? -a * token.ratio.slope : 0.0};
  const double clipped = -a * std::clamp(r, low, high);
  if (clipped > term.value) {
    term = {clipped, 0.0, r >= low && r <= high ? -a * token.ratio.slope : 0.0};
  }
  if (options.dual_clip && a < 0.0 && term.value > -*options.dual_clip * a) {
    term = {-*options.dual_clip * a, 0.0, 0.0};
  }
  return term;
}

PolicyTerm cispo_term(const PolicyToken& token, const PolicyLossOptions& options) {
  const double low = options.cispo_low.value_or(-HUGE_VAL);
  const double high = options.cispo_high.value_or(HUGE_VAL);
  const double weight = std::clamp(token.ratio.value, low, high);
  return {-weight * token.advantage * token.logprob, -weight * token.advantage, 0.0};
}

PolicyTerm sapo_term(const PolicyToken& token, const PolicyLossOptions& options) {
  const double tau = token.advantage > 0.0 ? options.sapo_tau_positive : options.sapo_tau_negative;
  const double x = tau * (token.ratio.value - 1.0);
  const double gate = 1.0 / (1.0 + std::exp(-x));
  const double other = 1.0 / (1.0 + std::exp(x));  // 1 - gate without cancellation
  return {-4.0 / tau * gate * token.advantage, 0.0,
          -4.0 * gate * other * token.advantage * token.ratio.slope};
}

}  // namespace

ImportanceRatio importance_ratio(double log_ratio, const std::optional<double>& clamp) {
  const double limit = clamp.value_or(HUGE_VAL);
  const double value = std::exp(std::clamp(log_ratio, -limit, limit));
  return {value, std::abs(log_ratio) <= limit ? value : 0.0};
}

PolicyTerm policy_term(const PolicyToken& token, const PolicyLossOptions& options) {
  switch (options.kind) {
    case PolicyLossKind::kPpo: return ppo_term(token, options);
    case PolicyLossKind::kReinforce:
      return {-token.advantage * token.logprob, -token.advantage, 0.0};
    case PolicyLossKind::kCispo: return cispo_term(token, options);
    case PolicyLossKind::kSapo: return sapo_term(token, options);
  }
  return {};
}

bool is_clipped(double ratio, double advantage, const PolicyLossOptions& options) {
  return (ratio < 1.0 - options.clip_low && advantage < 0.0) ||
         (ratio > 1.0 + options.clip_high && advantage > 0.0);
}

}  // namespace tidemill::engines
