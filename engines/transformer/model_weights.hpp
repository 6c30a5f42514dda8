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
#include "engines/transformer/parameter_set.hpp"

namespace tidemill::engines {

/// Options for preparing weights.
struct WeightOptions {
  /// Passed to `Ops::prepare_weight`. If it is kNf4, the embedding table and the head are kBlockI8
  /// instead: they are too large to stay unquantized, and the loss is more sensitive to them than
  /// to other weights.
  DType compute = DType::kF32;
  WeightUse use = WeightUse::kForward;
  /// Keeps the tensors alive, for adapters that are created from them.
  bool keep_tensors = false;
};

/// Returns the type that the head computes in if other layers compute in `compute`.
[[nodiscard]] DType head_type(DType compute) noexcept;
/// Returns whether the embedding table is read from the prepared head, so that it takes no memory.
[[nodiscard]] bool ties_table(const ModelConfig& config, DType compute) noexcept;

/// Holds a linear layer. `bias` is empty if the layer has none.
struct LinearWeights {
  std::unique_ptr<PreparedWeight> weight;
  PreparedVector bias;
};

/// Holds one decoder layer. The query and key gains are empty if the model has no q/k norms.
struct LayerWeights {
  PreparedVector input_gain;      // (D)
  PreparedVector attention_gain;  // (D), of the norm between attention and MLP
  PreparedVector query_gain;      // (C)
  PreparedVector key_gain;        // (C)
  PerLinear<LinearWeights> linears;
};

/// Holds all weights of one version of one model.
///
/// Immutable and shareable. The rollout view holds the weights of the snapshot; the trainer creates
/// its own after every optimizer step. Holds the embedding table without copying its buffer, except
/// for NF4 (quantized to blocks) and parameters in training (copied). A tied model also has a
/// prepared copy of the table as the head, which with NF4 takes the place of the table.
/// Threads: safe to use concurrently.
class ModelWeights {
public:
  class Layout;

  /// Prepares `tensors`, which must be exactly the parameters of `config`. Consumes `old`, which is
  /// null or holds weights of the same `config`. If the caller passes the only reference, its
  /// memory is reused, and weak pointers to it expire. No other thread may acquire a reference to
  /// `old` during the call.
  /// Errors: `kInvalidArgument` naming a tensor that is missing, unknown, misshapen or not of a
  /// float type; those of `Ops::prepare_weight`.
  [[nodiscard]] static Result<std::shared_ptr<const ModelWeights>> create(
      const ModelConfig& config, const TensorMap& tensors, const WeightOptions& options, Ops& ops,
      std::shared_ptr<const ModelWeights> old = nullptr);
  /// Does the same with parameters in training, rounded to `published` (kF32 or kBF16). The weights
  /// do not refer to them, so they may change afterwards.
  [[nodiscard]] static Result<std::shared_ptr<const ModelWeights>> create(
      const ModelConfig& config, const ParameterSet& parameters, DType published,
      const WeightOptions& options, Ops& ops, std::shared_ptr<const ModelWeights> old = nullptr);

  [[nodiscard]] const WeightOptions& options() const noexcept { return options_; }
  [[nodiscard]] const LayerWeights& layer(std::int64_t index) const;
  [[nodiscard]] const PreparedTable& embedding() const noexcept { return *embedding_; }
  [[nodiscard]] ConstVector final_gain() const noexcept { return final_gain_; }
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

  /// Starts what `create` does with parameters in training, part by part: at most `kUnitElements`
  /// of one matrix, vector or table at a time. `parameters` and `ops` must outlive the layout.
  [[nodiscard]] static Layout start_layout(const ModelConfig& config,
                                           const ParameterSet& parameters, DType published,
                                           const WeightOptions& options, Ops& ops,
                                           std::shared_ptr<const ModelWeights> old);

private:
  class Preparer;

  ModelWeights() = default;
  [[nodiscard]] static std::shared_ptr<ModelWeights> reuse(std::shared_ptr<const ModelWeights> old);
  [[nodiscard]] static Result<std::shared_ptr<const ModelWeights>> run_all(Layout layout);

  WeightOptions options_;
  TensorMap kept_;
  std::unique_ptr<PreparedTable> embedding_;
  std::vector<LayerWeights> layers_;
  PreparedVector final_gain_;
  std::unique_ptr<PreparedWeight> head_;
  std::int64_t size_bytes_ = 0;
  bool seen_finite_ = false;
};

/// Weights that are being prepared, part by part.
class ModelWeights::Layout {
public:
  Layout(Layout&&) noexcept;
  Layout& operator=(Layout&&) noexcept;
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;
  ~Layout();

  [[nodiscard]] bool done() const noexcept;
  /// Prepares the next part. Requires that `done` is false. If it fails, the next call begins the
  /// tensor again. Errors: those of `create`.
  [[nodiscard]] Status run();
  /// Returns the weights. Requires `done`.
  [[nodiscard]] std::shared_ptr<const ModelWeights> take();

private:
  friend class ModelWeights;
  struct State;
  explicit Layout(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace tidemill::engines
