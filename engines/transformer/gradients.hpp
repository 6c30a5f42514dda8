// SPDX-License-Identifier: Apache-2.0
// Where gradients are accumulated: for all parameters of a model, or for one adapter alone.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engines/formats/model_config.hpp"
#include "engines/peft/lora_bypass.hpp"
#include "engines/transformer/model_layout.hpp"
#include "engines/transformer/parameter_set.hpp"

namespace tidemill::engines {

/// The gradients of one linear layer. Null views: not trained.
struct LinearGradient {
  Matrix weight;          // (O, I)
  std::span<float> bias;  // (O), empty when there is none
  std::optional<LoraGradient> lora;
};

/// The gradients of one decoder layer. Gains are empty when not trained.
struct LayerGradients {
  std::span<float> input_gain;
  std::span<float> attention_gain;
  std::span<float> query_gain;
  std::span<float> key_gain;
  PerLinear<LinearGradient> linears;
};

/// Sums of gradients over the sequences of a batch.
///
/// Sequences are added one by one in the order they are given, row after row, so that the sums have
/// the same bits for every cut of the batch between sequences (DESIGN I6). For that the two uses of
/// a tied embedding are summed apart and joined by `collect`.
class Gradients {
public:
  /// Makes zero gradients for every parameter of a model.
  [[nodiscard]] static Gradients for_model(const ModelConfig& config);
  /// Makes zero gradients for the matrices of an adapter; nothing is computed for frozen weights.
  [[nodiscard]] static Gradients for_adapter(const ModelConfig& config, const LoraSpec& spec);
  Gradients(Gradients&&) = default;
  Gradients& operator=(Gradients&&) = default;
  Gradients(const Gradients&) = delete;
  Gradients& operator=(const Gradients&) = delete;
  ~Gradients() = default;

  /// Returns the sums since `set_zero`, named and shaped as the parameters, once all sequences of
  /// the batch have been added.
  [[nodiscard]] ParameterSet& collect();
  void set_zero() noexcept;

  /// Returns the lowest layer that gradients must reach; 0 when all parameters are trained.
  [[nodiscard]] std::int64_t first_layer() const noexcept { return first_layer_; }
  [[nodiscard]] bool trains_model() const noexcept { return trains_model_; }
  [[nodiscard]] LayerGradients& layer(std::int64_t index);
  /// The rest of the model; null or empty for an adapter.
  [[nodiscard]] Matrix embedding() noexcept { return embedding_; }  // (V, D), look-ups
  [[nodiscard]] Matrix head() noexcept { return head_; }            // (V, D)
  [[nodiscard]] std::span<float> final_gain() noexcept { return final_gain_; }
  [[nodiscard]] std::int64_t size_bytes() const noexcept;

private:
  Gradients() = default;

  ParameterSet sums_;
  std::vector<float> tied_head_;  // the second use of a tied embedding
  std::vector<LayerGradients> layers_;
  Matrix embedding_;
  Matrix head_;
  std::span<float> final_gain_;
  std::int64_t first_layer_ = 0;
  bool trains_model_ = false;
};

}  // namespace tidemill::engines
