// SPDX-License-Identifier: Apache-2.0
// Where gradients are accumulated: for all parameters of a model, or for one adapter alone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engines/formats/model_config.hpp"
#include "engines/peft/adapter_spec.hpp"
#include "engines/peft/embedding_bypass.hpp"
#include "engines/peft/linear_bypass.hpp"
#include "engines/transformer/model_layout.hpp"
#include "engines/transformer/parameter_set.hpp"

namespace tidemill::engines {

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
/// Sequences are added one by one in the order they are given, row after row (of one that is taken
/// in windows, the last window first), so that the sums have the same bits for every cut of the
/// batch between sequences (DESIGN I6). For that the two uses of a tied embedding are summed apart
/// and joined by `collect`, which also turns the A of LoRA on the table, summed by tokens.
class Gradients {
public:
  /// Makes zero gradients for every parameter of a model.
  [[nodiscard]] static Gradients for_model(const ModelConfig& config);
  /// Makes zero gradients for the pieces of an adapter; nothing is computed for frozen weights.
  [[nodiscard]] static Gradients for_adapter(const ModelConfig& config, const AdapterSpec& spec);
  Gradients(Gradients&&) = default;
  Gradients& operator=(Gradients&&) = default;
  Gradients(const Gradients&) = delete;
  Gradients& operator=(const Gradients&) = delete;
  ~Gradients() = default;

  /// Returns the sums since `set_zero`, named and shaped as the parameters, once all sequences of
  /// the batch have been added.
  [[nodiscard]] ParameterSet& collect();
  void set_zero() noexcept;

  /// Returns the lowest layer that gradients must reach: 0 when all parameters are trained, else as
  /// `Adapter::first_layer`.
  [[nodiscard]] std::int64_t first_layer() const noexcept { return first_layer_; }
  [[nodiscard]] bool trains_model() const noexcept { return trains_model_; }
  /// Returns whether something of the table is trained.
  [[nodiscard]] bool trains_embedding() const noexcept {
    return embedding_.table.data != nullptr || embedding_.b.data != nullptr;
  }
  [[nodiscard]] LayerGradients& layer(std::int64_t index);
  /// The rest of the model; null or empty where it is not trained.
  [[nodiscard]] const EmbeddingGradient& embedding() const noexcept { return embedding_; }
  [[nodiscard]] const LinearGradient& head() const noexcept { return head_; }
  [[nodiscard]] std::span<float> final_gain() noexcept { return final_gain_; }
  [[nodiscard]] std::int64_t size_bytes() const noexcept;

private:
  Gradients() = default;

  ParameterSet sums_;
  std::vector<float> tied_head_;     // the second use of a tied embedding
  std::vector<float> transposed_a_;  // (V, R) of LoRA on the table
  Matrix embedding_a_;               // where it goes, (R, V)
  std::vector<LayerGradients> layers_;
  EmbeddingGradient embedding_;
  LinearGradient head_;
  std::span<float> final_gain_;
  std::int64_t first_layer_ = 0;
  bool trains_model_ = false;
};

}  // namespace tidemill::engines
