// SPDX-License-Identifier: Apache-2.0
// The weights of a model, laid out for a device.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "base/tensor/tensor.hpp"
#include "engines/formats/model_config.hpp"
#include "engines/ops/ops.hpp"
#include "engines/transformer/model_layout.hpp"

namespace tidemill::engines {

/// Says whether tensors that `ModelWeights` keeps must be copied.
enum class TensorMemory : std::uint8_t {
  kShared,    // their memory does not change: they are shared, not copied
  kBorrowed,  // the owner of their memory will change it: they are copied
};

/// Options for preparing weights.
struct WeightOptions {
  /// Passed to `Ops::prepare_weight`. If it is kNf4, the embedding table and the head are kBlockI8
  /// instead: they are too large to stay unquantized, and the loss is more sensitive to them than
  /// to other weights.
  DType compute = DType::kF32;
  WeightUse use = WeightUse::kForward;
  /// Keeps the tensors alive, for adapters that are created from them.
  bool keep_tensors = false;
  TensorMemory memory = TensorMemory::kShared;
};

/// Returns the type that the head computes in if other layers compute in `compute`.
[[nodiscard]] DType head_type(DType compute) noexcept;

/// Holds a linear layer. `bias` is empty if the layer has none.
struct LinearWeights {
  std::unique_ptr<PreparedWeight> weight;
  std::vector<float> bias;
};

/// Holds one decoder layer. The query and key gains are empty if the model has no q/k norms.
struct LayerWeights {
  std::vector<float> input_gain;      // (D)
  std::vector<float> attention_gain;  // (D), of the norm between attention and MLP
  std::vector<float> query_gain;      // (C)
  std::vector<float> key_gain;        // (C)
  PerLinear<LinearWeights> linears;
};

/// Holds copies of borrowed embedding tables. It reuses the memory of the last copy if nothing else
/// holds that copy.
class TableMemory {
public:
  /// Returns a copy of `from`.
  [[nodiscard]] Buffer copy_of(const Buffer& from);

private:
  std::shared_ptr<std::byte[]> bytes_;
  std::size_t size_ = 0;
};

/// Holds all weights of one version of one model.
///
/// Immutable and shareable. The rollout view holds the weights of the snapshot; the trainer creates
/// its own after every optimizer step. Holds the embedding table without copying its buffer, except
/// for NF4 (quantized to blocks) and borrowed tensors (copied). A tied model also has a prepared
/// copy of the table as the head.
/// Threads: safe to use concurrently.
class ModelWeights {
public:
  /// Prepares `tensors`, which must be exactly the parameters of `config`. Consumes `old`, which is
  /// null or holds weights of the same `config`. If the caller passes the only reference, its
  /// memory is reused, and weak pointers to it expire. No other thread may acquire a reference to
  /// `old` during the call.
  /// Errors: `kInvalidArgument` naming a tensor that is missing, unknown, misshapen or not of a
  /// float type; those of `Ops::prepare_weight`.
  [[nodiscard]] static Result<std::shared_ptr<const ModelWeights>> create(
      const ModelConfig& config, const TensorMap& tensors, const WeightOptions& options, Ops& ops,
      std::shared_ptr<const ModelWeights> old = nullptr);

  [[nodiscard]] const WeightOptions& options() const noexcept { return options_; }
  [[nodiscard]] const LayerWeights& layer(std::int64_t index) const;
  [[nodiscard]] WeightView embedding() const noexcept;
  [[nodiscard]] const std::vector<float>& final_gain() const noexcept { return final_gain_; }
  [[nodiscard]] const PreparedWeight& head() const noexcept { return *head_; }
  /// Returns a tensor that it was created from. Returns null if the name is unknown or tensors are
  /// not kept.
  [[nodiscard]] const Tensor* tensor(const std::string& name) const;
  /// Returns the memory that it keeps alive, including the embedding table but not other kept
  /// tensors. Units: bytes.
  [[nodiscard]] std::int64_t size_bytes() const noexcept { return size_bytes_; }
  /// Returns true if preparing showed that all parameters are finite, except the embedding table,
  /// which is not laid out. False proves nothing, as for `PreparedWeight`.
  [[nodiscard]] bool seen_finite() const noexcept { return seen_finite_; }

private:
  ModelWeights() = default;

  WeightOptions options_;
  TensorMap kept_;
  Tensor embedding_;
  TableMemory table_memory_;
  std::vector<LayerWeights> layers_;
  std::vector<float> final_gain_;
  std::unique_ptr<PreparedWeight> head_;
  std::int64_t size_bytes_ = 0;
  bool seen_finite_ = false;
};

}  // namespace tidemill::engines
