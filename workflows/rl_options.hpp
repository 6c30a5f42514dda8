// SPDX-License-Identifier: Apache-2.0
// The options of reinforcement learning. The help texts in rl_options.cpp explain each option.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/schema/schema.hpp"
#include "workflows/algorithm_options.hpp"
#include "workflows/data_options.hpp"
#include "workflows/eval_options.hpp"
#include "workflows/placement_options.hpp"
#include "workflows/reward_options.hpp"
#include "workflows/run_options.hpp"
#include "workflows/train_options.hpp"

namespace tidemill::workflows {

/// How responses are generated.
struct RolloutOptions {
  std::int32_t group_size = 8;
  std::int32_t max_new_tokens = 256;
  double temperature = 1.0;
  std::int32_t top_k = 0;
  double top_p = 1.0;
  double min_p = 0.0;
  double repetition_penalty = 1.0;
  double frequency_penalty = 0.0;
  double presence_penalty = 0.0;
  std::vector<std::string> stop;
  std::vector<std::int32_t> stop_ids;  // in addition to the model's end tokens
  std::int32_t workers = 2;
  std::optional<std::int64_t> kv_bytes;        // absent: the memory plan chooses
  std::optional<std::int64_t> prefill_tokens;  // absent: as many as an iteration may compute
};

/// Which groups the trainer takes next.
enum class StalenessPolicy : std::uint8_t { kPace };
/// Which version generates each batch.
enum class StalenessSchedule : std::uint8_t { kNone, kFixed };

/// How far rollout may run ahead of training.
struct StalenessOptions {
  std::int32_t max = 0;  // versions
  StalenessPolicy policy = StalenessPolicy::kPace;
  StalenessSchedule schedule = StalenessSchedule::kNone;
};

/// How batches are formed and trained on.
struct RlTrainOptions {
  std::int32_t prompts_per_step = 16;
  std::int32_t minibatches = 1;
  std::int32_t epochs = 1;
  TrainOptions common;
};

/// How a run evaluates its model.
struct RlEvalOptions {
  std::int32_t samples = 1;  // responses to each prompt
  double temperature = 0.0;
  EvalOptions common;
};

/// What happens to a group if one of its samples fails.
enum class OnFailedSample : std::uint8_t { kDropGroup, kShrink };

/// The limits of the stream between the stages.
struct StreamLimits {
  std::int64_t bytes = 256LL << 20U;
  std::int64_t lease_ms = 60'000;
  std::int32_t max_deliveries = 3;
  OnFailedSample on_failed = OnFailedSample::kDropGroup;
};

/// Which of rollout and training computes next if both have work.
enum class SharingPriority : std::uint8_t { kShares, kRollout, kTrain };

/// How rollout and training share the threads of a device.
struct ExecutorShareOptions {
  SharingPriority priority = SharingPriority::kShares;
  double train_weight = 1.0;  // training's share of the tokens, relative to rollout's 1
};

/// All options of an `rl` run.
struct RlOptions {
  ModelOptions model;
  DataOptions data;
  RolloutOptions rollout;
  std::vector<RewardOptions> reward{RewardOptions{}};  // at least one; their weighted sum is used
  AlgorithmOptions algorithm;
  StalenessOptions staleness;
  RlTrainOptions train;
  RlEvalOptions eval;
  StreamLimits stream;
  ExecutorShareOptions executor;
  PlacementOptions placement;
  RunOptions run;
};

void describe(EnumSchema<StalenessPolicy>& e);
void describe(EnumSchema<StalenessSchedule>& e);
void describe(Schema<RolloutOptions>& s);
void describe(Schema<StalenessOptions>& s);
void describe(Schema<RlTrainOptions>& s);
void describe(Schema<RlEvalOptions>& s);
void describe(EnumSchema<OnFailedSample>& e);
void describe(Schema<StreamLimits>& s);
void describe(EnumSchema<SharingPriority>& e);
void describe(Schema<ExecutorShareOptions>& s);
void describe(Schema<RlOptions>& s);

}  // namespace tidemill::workflows
