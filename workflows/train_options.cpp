// SPDX-License-Identifier: Apache-2.0
#include "workflows/train_options.hpp"

#include <algorithm>

namespace tidemill::workflows {

std::string untrainable_dtype(const std::optional<ModelDType>& dtype, const TrainOptions& train) {
  const bool nf4 = dtype == ModelDType::kNf4;
  return (dtype == ModelDType::kInt8 || nf4) && !train.adapter.has_value()
             ? std::string(nf4 ? "nf4" : "int8") +
                   " weights cannot be trained; set train.adapter, or choose f32 or bf16"
             : "";
}

void describe(EnumSchema<LearningRateSchedule>& e) {
  e.name("constant", LearningRateSchedule::kConstant, "It stays constant.")
      .name("linear", LearningRateSchedule::kLinear, "It falls to 0 linearly.")
      .name("cosine", LearningRateSchedule::kCosine, "It falls to 0 along half a cosine wave.");
}

void describe(EnumSchema<WeightDecayExclude>& e) {
  e.name("norms_and_biases", WeightDecayExclude::kNormsAndBiases,
         "Norm gains and biases do not decay.")
      .name("none", WeightDecayExclude::kNone, "All weights decay.");
}

void describe(EnumSchema<RecomputeChoice>& e) {
  e.name("auto", RecomputeChoice::kAuto,
         "The first of none, cheap and layer with which the run fits into memory.")
      .name("none", RecomputeChoice::kNone, "No matrix product.")
      .name("cheap", RecomputeChoice::kCheap, "The gate and up projections.")
      .name("layer", RecomputeChoice::kLayer, "Each whole layer, from its input.");
}

void describe(EnumSchema<TrainedBias>& e) {
  e.name("none", TrainedBias::kNone, "None.")
      .name("all", TrainedBias::kAll, "The biases of all linear layers.")
      .name("lora_only", TrainedBias::kLoraOnly,
            "The biases of the layers that the adapter updates.");
}

// Returns what is wrong with names of layers that an adapter updates, or "".
const char* problem_with_targets(const std::vector<std::string>& names) {
  const bool joined = std::ranges::any_of(
      names, [](const std::string& name) { return name.find(',') != std::string::npos; });
  return names.empty() ? "names no layer"
         : joined      ? "has a comma in a name; write a list, such as [q_proj, v_proj]"
                       : "";
}

void describe(Schema<NewLora>& s) {
  s.field("rank", &NewLora::rank, "Rank of the update.")
      .range(1, 1024)
      .also_called({"r", "lora_r", "lora_rank"});
  s.field("alpha", &NewLora::alpha, "The update is scaled by alpha / rank. Default: 2 * rank.")
      .above(0)
      .also_called({"lora_alpha"});
  s.field("target_modules", &NewLora::target_modules,
          "Names of the layers that the adapter updates; all-linear: every linear layer except the "
          "head.")
      .one_or_many()
      .also_called({"lora_target_modules"});
  s.field("rslora", &NewLora::rslora,
          "Scales the update by alpha / sqrt(rank) instead of alpha / rank.")
      .also_called({"use_rslora"});
  s.field("dora", &NewLora::dora,
          "Trains the norm of each weight row separately from its direction (DoRA).")
      .also_called({"use_dora"});
  s.field("bias", &NewLora::bias, "Which biases of the model are trained in addition.");
  s.field("modules_to_save", &NewLora::modules_to_save,
          "Names of layers, norms or embedding tables that are trained in full, such as lm_head.")
      .one_or_many();
  s.check("target_modules",
          [](const NewLora& o) { return problem_with_targets(o.target_modules); });
}

void describe(Schema<NewIa3>& s) {
  s.field(
       "target_modules", &NewIa3::target_modules,
       "Names of the layers whose outputs the adapter scales (or inputs; see feedforward_modules).")
      .one_or_many();
  s.field("feedforward_modules", &NewIa3::feedforward_modules,
          "The layers of target_modules whose inputs are scaled instead of their outputs.")
      .one_or_many();
  s.field("modules_to_save", &NewIa3::modules_to_save,
          "Names of layers, norms or embedding tables that are trained in full, such as lm_head.")
      .one_or_many();
  s.check("target_modules", [](const NewIa3& o) { return problem_with_targets(o.target_modules); });
  s.check("feedforward_modules", [](const NewIa3& o) {
    const bool part = std::ranges::all_of(o.feedforward_modules, [&o](const std::string& name) {
      return std::ranges::find(o.target_modules, name) != o.target_modules.end();
    });
    return part ? "" : "names a layer that is not in target_modules";
  });
}

void describe(Schema<GivenAdapter>& s) {
  s.field("path", &GivenAdapter::path, "Directory of an adapter in the PEFT layout.").required();
  s.check("path", [](const GivenAdapter& o) { return o.path.empty() ? "is empty" : ""; });
}

void describe(Schema<AdapterOptions>& s) {
  s.one_of("kind", &AdapterOptions::source, "Where the adapter comes from.")
      .kind<NewLora>("lora", "A new LoRA adapter.")
      .kind<NewIa3>("ia3", "A new IA3 adapter, which scales each feature by a trained factor.")
      .kind<GivenAdapter>("given", "An existing adapter, which is trained further.",
                          /*implied_by=*/"path");
}

void describe(Schema<TrainOptions>& s) {
  s.field("steps", &TrainOptions::steps,
          "Number of steps, each of which trains one batch. The data repeats as often as needed. "
          "Without it, data.epochs decides.")
      .range(1, 1e9)
      .also_called({"max_steps", "total_training_steps", "num_steps"});
  s.field("micro_batch_tokens", &TrainOptions::micro_batch_tokens,
          "Number of tokens that go through the forward and backward pass together. Bounds memory; "
          "changes no bit of the result.")
      .range(1, 1e9)
      .unit("tokens")
      .also_called({"ppo_micro_batch_size", "ppo_micro_batch_size_per_gpu",
                    "micro_batch_size_per_gpu", "ppo_max_token_len_per_gpu",
                    "max_token_len_per_gpu"});
  s.field(
       "recompute", &TrainOptions::recompute,
       "What the backward pass computes again instead of keeping it in memory. Changes no bit of "
       "the result.")
      .also_called({"gradient_checkpointing", "enable_gradient_checkpointing"});
  s.field("learning_rate", &TrainOptions::learning_rate, "Peak learning rate.")
      .range(0, 10)
      .also_called({"lr", "actor_lr"});
  s.field("schedule", &TrainOptions::schedule, "How the learning rate changes after the warmup.")
      .also_called({"lr_scheduler_type", "lr_scheduler", "lr_schedule", "warmup_style"});
  s.field("warmup_steps", &TrainOptions::warmup_steps,
          "Optimizer steps over which the learning rate rises linearly from 0.")
      .range(0, 1e9)
      .also_called(
          {"lr_warmup_steps", "num_warmup_steps", "warmup_ratio", "lr_warmup_steps_ratio"});
  s.field("weight_decay", &TrainOptions::weight_decay, "Decoupled weight decay of AdamW.")
      .range(0, 10);
  s.field("weight_decay_exclude", &TrainOptions::weight_decay_exclude,
          "Which weights do not decay.");
  s.field("max_grad_norm", &TrainOptions::max_grad_norm,
          "Gradients whose global norm is larger are scaled down to this norm; 0: never.")
      .at_least(0)
      .also_called({"grad_clip", "gradient_clipping", "clip_grad", "max_norm"});
  s.field("betas", &TrainOptions::betas, "Decay rates of AdamW's first and second moments.")
      .range(0, 0.999999)
      .also_called({"adam_beta1", "adam_beta2"});
  s.field("epsilon", &TrainOptions::epsilon, "Added to the square root of AdamW's second moment.")
      .above(0)
      .at_most(0.01)
      .also_called({"adam_epsilon"});
  s.field("adapter", &TrainOptions::adapter, "Adapter to train instead of all parameters.")
      .also_called({"peft_config", "use_peft", "lora"});
  s.check("betas", [](const TrainOptions& o) {
    return o.betas.size() == 2 ? "" : "must be a list of two numbers, such as [0.9, 0.999]";
  });
}

}  // namespace tidemill::workflows
