// SPDX-License-Identifier: Apache-2.0
// The keys of a reinforcement-learning algorithm. `name` chooses a row of
// engines/rl/algorithm_options.hpp, which a run may override key by key. Meanings:
// algorithm_options.cpp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/schema.hpp"
#include "engines/rl/algorithm_options.hpp"

namespace tidemill::workflows {

/// What is subtracted from a sample's reward.
enum class Baseline : std::uint8_t { kGroupMean, kLeaveOneOut };
/// What the difference is divided by.
enum class AdvantageScale : std::uint8_t { kGroupStd, kNone };
/// How token losses become one number.
enum class LossAggregation : std::uint8_t {
  kTokenMean,
  kSeqMeanTokenMean,
  kSeqMeanTokenSum,
  kFixedLength
};
/// Which policy importance ratios start from.
enum class ProximalPolicy : std::uint8_t { kBehavior, kRecompute };
/// What happens to weights pi_proximal / pi_behavior of the decoupled form above their cap.
enum class BehaviorCorrection : std::uint8_t { kRaw, kTruncate, kMask };

/// DAPO's penalty for answers near the length limit.
struct OverlongOptions {
  std::int64_t buffer = 0;
  double factor = 1.0;
};

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

/// Returns the keys' values that say what `row` says.
[[nodiscard]] AlgorithmOptions algorithm_keys(const engines::Algorithm& row);
/// Returns what the keys say, for answers of up to `max_new_tokens` tokens.
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
