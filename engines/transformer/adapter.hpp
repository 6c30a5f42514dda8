// SPDX-License-Identifier: Apache-2.0
// An adapter bound to a model: the change that it makes to each layer, if any.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/result.hpp"
#include "base/tensor/tensor.hpp"
#include "engines/ops/ops.hpp"
#include "engines/peft/adapter_spec.hpp"
#include "engines/peft/embedding_bypass.hpp"
#include "engines/peft/linear_bypass.hpp"
#include "engines/transformer/model_layout.hpp"
#include "engines/transformer/model_weights.hpp"

namespace tidemill::engines {

/// Holds the changes to one decoder layer. A gain is empty if the base model's applies.
struct AdaptedLayer {
  PerLinear<std::optional<LinearBypass>> linears;
  PreparedVector input_gain;
  PreparedVector attention_gain;
  PreparedVector query_gain;
  PreparedVector key_gain;
};

/// Holds one version of one adapter, prepared for a device. Immutable and shareable, like
/// `ModelWeights`.
class Adapter {
public:
  /// Prepares `tensors`, which must be exactly those that `spec` describes. Reads `base` only
  /// during this call. An adapter with magnitudes (DoRA) requires that `base` keeps its tensors,
  /// and is valid for that base only.
  /// Errors: `kInvalidArgument` naming a module that the model lacks or whose shape differs, or a
  /// tensor that is missing, unknown or misshapen; those of `Ops::prepare_weight`.
  [[nodiscard]] static Result<std::shared_ptr<const Adapter>> create(const ModelConfig& config,
                                                                     const AdapterSpec& spec,
                                                                     const TensorMap& tensors,
                                                                     const ModelWeights& base,
                                                                     WeightUse use, Ops& ops);

  /// Starts what `create` does, one module at a time. `base` must outlive the layout.
  /// Errors: those of `create` about names and shapes.
  class Layout;
  [[nodiscard]] static Result<Layout> start_layout(const ModelConfig& config,
                                                   const AdapterSpec& spec, TensorMap tensors,
                                                   const ModelWeights& base, WeightUse use,
                                                   Ops& ops);

  [[nodiscard]] const AdaptedLayer& layer(std::int64_t index) const {
    return layers_[static_cast<std::size_t>(index)];
  }
  /// Return the change to a linear layer, to the head or to the embedding table, or null.
  [[nodiscard]] const LinearBypass* bypass(std::int64_t layer, LinearKind kind) const;
  [[nodiscard]] const LinearBypass* head() const { return head_ ? &*head_ : nullptr; }
  [[nodiscard]] const EmbeddingBypass* embedding() const {
    return embedding_ ? &*embedding_ : nullptr;
  }
  /// Returns the gain of the final norm; empty if the base model's applies.
  [[nodiscard]] const PreparedVector& final_gain() const noexcept { return final_gain_; }

  [[nodiscard]] const AdapterSpec& spec() const noexcept { return spec_; }
  /// Returns the lowest decoder layer that gradients must reach: the lowest one that is changed, 0
  /// if the embedding table is changed, or the number of layers if no decoder layer is.
  [[nodiscard]] std::int64_t first_layer() const noexcept { return first_layer_; }
  [[nodiscard]] std::int64_t size_bytes() const noexcept { return size_bytes_; }

private:
  Adapter() = default;
  Status add(const AdaptedModule& module, const ModuleSite& site, const TensorMap& tensors,
             const BaseWeight& base, WeightUse use, Ops& ops);

  AdapterSpec spec_;
  std::vector<AdaptedLayer> layers_;
  std::optional<LinearBypass> head_;
  std::optional<EmbeddingBypass> embedding_;
  PreparedVector final_gain_;
  std::int64_t first_layer_ = 0;
  std::int64_t size_bytes_ = 0;
};

/// An adapter that is being prepared, module by module.
class Adapter::Layout {
public:
  [[nodiscard]] bool done() const noexcept { return next_ == modules_.size(); }
  /// Prepares the next module. Requires that `done` is false. Errors: those of `create`.
  [[nodiscard]] Status run();
  /// Returns the adapter. Requires `done`.
  [[nodiscard]] std::shared_ptr<const Adapter> take() { return std::move(adapter_); }

private:
  friend class Adapter;
  struct Module {
    AdaptedModule module;
    ModuleSite site;
    BaseWeight base;
  };

  std::shared_ptr<Adapter> adapter_;
  TensorMap tensors_;
  std::vector<Module> modules_;
  WeightUse use_ = WeightUse::kForward;
  Ops* ops_ = nullptr;
  std::size_t next_ = 0;
};

}  // namespace tidemill::engines
