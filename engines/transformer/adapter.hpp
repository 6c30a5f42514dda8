// SPDX-License-Identifier: Apache-2.0
// An adapter bound to a model: for each linear layer, its bypass or none.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/result.hpp"
#include "base/tensor.hpp"
#include "engines/ops/ops.hpp"
#include "engines/peft/lora_bypass.hpp"
#include "engines/peft/lora_spec.hpp"
#include "engines/transformer/model_layout.hpp"

namespace tidemill::engines {

/// One version of one adapter, prepared for a device. Immutable and shareable, as `ModelWeights`.
class Adapter {
public:
  /// Prepares `tensors`, which must be exactly the matrices of `spec`.
  /// Errors: `kInvalidArgument` naming a module that the model lacks or whose shape differs, or a
  /// tensor that is missing, unknown or misshapen; those of `Ops::prepare_weight`.
  [[nodiscard]] static Result<std::shared_ptr<const Adapter>> create(const ModelConfig& config,
                                                                     const LoraSpec& spec,
                                                                     const TensorMap& tensors,
                                                                     WeightUse use, Ops& ops);

  /// Returns the bypass of a linear layer, or null.
  [[nodiscard]] const LoraBypass* bypass(std::int64_t layer, LinearKind kind) const;
  [[nodiscard]] const LoraSpec& spec() const noexcept { return spec_; }
  /// Returns the lowest decoder layer with a bypass: gradients need not go below it.
  [[nodiscard]] std::int64_t first_layer() const noexcept { return first_layer_; }
  [[nodiscard]] std::int64_t size_bytes() const noexcept { return size_bytes_; }

private:
  Adapter() = default;

  LoraSpec spec_;
  std::vector<PerLinear<std::optional<LoraBypass>>> layers_;
  std::int64_t first_layer_ = 0;
  std::int64_t size_bytes_ = 0;
};

}  // namespace tidemill::engines
