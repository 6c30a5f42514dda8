// SPDX-License-Identifier: Apache-2.0
#include "engines/transformer/gradients.hpp"

#include <algorithm>
#include <string>

#include "base/check.hpp"

namespace tidemill::engines {
namespace {

Matrix matrix_over(std::vector<float>& values, std::int64_t rows, std::int64_t cols) {
  values.assign(static_cast<std::size_t>(rows * cols), 0.0F);
  return {values.data(), rows, cols, cols};
}

}  // namespace

Gradients Gradients::for_model(const ModelConfig& config) {
  Gradients gradients;
  gradients.trains_model_ = true;
  ParameterSet& sums = gradients.sums_;
  sums = ParameterSet(expected_tensors(config));
  for (std::int64_t index = 0; index < config.num_layers; ++index) {
    LayerGradients& layer = gradients.layers_.emplace_back();
    const std::string prefix = "model.layers." + std::to_string(index) + ".";
    layer.input_gain = sums.vector(prefix + "input_layernorm.weight");
    layer.attention_gain = sums.vector(prefix + "post_attention_layernorm.weight");
    if (config.qk_norm) {
      layer.query_gain = sums.vector(prefix + "self_attn.q_norm.weight");
      layer.key_gain = sums.vector(prefix + "self_attn.k_norm.weight");
    }
    for (const LinearKind kind : kLinearKinds) {
      const LinearModule module = linear_module(config, index, kind);
      layer.linears[kind].weight = sums.matrix(module.path + ".weight");
      if (module.bias) {
        layer.linears[kind].bias = sums.vector(module.path + ".bias");
      }
    }
  }
  gradients.final_gain_ = sums.vector("model.norm.weight");
  gradients.embedding_ = sums.matrix("model.embed_tokens.weight");
  gradients.head_ = config.tie_word_embeddings
                        ? matrix_over(gradients.tied_head_, config.vocab_size, config.hidden_size)
                        : sums.matrix("lm_head.weight");
  return gradients;
}

Gradients Gradients::for_adapter(const ModelConfig& config, const LoraSpec& spec) {
  TIDEMILL_CHECK(!spec.empty());
  Gradients gradients;
  gradients.sums_ = ParameterSet(lora_shapes(spec));
  gradients.layers_.resize(static_cast<std::size_t>(config.num_layers));
  gradients.first_layer_ = config.num_layers;
  const std::vector<LinearModule> modules = linear_modules(config);
  for (const LoraModule& lora : spec) {
    const auto module = std::ranges::find(modules, lora.path, &LinearModule::path);
    TIDEMILL_CHECK(module != modules.end()) << lora.path;
    gradients.layer(module->layer).linears[module->kind].lora =
        LoraGradient{gradients.sums_.matrix(lora_a_name(lora.path)),
                     gradients.sums_.matrix(lora_b_name(lora.path))};
    gradients.first_layer_ = std::min(gradients.first_layer_, module->layer);
  }
  return gradients;
}

ParameterSet& Gradients::collect() {
  if (!tied_head_.empty()) {
    for (std::int64_t row = 0; row < embedding_.rows; ++row) {
      for (std::int64_t col = 0; col < embedding_.cols; ++col) {
        embedding_.row(row)[col] += head_.row(row)[col];
      }
    }
    std::ranges::fill(tied_head_, 0.0F);
  }
  return sums_;
}

void Gradients::set_zero() noexcept {
  sums_.set_zero();
  std::ranges::fill(tied_head_, 0.0F);
}

LayerGradients& Gradients::layer(std::int64_t index) {
  return layers_[static_cast<std::size_t>(index)];
}

std::int64_t Gradients::size_bytes() const noexcept {
  return static_cast<std::int64_t>((sums_.values().size() + tied_head_.size()) * sizeof(float));
}

}  // namespace tidemill::engines
