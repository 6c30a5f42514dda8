// SPDX-License-Identifier: Apache-2.0
// An adapter bound to a model: for each of its layers, what changes it, or nothing.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/result.hpp"
#include "base/tensor.hpp"
#include "engines/ops/ops.hpp"
#include "engines/peft/adapter_spec.hpp"
#include "engines/peft/embedding_bypass.hpp"
#include "engines/peft/linear_bypass.hpp"
#include "engines/transformer/model_layout.hpp"
#include "engines/transformer/model_weights.hpp"

namespace tidemill::engines {

/// What changes one decoder layer. Gains are empty where the base's hold.
struct AdaptedLayer {
  PerLinear<std::optional<LinearBypass>> linears;
  std::vector<float> input_gain;
  std::vector<float> attention_gain;
  std::vector<float> query_gain;
  std::vector<float> key_gain;
};

/// One version of one adapter, prepared for a device. Immutable and shareable, as `ModelWeights`.
class Adapter {
public:
  /// Prepares `tensors`, which must be exactly the pieces of `spec`. `base` is read here alone; an
  /// adapter with magnitudes (DoRA) is good for no other base, and needs `base` to keep its
  /// tensors. Errors: `kInvalidArgument` naming a module that the model lacks or whose shape
  /// differs, or a tensor that is missing, unknown or misshapen; those of `Ops::prepare_weight`.
  [[nodiscard]] static Result<std::shared_ptr<const Adapter>> create(const ModelConfig& config,
                                                                     const AdapterSpec& spec,
                                                                     const TensorMap& tensors,
                                                                     const ModelWeights& base,
                                                                     WeightUse use, Ops& ops);

  [[nodiscard]] const AdaptedLayer& layer(std::int64_t index) const {
    return layers_[static_cast<std::size_t>(index)];
  }
  /// Returns what changes a linear layer, the head or the table, or null.
  [[nodiscard]] const LinearBypass* bypass(std::int64_t layer, LinearKind kind) const;
  [[nodiscard]] const LinearBypass* head() const { return head_ ? &*head_ : nullptr; }
  [[nodiscard]] const EmbeddingBypass* embedding() const {
    return embedding_ ? &*embedding_ : nullptr;
  }
  /// Returns the gain of the last norm; empty: the base's.
  [[nodiscard]] const std::vector<float>& final_gain() const noexcept { return final_gain_; }

  [[nodiscard]] const AdapterSpec& spec() const noexcept { return spec_; }
  /// Returns the lowest decoder layer that is changed, 0 if the table is, the number of layers if
  /// none is: gradients need not go below it.
  [[nodiscard]] std::int64_t first_layer() const noexcept { return first_layer_; }
  [[nodiscard]] std::int64_t size_bytes() const noexcept { return size_bytes_; }

private:
  Adapter() = default;
  Status add(const AdaptedModule& module, const ModuleSite& site, const TensorMap& tensors,
             const Tensor* base_weight, WeightUse use, Ops& ops);

  AdapterSpec spec_;
  std::vector<AdaptedLayer> layers_;
  std::optional<LinearBypass> head_;
  std::optional<EmbeddingBypass> embedding_;
  std::vector<float> final_gain_;
  std::int64_t first_layer_ = 0;
  std::int64_t size_bytes_ = 0;
};

}  // namespace tidemill::engines
