// SPDX-License-Identifier: Apache-2.0
#include "workflows/algorithm_options.hpp"

namespace tidemill::workflows {

void describe(EnumSchema<Baseline>& e) {
  e.name("group_mean", Baseline::kGroupMean, "The mean reward of the group.")
      .name("leave_one_out", Baseline::kLeaveOneOut, "The mean reward of the group's others.");
}

void describe(EnumSchema<AdvantageScale>& e) {
  e.name("group_std", AdvantageScale::kGroupStd, "The group's deviation (n - 1).")
      .name("batch_std", AdvantageScale::kBatchStd, "The batch's deviation (n - 1).")
      .name("none", AdvantageScale::kNone, "1.");
}

void describe(EnumSchema<LossAggregation>& e) {
  e.name("token_mean", LossAggregation::kTokenMean, "The mean over all tokens.")
      .name("seq_mean_token_mean", LossAggregation::kSeqMeanTokenMean,
            "The mean over sequences of their mean over tokens.")
      .name("seq_mean_token_sum", LossAggregation::kSeqMeanTokenSum,
            "The mean over sequences of their sum over tokens.")
      .name("fixed_length", LossAggregation::kFixedLength,
            "The sum over all tokens by rows times rollout.max_new_tokens.");
}

void describe(EnumSchema<KlKind>& e) {
  e.name("k1", KlKind::kK1, "d = log pi - log pi_reference.")
      .name("k2", KlKind::kK2, "d^2 / 2.")
      .name("k3", KlKind::kK3, "exp(-d) - 1 + d.");
}

void describe(EnumSchema<ProximalPolicy>& e) {
  e.name("behavior", ProximalPolicy::kBehavior, "The policy that generated the token.")
      .name("recompute", ProximalPolicy::kRecompute,
            "The policy at the start of the update, scored again: the decoupled form.");
}

void describe(EnumSchema<BehaviorCorrection>& e) {
  e.name("raw", BehaviorCorrection::kRaw, "They stay as they are.")
      .name("truncate", BehaviorCorrection::kTruncate, "They become the cap.")
      .name("mask", BehaviorCorrection::kMask, "Their tokens are left out.");
}

void describe(Schema<OverlongOptions>& s) {
  s.field("buffer", &OverlongOptions::buffer,
          "Tokens before rollout.max_new_tokens over which the penalty grows.")
      .required()
      .at_least(1)
      .unit("tokens");
  s.field("factor", &OverlongOptions::factor, "The penalty at the limit.").at_least(0);
}

void describe(Schema<AlgorithmOptions>& s) {
  const AlgorithmOptions grpo;

  AlgorithmOptions dr_grpo;
  dr_grpo.scale = AdvantageScale::kNone;
  dr_grpo.aggregation = LossAggregation::kFixedLength;

  AlgorithmOptions dapo;
  dapo.clip_high = 0.28;
  dapo.aggregation = LossAggregation::kTokenMean;
  dapo.filter_groups = true;

  AlgorithmOptions rloo;
  rloo.baseline = Baseline::kLeaveOneOut;
  rloo.scale = AdvantageScale::kNone;
  rloo.aggregation = LossAggregation::kTokenMean;

  s.presets("name", &AlgorithmOptions::name, "The row the other keys start from.")
      .preset("grpo", "Group relative policy optimization, arXiv:2402.03300.", grpo)
      .preset("dr_grpo", "GRPO done right, arXiv:2503.20783.", dr_grpo)
      .preset("dapo", "Clip-higher, token mean and group filter, arXiv:2503.14476.", dapo)
      .preset("rloo", "REINFORCE with a leave-one-out baseline, arXiv:2402.14740.", rloo);
  s.field("baseline", &AlgorithmOptions::baseline, "What is subtracted from a reward.");
  s.field("scale", &AlgorithmOptions::scale, "What the difference is divided by.");
  s.field("scale_epsilon", &AlgorithmOptions::scale_epsilon, "Added to a deviation.").above(0);
  s.field("aggregation", &AlgorithmOptions::aggregation, "How token losses become one number.");
  s.field("clip_low", &AlgorithmOptions::clip_low, "Ratios below 1 - clip_low are clipped.")
      .range(0, 1);
  s.field("clip_high", &AlgorithmOptions::clip_high, "Ratios above 1 + clip_high are clipped.")
      .range(0, 100);
  s.field("kl_coef", &AlgorithmOptions::kl_coef,
          "Weight of the divergence from the model that the run started from; 0: none.")
      .range(0, 100);
  s.field("kl_kind", &AlgorithmOptions::kl_kind, "How that divergence is estimated.");
  s.field("proximal", &AlgorithmOptions::proximal, "Which policy importance ratios start from.");
  s.field("correction", &AlgorithmOptions::correction,
          "What happens to weights pi_proximal / pi_behavior above correction_cap (with "
          "proximal: recompute).");
  s.field("correction_cap", &AlgorithmOptions::correction_cap, "The cap of those weights.")
      .at_least(1);
  s.field("filter_groups", &AlgorithmOptions::filter_groups,
          "Leaves out groups whose rewards are all equal.");
  s.field("overlong", &AlgorithmOptions::overlong, "A penalty for answers near the length limit.");
  s.field("mask_truncated", &AlgorithmOptions::mask_truncated,
          "Trains on no token of answers that were cut by their length.");
}

}  // namespace tidemill::workflows
