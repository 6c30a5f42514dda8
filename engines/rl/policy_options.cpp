// SPDX-License-Identifier: Apache-2.0
#include "engines/rl/policy_options.hpp"

#include <cmath>

#include "engines/rl/refusal.hpp"

namespace tidemill::engines {
namespace {

bool not_negative(double value) {
  return std::isfinite(value) && value >= 0.0;
}

Status validate_clips(const PolicyLossOptions& options) {
  if (!not_negative(options.clip_low) || !not_negative(options.clip_high)) {
    return refuse(kBadOption, "clip_low and clip_high must be finite and at least 0");
  }
  if (options.ratio_cap && !(*options.ratio_cap > 0.0)) {
    return refuse(kBadOption, "ratio_cap must be above 0");
  }
  if (options.dual_clip && !(*options.dual_clip > 1.0)) {
    return refuse(kBadOption, "dual_clip must be above 1");
  }
  if (options.cispo_low && options.cispo_high && !(*options.cispo_low <= *options.cispo_high)) {
    return refuse(kBadOption, "cispo_low must not be above cispo_high");
  }
  if (!(options.sapo_tau_positive > 0.0) || !(options.sapo_tau_negative > 0.0)) {
    return refuse(kBadOption, "sapo_tau_positive and sapo_tau_negative must be above 0");
  }
  if (options.log_ratio_clamp && !(*options.log_ratio_clamp > 0.0)) {
    return refuse(kBadOption, "log_ratio_clamp must be above 0");
  }
  return {};
}

}  // namespace

Status validate(const PolicyLossOptions& options) {
  TIDEMILL_RETURN_IF_ERROR(validate_clips(options));
  TIDEMILL_RETURN_IF_ERROR(validate(options.kl));
  if (!not_negative(options.kl_coefficient)) {
    return refuse(kBadOption, "kl_coefficient must be finite and at least 0");
  }
  if (options.rollout_correction) {
    TIDEMILL_RETURN_IF_ERROR(validate(*options.rollout_correction));
  }
  if (options.off_policy_delta && !std::isfinite(*options.off_policy_delta)) {
    return refuse(kBadOption, "off_policy_delta must be finite");
  }
  if (options.ratio_level == RatioLevel::kToken &&
      options.sequence_advantage == SequenceAdvantage::kRowMean) {
    return refuse(kBadOption, "sequence_advantage requires ratio_level = sequence");
  }
  if (options.weight_denominator == WeightDenominator::kWeights &&
      !options.aggregate.global_weight &&
      (options.aggregate.kind != Aggregation::kTokenMean || options.aggregate.global_tokens)) {
    return refuse(
        kBadOption,
        "weight_denominator requires a token mean without global_tokens, or global_weight");
  }
  return {};
}

}  // namespace tidemill::engines
