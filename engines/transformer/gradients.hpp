// SPDX-License-Identifier: Apache-2.0
// Accumulates gradients: of all parameters of a model, or only of one adapter.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "engines/formats/model_config.hpp"
#include "engines/peft/adapter_spec.hpp"
#include "engines/peft/embedding_bypass.hpp"
#include "engines/peft/linear_bypass.hpp"
#include "engines/transformer/device_matrix.hpp"
#include "engines/transformer/model_layout.hpp"
#include "engines/transformer/parameter_set.hpp"
#include "engines/transformer/unit_sequence.hpp"

namespace tidemill::engines {

/// Returns the lowest layer that gradients of the adapter of `spec` must reach, as
/// `Adapter::first_layer`. If `spec` is empty, all parameters are trained, and it is 0.
[[nodiscard]] std::int64_t first_trained_layer(const ModelConfig& config, const AdapterSpec& spec);

/// Holds the gradients of one decoder layer. Gains are empty if they are not trained.
struct LayerGradients {
  Vector input_gain;
  Vector attention_gain;
  Vector query_gain;
  Vector key_gain;
  PerLinear<LinearGradient> linears;
};

/// Holds sums of gradients over the sequences of a batch.
///
/// Sequences are added one by one in the given order, row after row. A sequence that is processed
/// in windows adds its last window first. The sums therefore have the same bits however the batch
/// is divided between sequences (docs/architecture.md, I6). For the same reason, the two uses of a
/// tied embedding are summed separately, and `collect` adds them. `collect` also transposes the
/// gradient of the A matrix of LoRA on the embedding table, which is summed by token.
class Gradients {
public:
  /// Creates zero gradients for every parameter of a model. `ops` must outlive them.
  /// Errors: those of `DeviceMemory::allocate`.
  [[nodiscard]] static Result<Gradients> for_model(const ModelConfig& config, Ops& ops);
  /// Creates zero gradients for the tensors of an adapter. Nothing is computed for frozen weights.
  /// Errors: those of `DeviceMemory::allocate`.
  [[nodiscard]] static Result<Gradients> for_adapter(const ModelConfig& config,
                                                     const AdapterSpec& spec, Ops& ops);
  Gradients(Gradients&&) = default;
  Gradients& operator=(Gradients&&) = default;
  Gradients(const Gradients&) = delete;
  Gradients& operator=(const Gradients&) = delete;
  ~Gradients() = default;

  /// Returns the sums since `set_zero`, with the names and shapes of the parameters. To be called
  /// after all sequences of the batch have been added.
  [[nodiscard]] ParameterSet& collect();
  void set_zero();
  /// Start the same, part by part. After `start_collect` has run, `sums` has the result. The
  /// gradients must outlive the units.
  [[nodiscard]] std::unique_ptr<UnitSequence> start_collect();
  [[nodiscard]] std::unique_ptr<UnitSequence> start_zero();
  [[nodiscard]] ParameterSet& sums() noexcept { return sums_; }

  /// Returns the lowest layer that gradients must reach: 0 if all parameters are trained, otherwise
  /// as `Adapter::first_layer`.
  [[nodiscard]] std::int64_t first_layer() const noexcept { return first_layer_; }
  [[nodiscard]] bool trains_model() const noexcept { return trains_model_; }
  /// Returns whether the embedding table or an adapter of it is trained.
  [[nodiscard]] bool trains_embedding() const noexcept {
    return !embedding_.table.is_null() || !embedding_.b.is_null();
  }
  [[nodiscard]] LayerGradients& layer(std::int64_t index);
  /// Return the gradients outside the decoder layers. Those of parts that are not trained are null
  /// or empty.
  [[nodiscard]] const EmbeddingGradient& embedding() const noexcept { return embedding_; }
  [[nodiscard]] const LinearGradient& head() const noexcept { return head_; }
  [[nodiscard]] Vector final_gain() noexcept { return final_gain_; }
  [[nodiscard]] std::int64_t size_bytes() const noexcept;

private:
  Gradients(ParameterSet sums, Ops& ops)
      : ops_(&ops), sums_(std::move(sums)), tied_head_(ops.memory()), transposed_a_(ops.memory()) {}
  class RowUnits;
  [[nodiscard]] Result<Matrix> zeros(DeviceMatrix& matrix, std::int64_t rows, std::int64_t cols);

  Ops* ops_;
  ParameterSet sums_;
  DeviceMatrix tied_head_;     // (V, D), the second use of a tied embedding; empty if there is none
  DeviceMatrix transposed_a_;  // (V, R), for LoRA on the table; empty otherwise
  Matrix embedding_a_;         // (R, V), the part of `sums_` that `collect` adds it to
  std::vector<LayerGradients> layers_;
  EmbeddingGradient embedding_;
  LinearGradient head_;
  Vector final_gain_;
  std::int64_t first_layer_ = 0;
  bool trains_model_ = false;
};

}  // namespace tidemill::engines
