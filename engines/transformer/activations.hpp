// SPDX-License-Identifier: Apache-2.0
// The activations that a forward pass keeps for the backward pass.
//
// To give exact gradients without computing a product twice, a layer must keep at least, for each
// training row: its input and the residual after attention (D each) with their rstd, the query
// after rotation (H*C), the attention output (H*C) and its log denominators (H), and gate and up (F
// each). A model with q/k norms keeps query and key before the norm instead of the rotated query.
// Low-rank adapters keep their scaled A x (rank each). Keys and values are in the pages of the
// cache. Norm outputs and SwiGLU are always recomputed, bit for bit, by the same operations.
//
// A policy (`Recompute`) trades products for memory. The backward pass reads the same bits under
// every policy: recomputation starts from rows that are kept in float32, and recomputed activations
// are rounded to the same type as kept ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/tensor/dtype.hpp"
#include "engines/formats/model_config.hpp"
#include "engines/peft/adapter_spec.hpp"
#include "engines/transformer/kept_rows.hpp"
#include "engines/transformer/model_layout.hpp"
#include "engines/transformer/owned_matrix.hpp"
#include "engines/transformer/recompute.hpp"

namespace tidemill::engines {

/// Options for keeping activations.
struct KeepOptions {
  Recompute recompute = Recompute::kNone;
  /// kF32 or kBF16. With kBF16, activations are rounded unless recomputation starts from them.
  DType dtype = DType::kF32;

  /// Returns the options for products computed in `compute`: activations are rounded if `compute`
  /// is not kF32.
  [[nodiscard]] static KeepOptions for_compute(DType compute, Recompute recompute) noexcept {
    return {recompute, compute == DType::kF32 ? DType::kF32 : DType::kBF16};
  }
};

/// Activations of the attention half of one layer.
struct AttentionActivations {
  explicit AttentionActivations(DType dtype)
      : input(dtype), query(dtype), key(dtype), attention(dtype) {}

  KeptRows input;          // (T, D)
  OwnedMatrix input_rstd;  // (T, 1)
  KeptRows query;          // (T, H*C): rotated or, with q/k norms, before its norm
  OwnedMatrix query_rstd;  // (T, H), with q/k norms only
  KeptRows key;            // (T, K*C) before its norm, with q/k norms only
  OwnedMatrix key_rstd;    // (T, K), with q/k norms only
  KeptRows attention;      // (T, H*C)
  OwnedMatrix lse;         // (T, H)

  [[nodiscard]] std::int64_t size_bytes() const noexcept;
};

/// Activations of the MLP half of one layer.
struct MlpActivations {
  explicit MlpActivations(DType dtype) : residual(dtype), gate(dtype), up(dtype) {}

  KeptRows residual;          // (T, D)
  OwnedMatrix residual_rstd;  // (T, 1)
  KeptRows gate;              // (T, F)
  KeptRows up;                // (T, F)

  [[nodiscard]] std::int64_t size_bytes() const noexcept;
};

/// Holds the activations of a batch. `Transformer::forward` fills them and one `backward` consumes
/// them. The object is reused from batch to batch.
class Activations {
public:
  /// Keeps what gradients down to layer `first_layer` (`Gradients::first_layer()`) need.
  Activations(const ModelConfig& config, std::int64_t first_layer, const KeepOptions& options = {});

  [[nodiscard]] std::int64_t first_layer() const noexcept { return first_layer_; }
  [[nodiscard]] Recompute recompute() const noexcept { return options_.recompute; }

  /// Return the activations that the backward pass reads for a layer. If the policy recomputes
  /// them, all layers share one object.
  [[nodiscard]] AttentionActivations& attention(std::int64_t index);
  [[nodiscard]] MlpActivations& mlp(std::int64_t index);
  /// Returns the rows in float32 that recomputation starts from: the layer's input (kLayer) or its
  /// residual after attention (kCheap). Requires one of these policies.
  [[nodiscard]] OwnedMatrix& start(std::int64_t index);
  /// Returns the scaled A x (T, R) of an adapter that only adds a low-rank product. It is always
  /// kept: it is small, and it was computed from rows that had not been rounded.
  [[nodiscard]] OwnedMatrix& low_rank(std::int64_t index, LinearKind kind);
  /// Return the last layer's raw output (T, D) and the final norm's rstd (T, 1).
  [[nodiscard]] OwnedMatrix& final_input() noexcept { return final_input_; }
  [[nodiscard]] OwnedMatrix& final_rstd() noexcept { return final_rstd_; }

  /// Returns the size of one row as kept by the last forward pass. Requires the policy kNone.
  /// Units: bytes.
  [[nodiscard]] std::int64_t row_bytes();
  /// Copies the stored bytes of row i to `to[i]`, which has `row_bytes()` bytes. Skips rows for
  /// which `to[i]` is null.
  void save_rows(std::span<std::byte* const> to);
  /// Restores saved rows, in any order, as if a forward pass had computed them. Requires the policy
  /// kNone and an earlier forward pass with the same adapter.
  void load_rows(std::span<const std::byte* const> from);

  /// Returns the memory that it currently owns. Units: bytes.
  [[nodiscard]] std::int64_t size_bytes() const noexcept;
  /// Returns the memory that one training row takes with the adapter of `spec`. Units: bytes.
  [[nodiscard]] static std::int64_t bytes_per_row(const ModelConfig& config,
                                                  std::int64_t first_layer,
                                                  const KeepOptions& options = {},
                                                  const AdapterSpec& spec = {});

private:
  // Returns the index of layer `index` in the vectors below.
  [[nodiscard]] std::size_t storage_index(std::int64_t index) const;
  // The consecutive rows of one part.
  struct RowPart {
    std::byte* first = nullptr;
    std::size_t row_bytes = 0;
  };
  template <class F>
  void for_each_part(F f);
  [[nodiscard]] std::vector<RowPart> row_parts();

  KeepOptions options_;
  std::int64_t first_layer_;
  // One entry per layer from first_layer_ on, or a single entry that all layers share.
  std::vector<AttentionActivations> attention_;
  std::vector<MlpActivations> mlp_;
  std::vector<OwnedMatrix> start_;
  std::vector<PerLinear<OwnedMatrix>> low_rank_;
  OwnedMatrix final_input_;
  OwnedMatrix final_rstd_;
};

}  // namespace tidemill::engines
