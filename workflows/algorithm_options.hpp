// SPDX-License-Identifier: Apache-2.0
// The keys of section `algorithm`. `name` selects a row of the table in
// engines/rl/algorithm_options.hpp; a run may override any value of that row. The help texts in
// algorithm_options.cpp explain the keys.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/schema/schema.hpp"
#include "engines/rl/algorithm_options.hpp"

namespace tidemill::workflows {

/// What is subtracted from the reward of a sample.
enum class Baseline : std::uint8_t { kGroupMean, kLeaveOneOut };
/// What the reward is divided by after the baseline is subtracted.
enum class AdvantageScale : std::uint8_t { kGroupStd, kNone };
/// How the losses of the tokens are combined into one number.
enum class LossAggregation : std::uint8_t {
  kTokenMean,
  kSeqMeanTokenMean,
  kSeqMeanTokenSum,
  kFixedLength
};
/// Which policy the importance ratios divide by.
enum class ProximalPolicy : std::uint8_t { kBehavior, kRecompute };
/// What happens to the weights pi_proximal / pi_behavior of decoupled PPO that exceed their cap.
enum class BehaviorCorrection : std::uint8_t { kRaw, kTruncate, kMask };

/// DAPO's penalty for responses near the length limit.
struct OverlongOptions {
  std::int64_t buffer = 0;  // tokens before the limit over which the penalty grows
  double factor = 1.0;      // the penalty at the limit
};

/// How rewards become advantages, and advantages a loss.
struct AlgorithmOptions {
  std::string name = "grpo";
  Baseline baseline = Baseline::kGroupMean;
  AdvantageScale scale = AdvantageScale::kGroupStd;
  double scale_epsilon = 1e-6;
  LossAggregation aggregation = LossAggregation::kSeqMeanTokenMean;
  double clip_low = 0.2;
  double clip_high = 0.2;
  ProximalPolicy proximal = ProximalPolicy::kBehavior;
  BehaviorCorrection correction = BehaviorCorrection::kTruncate;
  double correction_cap = 2.0;
  bool filter_groups = false;
  std::optional<OverlongOptions> overlong;
  bool mask_truncated = false;
};

/// Returns the option values that are equivalent to `row`.
[[nodiscard]] AlgorithmOptions algorithm_keys(const engines::Algorithm& row);
/// Returns the algorithm that `options` describe, for responses of up to `max_new_tokens` tokens.
[[nodiscard]] engines::Algorithm chosen_algorithm(const AlgorithmOptions& options,
                                                  std::int64_t max_new_tokens);

void describe(EnumSchema<Baseline>& e);
void describe(EnumSchema<AdvantageScale>& e);
void describe(EnumSchema<LossAggregation>& e);
void describe(EnumSchema<ProximalPolicy>& e);
void describe(EnumSchema<BehaviorCorrection>& e);
void describe(Schema<OverlongOptions>& s);
void describe(Schema<AlgorithmOptions>& s);

}  // namespace tidemill::workflows
