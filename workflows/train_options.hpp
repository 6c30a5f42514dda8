// SPDX-License-Identifier: Apache-2.0
// The keys of section `train` that all workflows share. The help texts in train_options.cpp explain
// the keys.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/schema/schema.hpp"
#include "workflows/data_options.hpp"

namespace tidemill::workflows {

/// How the learning rate changes after the warmup.
enum class LearningRateSchedule : std::uint8_t { kConstant, kLinear, kCosine };
/// Which weights do not decay.
enum class WeightDecayExclude : std::uint8_t { kNormsAndBiases, kNone };

/// Which biases of the model are trained in addition to an adapter.
enum class TrainedBias : std::uint8_t { kNone, kAll, kLoraOnly };

/// A new LoRA adapter.
struct NewLora {
  std::int32_t rank = 16;
  std::optional<double> alpha;  // absent: 2 * rank
  std::vector<std::string> target_modules{"all-linear"};
  bool rslora = false;
  bool dora = false;
  TrainedBias bias = TrainedBias::kNone;
  std::vector<std::string> modules_to_save;
};

/// A new IA3 adapter.
struct NewIa3 {
  std::vector<std::string> target_modules{"k_proj", "v_proj", "down_proj"};
  std::vector<std::string> feedforward_modules{"down_proj"};
  std::vector<std::string> modules_to_save;
};

/// An existing adapter in the PEFT layout, which is trained further.
struct GivenAdapter {
  std::string path;
};

/// The adapter that a run trains: a new one, or one that already exists.
struct AdapterOptions {
  OneOf source{"lora", NewLora{}};
};

/// What the backward pass computes again instead of keeping it in memory; see `engines::Recompute`.
enum class RecomputeChoice : std::uint8_t { kAuto, kNone, kCheap, kLayer };

/// The optimizer, and what it trains.
struct TrainOptions {
  std::optional<std::int64_t> steps;  // absent: data.epochs decides
  std::int64_t micro_batch_tokens = 1024;
  RecomputeChoice recompute = RecomputeChoice::kAuto;
  double learning_rate = 1e-5;
  LearningRateSchedule schedule = LearningRateSchedule::kConstant;
  std::int64_t warmup_steps = 0;
  double weight_decay = 0.0;
  WeightDecayExclude weight_decay_exclude = WeightDecayExclude::kNormsAndBiases;
  double max_grad_norm = 1.0;
  std::vector<double> betas{0.9, 0.999};  // of the first and the second moment
  double epsilon = 1e-8;
  std::optional<AdapterOptions> adapter;  // absent: all parameters
};

/// Returns why a model in `dtype` cannot be trained by `train`, or an empty text.
[[nodiscard]] std::string untrainable_dtype(const std::optional<ModelDType>& dtype,
                                            const TrainOptions& train);

void describe(EnumSchema<LearningRateSchedule>& e);
void describe(EnumSchema<WeightDecayExclude>& e);
void describe(EnumSchema<TrainedBias>& e);
void describe(EnumSchema<RecomputeChoice>& e);
void describe(Schema<NewLora>& s);
void describe(Schema<NewIa3>& s);
void describe(Schema<GivenAdapter>& s);
void describe(Schema<AdapterOptions>& s);
void describe(Schema<TrainOptions>& s);

}  // namespace tidemill::workflows
