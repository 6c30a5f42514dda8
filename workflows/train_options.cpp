// SPDX-License-Identifier: Apache-2.0
#include "workflows/train_options.hpp"

#include <algorithm>

namespace tidemill::workflows {

std::string untrainable_dtype(const std::optional<ModelDType>& dtype, const TrainOptions& train) {
  const bool nf4 = dtype == ModelDType::kNf4;
  return (dtype == ModelDType::kInt8 || nf4) && !train.adapter.has_value()
             ? std::string(nf4 ? "nf4" : "int8") +
                   " weights cannot be trained; give train.adapter, or choose f32 or bf16"
             : "";
}

void describe(EnumSchema<LearningRateSchedule>& e) {
  e.name("constant", LearningRateSchedule::kConstant, "Stays.")
      .name("linear", LearningRateSchedule::kLinear, "Falls to 0 on a line.")
      .name("cosine", LearningRateSchedule::kCosine, "Falls to 0 on half a cosine.");
}

void describe(EnumSchema<WeightDecayExclude>& e) {
  e.name("norms_and_biases", WeightDecayExclude::kNormsAndBiases, "Norm gains and biases.")
      .name("none", WeightDecayExclude::kNone, "All weights decay.");
}

void describe(EnumSchema<RecomputeChoice>& e) {
  e.name("auto", RecomputeChoice::kAuto, "As little as the memory allows.")
      .name("none", RecomputeChoice::kNone, "Nothing that costs a product.")
      .name("cheap", RecomputeChoice::kCheap, "The products before the activation.")
      .name("layer", RecomputeChoice::kLayer, "Each layer from its input.");
}

void describe(EnumSchema<TrainedBias>& e) {
  e.name("none", TrainedBias::kNone, "None.")
      .name("all", TrainedBias::kAll, "Those of all linear layers.")
      .name("lora_only", TrainedBias::kLoraOnly, "Those of the layers that get an update.");
}

void describe(Schema<NewLora>& s) {
  s.field("rank", &NewLora::rank, "Rank of the update.").range(1, 1024);
  s.field("alpha", &NewLora::alpha, "Scale times rank; without it twice the rank.").above(0);
  s.field("target_modules", &NewLora::target_modules,
          "Names of the layers that get one; all-linear: every linear layer but the head.")
      .one_or_many();
  s.field("rslora", &NewLora::rslora, "Scales by alpha / sqrt(rank) in place of alpha / rank.");
  s.field("dora", &NewLora::dora, "Trains the norm of each row apart from its direction (DoRA).");
  s.field("bias", &NewLora::bias, "Which biases of the model are trained too.");
  s.field("modules_to_save", &NewLora::modules_to_save,
          "Names of layers, norms or tables that are trained whole, such as lm_head.")
      .one_or_many();
  s.check("target_modules",
          [](const NewLora& o) { return o.target_modules.empty() ? "names no layer" : ""; });
}

void describe(Schema<NewIa3>& s) {
  s.field("target_modules", &NewIa3::target_modules,
          "Names of the layers whose outputs, or inputs, are scaled.")
      .one_or_many();
  s.field("feedforward_modules", &NewIa3::feedforward_modules,
          "Those of them whose inputs are scaled.")
      .one_or_many();
  s.field("modules_to_save", &NewIa3::modules_to_save,
          "Names of layers, norms or tables that are trained whole, such as lm_head.")
      .one_or_many();
  s.check("target_modules",
          [](const NewIa3& o) { return o.target_modules.empty() ? "names no layer" : ""; });
  s.check("feedforward_modules", [](const NewIa3& o) {
    const bool part = std::ranges::all_of(o.feedforward_modules, [&o](const std::string& name) {
      return std::ranges::find(o.target_modules, name) != o.target_modules.end();
    });
    return part ? "" : "names a layer that target_modules does not";
  });
}

void describe(Schema<GivenAdapter>& s) {
  s.field("path", &GivenAdapter::path, "Directory of an adapter in PEFT layout.").required();
  s.check("path", [](const GivenAdapter& o) { return o.path.empty() ? "is empty" : ""; });
}

void describe(Schema<AdapterOptions>& s) {
  s.one_of("kind", &AdapterOptions::source, "Where the adapter comes from.")
      .kind<NewLora>("lora", "A new LoRA adapter.")
      .kind<NewIa3>("ia3", "A new IA3 adapter: a factor for each feature, nothing else.")
      .kind<GivenAdapter>("given", "One that is there already.", /*implied_by=*/"path");
}

void describe(Schema<TrainOptions>& s) {
  s.field("steps", &TrainOptions::steps,
          "Batches to train; data repeats as often as needed. Without it, data.epochs decides.")
      .range(1, 1e9);
  s.field("micro_batch_tokens", &TrainOptions::micro_batch_tokens,
          "Tokens that go forward and backward together; bounds memory, never changes a bit.")
      .range(1, 1e9)
      .unit("tokens");
  s.field("recompute", &TrainOptions::recompute,
          "What going backward computes again instead of keeping it; never changes a bit.");
  s.field("learning_rate", &TrainOptions::learning_rate, "The highest learning rate.").range(0, 10);
  s.field("schedule", &TrainOptions::schedule, "How the learning rate goes on after warming up.");
  s.field("warmup_steps", &TrainOptions::warmup_steps,
          "Optimizer steps over which the learning rate rises from 0.")
      .range(0, 1e9);
  s.field("weight_decay", &TrainOptions::weight_decay, "Decoupled decay of AdamW.").range(0, 10);
  s.field("weight_decay_exclude", &TrainOptions::weight_decay_exclude,
          "Which weights do not decay.");
  s.field("max_grad_norm", &TrainOptions::max_grad_norm,
          "Gradients are scaled down to this global norm; 0: never.")
      .at_least(0);
  s.field("betas", &TrainOptions::betas, "Decay of AdamW's first and second moment.")
      .range(0, 0.999999);
  s.field("epsilon", &TrainOptions::epsilon, "Added to the root of AdamW's second moment.")
      .above(0);
  s.field("adapter", &TrainOptions::adapter, "What is trained instead of all parameters.");
  s.check("betas", [](const TrainOptions& o) {
    return o.betas.size() == 2 ? "" : "is not a list of two numbers, such as [0.9, 0.999]";
  });
}

}  // namespace tidemill::workflows
