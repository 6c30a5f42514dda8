// SPDX-License-Identifier: Apache-2.0
#include "tests/engines/transformer/random_model.hpp"

#include <cmath>
#include <string>

#include "base/tensor/float_tensor.hpp"
#include "engines/formats/model_files.hpp"
#include "engines/transformer/model_layout.hpp"

namespace tidemill::engines {
namespace {

std::vector<float> normals(std::int64_t count, double mean, double deviation,
                           RandomStream& random) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) {
    value = static_cast<float>(mean + deviation * random.normal());
  }
  return values;
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const FeatureCase& c) {
  return out << c.name;
}

std::vector<FeatureCase> feature_cases() {
  return {{"plain", {}},
          {"tied_biases_sliding", {true, true, false, true, false}},
          {"qk_norm_scaled_rope", {false, false, true, false, true}},
          {"everything", {true, true, true, true, true}}};
}

ModelConfig small_config(const ModelFeatures& features) {
  ModelConfig config;
  config.vocab_size = 53;
  config.hidden_size = 24;
  config.intermediate_size = 40;
  config.num_layers = 3;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 8;
  config.tie_word_embeddings = features.tied;
  config.qkv_bias = features.biases;
  config.output_bias = features.biases;
  config.mlp_bias = features.biases;
  config.qk_norm = features.qk_norm;
  config.max_positions = 4096;
  config.sliding_windows = {0, features.sliding ? 7 : 0, features.sliding ? 7 : 0};
  config.rope.theta = 100.0;
  if (features.scaled_rope) {
    config.rope.kind = RopeKind::kYarn;
    config.rope.factor = 4.0;
    config.rope.original_max_positions = 16;
  }
  return config;
}

TensorMap random_weights(const ModelConfig& config, std::uint64_t seed) {
  RandomStream random(seed);
  TensorMap tensors;
  for (const auto& [name, shape] : expected_tensors(config)) {
    std::int64_t count = 1;
    for (const std::int64_t extent : shape) {
      count *= extent;
    }
    const bool is_matrix = shape.size() == 2;
    const bool is_bias = name.ends_with(".bias");
    const double deviation =
        is_matrix ? 1.0 / std::sqrt(static_cast<double>(shape[1])) : (is_bias ? 0.5 : 0.3);
    tensors[name] = make_float_tensor(
        normals(count, is_matrix || is_bias ? 0.0 : 1.0, deviation, random), shape, DType::kF32);
  }
  return tensors;
}

AdapterSpec lora_on_all(const ModelConfig& config, std::int64_t first_layer) {
  AdapterSpec spec;
  for (const LinearModule& module : linear_modules(config)) {
    if (module.layer >= first_layer) {
      spec.push_back(lora_module(module.path, module.in_features, module.out_features,
                                 2 + module.layer, 0.5F + static_cast<float>(module.layer)));
    }
  }
  return spec;
}

TensorMap random_lora(const AdapterSpec& spec, std::uint64_t seed) {
  TensorMap tensors = init_adapter(spec, {}, {}, seed).value();
  RandomStream random(seed, 1);
  for (const AdaptedModule& module : spec) {
    tensors[lora_b_name(module.path)] =
        make_float_tensor(normals(module.out_features * module.rank, 0.0, 0.3, random),
                          {module.out_features, module.rank}, DType::kF32);
  }
  return tensors;
}

std::vector<AdapterSample> adapter_samples() {
  using Kind = ModuleSelector::Kind;
  AdapterConfig lora;
  lora.rank = 3;
  lora.alpha = 4.0;
  lora.targets = {Kind::kAllLinear, {}, {}};
  AdapterConfig biases = lora;
  biases.bias = AdapterBias::kAll;
  biases.lora_bias = true;
  biases.targets = {Kind::kNames, {"q_proj", "o_proj", "up_proj"}, {}};
  AdapterConfig dora = lora;
  dora.use_dora = true;
  dora.bias = AdapterBias::kTargets;
  dora.targets = {
      Kind::kNames, {"q_proj", "v_proj", "o_proj", "gate_proj", "down_proj", "lm_head"}, {}};
  AdapterConfig ia3;
  ia3.kind = AdapterKind::kIa3;
  ia3.targets = {Kind::kNames,
                 {"q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "lm_head"},
                 {}};
  ia3.feedforward = {Kind::kNames, {"v_proj", "o_proj", "down_proj"}, {}};
  AdapterConfig ends = lora;
  ends.targets = {Kind::kNames, {"embed_tokens", "lm_head", "k_proj"}, {}};
  AdapterConfig saved = lora;
  saved.targets = {Kind::kNames, {"q_proj"}, {}};
  saved.modules_to_save = {"embed_tokens", "lm_head", "norm", "v_proj", "down_proj"};
  // Trains norms below every other trained part of the lowest layer, without the embeddings.
  AdapterConfig norms = lora;
  norms.targets = {Kind::kNames, {"v_proj"}, {}};
  norms.modules_to_save = {"input_layernorm", "post_attention_layernorm"};
  return {{"lora", lora}, {"biases", biases}, {"dora", dora},  {"ia3", ia3},
          {"ends", ends}, {"saved", saved},   {"norms", norms}};
}

AdapterSpec spec_of(const AdapterConfig& config, const ModelConfig& model) {
  return adapter_spec(config, resolve_adapter(config, model, "adapter").value(), model).value();
}

TensorMap random_adapter(const AdapterSpec& spec, const ModelConfig& model, const TensorMap& base,
                         std::uint64_t seed) {
  TensorMap tensors = init_adapter(spec, model, base, seed).value();
  RandomStream random(seed, 1);
  for (auto& [name, tensor] : tensors) {
    std::vector<float> values(static_cast<std::size_t>(tensor.num_elements()));
    widen_floats(tensor, values);
    for (float& value : values) {
      value += static_cast<float>(0.2 * random.normal());
    }
    tensor = make_float_tensor(values, tensor.shape, DType::kF32);
  }
  return tensors;
}

std::vector<std::int32_t> random_ids(const ModelConfig& config, std::int64_t length,
                                     RandomStream& random) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(length));
  for (std::int32_t& id : ids) {
    id = static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(config.vocab_size)));
  }
  return ids;
}

}  // namespace tidemill::engines
