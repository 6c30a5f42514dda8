// SPDX-License-Identifier: Apache-2.0
// The weights of a model, laid out for a device: what `Transformer` computes with.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "base/tensor.hpp"
#include "engines/formats/model_config.hpp"
#include "engines/ops/ops.hpp"
#include "engines/transformer/model_layout.hpp"

namespace tidemill::engines {

/// Whose memory tensors lie in.
enum class TensorMemory : std::uint8_t {
  kShared,    // their own: what is kept of them is not copied
  kBorrowed,  // somebody's who will change it: what is kept of them is copied
};

/// How weights are prepared.
struct WeightOptions {
  /// What `Ops::prepare_weight` takes. Beside kNf4 the embedding table and the head are kBlockI8:
  /// they weigh too much to stay as they are, and the loss is more sensitive to them.
  DType compute = DType::kF32;
  WeightUse use = WeightUse::kForward;
  /// Keeps the tensors alive, for adapters that are made from them.
  bool keep_tensors = false;
  TensorMemory memory = TensorMemory::kShared;
};

/// Returns the type that the head computes in beside layers of type `compute`.
[[nodiscard]] DType head_type(DType compute) noexcept;

/// A linear layer. `bias` is empty when there is none.
struct LinearWeights {
  std::unique_ptr<PreparedWeight> weight;
  std::vector<float> bias;
};

/// One decoder layer. The query and key gains are empty when the model has no q/k norms.
struct LayerWeights {
  std::vector<float> input_gain;      // (D)
  std::vector<float> attention_gain;  // (D), of the norm between attention and MLP
  std::vector<float> query_gain;      // (C)
  std::vector<float> key_gain;        // (C)
  PerLinear<LinearWeights> linears;
};

/// Where a borrowed table is copied to: the memory of the last copy, unless somebody holds that.
class TableMemory {
public:
  /// Returns a copy of `from`.
  [[nodiscard]] Buffer copy_of(const Buffer& from);

private:
  std::shared_ptr<std::byte[]> bytes_;
  std::size_t size_ = 0;
};

/// All weights of one version of one model.
///
/// Immutable and shareable: the rollout view holds the snapshot's, the trainer makes its own after
/// every optimizer step. Holds the embedding table's buffer (beside NF4 its blocks, else no copy)
/// and, for a tied model, a second, prepared copy that serves as the head.
/// Threads: safe to use concurrently.
class ModelWeights {
public:
  /// Prepares `tensors`, which must be exactly the parameters of `config`. Gives up `old`, weights
  /// of the same `config` or null: unless somebody else holds it, its memory is taken first, and
  /// what pointed at it weakly points at nothing. Requires that nobody comes to hold it meanwhile.
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
  /// Returns a tensor that it was made from, or null: none unless they are kept.
  [[nodiscard]] const Tensor* tensor(const std::string& name) const;
  /// Returns the memory it keeps alive, the embedding table's included, other tensors that are kept
  /// apart.
  [[nodiscard]] std::int64_t size_bytes() const noexcept { return size_bytes_; }
  /// Returns whether every parameter that is laid out was seen to be finite: all but the embedding
  /// table, which stays as it is. False says nothing, as of `PreparedWeight`.
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
