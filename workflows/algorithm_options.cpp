// SPDX-License-Identifier: Apache-2.0
#include "workflows/algorithm_options.hpp"

#include <algorithm>
#include <array>

#include "base/check.hpp"

namespace tidemill::workflows {
namespace {

struct AggregationName {
  LossAggregation key;
  engines::Aggregation value;
};

constexpr std::array kAggregations = {
    AggregationName{LossAggregation::kTokenMean, engines::Aggregation::kTokenMean},
    AggregationName{LossAggregation::kSeqMeanTokenMean, engines::Aggregation::kSeqMeanTokenMean},
    AggregationName{LossAggregation::kSeqMeanTokenSum, engines::Aggregation::kSeqMeanTokenSum},
    AggregationName{LossAggregation::kFixedLength, engines::Aggregation::kBatchFixedLength},
};

LossAggregation aggregation_key(engines::Aggregation value) {
  const auto* found = std::find_if(kAggregations.begin(), kAggregations.end(),
                                   [&](const AggregationName& row) { return row.value == value; });
  TIDEMILL_CHECK(found != kAggregations.end())
      << "an aggregation of the algorithm table has no key";
  return found->key;
}

engines::Aggregation aggregation_value(LossAggregation key) {
  const auto* found = std::find_if(kAggregations.begin(), kAggregations.end(),
                                   [&](const AggregationName& row) { return row.key == key; });
  TIDEMILL_CHECK(found != kAggregations.end()) << "an aggregation key has no value";
  return found->value;
}

}  // namespace

AlgorithmOptions algorithm_keys(const engines::Algorithm& row) {
  AlgorithmOptions keys;
  keys.name = row.name;
  const bool leave_one_out = row.advantage == engines::AdvantageKind::kRloo;
  keys.baseline = leave_one_out ? Baseline::kLeaveOneOut : Baseline::kGroupMean;
  const bool scaled = !leave_one_out && row.grpo.scale == engines::AdvantageScale::kGroupStd;
  keys.scale = scaled ? AdvantageScale::kGroupStd : AdvantageScale::kNone;
  keys.scale_epsilon = row.grpo.eps;
  keys.aggregation = aggregation_key(row.policy.aggregate.kind);
  keys.clip_low = row.policy.clip_low;
  keys.clip_high = row.policy.clip_high;
  keys.filter_groups = row.group_filter.has_value();
  return keys;
}

engines::Algorithm chosen_algorithm(const AlgorithmOptions& options, std::int64_t max_new_tokens) {
  engines::Algorithm algorithm;
  algorithm.name = options.name;
  algorithm.advantage = options.baseline == Baseline::kLeaveOneOut ? engines::AdvantageKind::kRloo
                                                                   : engines::AdvantageKind::kGrpo;
  algorithm.grpo.scale = options.scale == AdvantageScale::kGroupStd
                             ? engines::AdvantageScale::kGroupStd
                             : engines::AdvantageScale::kNone;
  algorithm.grpo.eps = options.scale_epsilon;
  algorithm.policy.aggregate.kind = aggregation_value(options.aggregation);
  if (options.aggregation == LossAggregation::kFixedLength) {
    algorithm.policy.aggregate.horizon = max_new_tokens;
  }
  algorithm.policy.clip_low = options.clip_low;
  algorithm.policy.clip_high = options.clip_high;
  if (options.filter_groups) {
    algorithm.group_filter = engines::GroupFilterOptions{};
  }
  if (options.overlong.has_value()) {
    algorithm.overlong = engines::OverlongOptions{max_new_tokens, options.overlong->buffer,
                                                  options.overlong->factor, false};
  }
  return algorithm;
}

void describe(EnumSchema<Baseline>& e) {
  e.name("group_mean", Baseline::kGroupMean, "The mean reward of the group.")
      .name("leave_one_out", Baseline::kLeaveOneOut,
            "The mean reward of the other samples of the group.");
}

void describe(EnumSchema<AdvantageScale>& e) {
  e.name("group_std", AdvantageScale::kGroupStd,
         "The group's standard deviation (n - 1), plus scale_epsilon.")
      .name("none", AdvantageScale::kNone, "Nothing.");
}

void describe(EnumSchema<LossAggregation>& e) {
  e.name("token_mean", LossAggregation::kTokenMean, "The mean over all tokens.")
      .name("seq_mean_token_mean", LossAggregation::kSeqMeanTokenMean,
            "The mean over each response's tokens, then the mean over responses.")
      .name("seq_mean_token_sum", LossAggregation::kSeqMeanTokenSum,
            "The sum over each response's tokens, then the mean over responses.")
      .name("fixed_length", LossAggregation::kFixedLength,
            "The sum over all tokens, divided by the number of rows times rollout.max_new_tokens.");
}

void describe(EnumSchema<ProximalPolicy>& e) {
  e.name("behavior", ProximalPolicy::kBehavior, "The policy that sampled the token.")
      .name("recompute", ProximalPolicy::kRecompute,
            "The policy at the start of the update, whose log-probabilities are computed again "
            "(decoupled PPO).");
}

void describe(EnumSchema<BehaviorCorrection>& e) {
  e.name("raw", BehaviorCorrection::kRaw, "They are used unchanged.")
      .name("truncate", BehaviorCorrection::kTruncate, "They are reduced to the cap.")
      .name("mask", BehaviorCorrection::kMask, "Their tokens are left out of the loss.");
}

void describe(Schema<OverlongOptions>& s) {
  s.field("buffer", &OverlongOptions::buffer,
          "Number of tokens before rollout.max_new_tokens over which the penalty grows from 0 to "
          "factor.")
      .required()
      .at_least(1)
      .unit("tokens");
  s.field("factor", &OverlongOptions::factor,
          "Subtracted from the reward of a response of rollout.max_new_tokens tokens.")
      .at_least(0);
}

void describe(Schema<AlgorithmOptions>& s) {
  s.presets("name", &AlgorithmOptions::name,
            "The algorithm. It sets the defaults of the other keys.");
  for (const engines::Algorithm& row : engines::algorithms()) {
    s.preset(row.name, row.summary, algorithm_keys(row));
  }
  s.field("baseline", &AlgorithmOptions::baseline, "What is subtracted from each reward.");
  s.field("scale", &AlgorithmOptions::scale,
          "What each reward is divided by after the baseline is subtracted.")
      .also_called({"scale_rewards", "norm_adv_by_std_in_grpo"});
  s.field("scale_epsilon", &AlgorithmOptions::scale_epsilon,
          "Added to the standard deviation before dividing by it.")
      .above(0);
  s.field("aggregation", &AlgorithmOptions::aggregation,
          "How the losses of the tokens are combined.")
      .also_called({"loss_agg_mode", "loss_type"});
  s.field("clip_low", &AlgorithmOptions::clip_low,
          "Importance ratios below 1 - clip_low are clipped.")
      .range(0, 1)
      .also_called({"clip_ratio", "clip_ratio_low", "cliprange", "clip_range"});
  s.field("clip_high", &AlgorithmOptions::clip_high,
          "Importance ratios above 1 + clip_high are clipped.")
      .range(0, 100)
      .also_called({"epsilon_high", "clip_ratio_high"});
  s.field("proximal", &AlgorithmOptions::proximal, "Which policy the importance ratios divide by.");
  s.field("correction", &AlgorithmOptions::correction,
          "What happens to weights pi_proximal / pi_behavior above correction_cap; used only with "
          "proximal: recompute.");
  s.field("correction_cap", &AlgorithmOptions::correction_cap,
          "Largest weight that correction leaves unchanged.")
      .at_least(1);
  s.field("filter_groups", &AlgorithmOptions::filter_groups,
          "Leaves out groups whose rewards are all equal. New prompts replace them, except with "
          "staleness.schedule: fixed, where the batch becomes smaller.")
      .also_called({"dynamic_sampling"});
  s.field("overlong", &AlgorithmOptions::overlong,
          "A penalty for responses near the length limit (DAPO).")
      .also_called({"overlong_buffer", "overlong_buffer_cfg", "soft_overlong_punishment"});
  s.field("mask_truncated", &AlgorithmOptions::mask_truncated,
          "Leaves responses that were cut off at the length limit out of the loss.")
      .also_called({"mask_truncated_completions"});
}

}  // namespace tidemill::workflows
