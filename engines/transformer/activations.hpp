// SPDX-License-Identifier: Apache-2.0
// What a forward pass keeps for the backward pass, and what is computed again instead.
//
// The least that gives exact gradients without a product computed twice is, per layer and training
// row: the layer's input and the residual after attention (D each) with their rstd, the query after
// rotation (H*C), the attention output (H*C) and its log denominators (H), gate and up (F each). A
// model with q/k norms keeps query and key before the norm instead of the rotated query. Low-rank
// adapters keep their scaled A x (rank each). Keys and values are in the cache pages. Norm outputs
// and SwiGLU are computed again always, bit for bit, by the same operations.
//
// A policy trades products for memory. What the backward pass reads has the same bits whatever was
// kept, since rounding to the type kept in happens to what is computed again too, and computing
// again starts from rows kept in float32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.hpp"
#include "engines/formats/model_config.hpp"
#include "engines/peft/adapter_spec.hpp"
#include "engines/transformer/kept_rows.hpp"
#include "engines/transformer/model_layout.hpp"
#include "engines/transformer/owned_matrix.hpp"
#include "engines/transformer/recompute.hpp"

namespace tidemill::engines {

/// How activations are kept.
struct KeepOptions {
  Recompute recompute = Recompute::kNone;
  DType dtype = DType::kF32;  // kF32, or kBF16: rounded where nothing is computed from them again

  /// Returns how they are kept when products are computed in `compute`: rounded where x is.
  [[nodiscard]] static KeepOptions beside(DType compute, Recompute recompute) noexcept {
    return {recompute, compute == DType::kF32 ? DType::kF32 : DType::kBF16};
  }
};

/// The attention half of one layer.
struct AttentionActivations {
  explicit AttentionActivations(DType dtype)
      : input(dtype), query(dtype), key(dtype), attention(dtype) {}

  KeptRows input;          // (T, D)
  OwnedMatrix input_rstd;  // (T, 1)
  KeptRows query;          // (T, H*C): rotated, or before its norm when there is one
  OwnedMatrix query_rstd;  // (T, H), with q/k norms only
  KeptRows key;            // (T, K*C) before its norm, with q/k norms only
  OwnedMatrix key_rstd;    // (T, K), with q/k norms only
  KeptRows attention;      // (T, H*C)
  OwnedMatrix lse;         // (T, H)

  [[nodiscard]] std::int64_t size_bytes() const noexcept;
};

/// The MLP half of one layer.
struct MlpActivations {
  explicit MlpActivations(DType dtype) : residual(dtype), gate(dtype), up(dtype) {}

  KeptRows residual;          // (T, D)
  OwnedMatrix residual_rstd;  // (T, 1)
  KeptRows gate;              // (T, F)
  KeptRows up;                // (T, F)

  [[nodiscard]] std::int64_t size_bytes() const noexcept;
};

/// Filled by `Transformer::forward`, consumed by one `backward`; reused from batch to batch.
class Activations {
public:
  /// Keeps what gradients down to `first_layer` need: `Gradients::first_layer()`.
  Activations(const ModelConfig& config, std::int64_t first_layer, const KeepOptions& options = {});

  [[nodiscard]] std::int64_t first_layer() const noexcept { return first_layer_; }
  [[nodiscard]] Recompute recompute() const noexcept { return options_.recompute; }

  /// What the backward pass reads of a layer: its own, or one place for all layers, into which it
  /// is computed again.
  [[nodiscard]] AttentionActivations& attention(std::int64_t index);
  [[nodiscard]] MlpActivations& mlp(std::int64_t index);
  /// Rows in float32 that computing again starts from: the layer's input (kLayer) or its residual
  /// after attention (kCheap). Requires one of the two.
  [[nodiscard]] OwnedMatrix& start(std::int64_t index);
  /// The scaled A x of an adapter that only adds a low-rank product (T, R). Kept always: it is
  /// small, and was made of rows that had not been rounded.
  [[nodiscard]] OwnedMatrix& low_rank(std::int64_t index, LinearKind kind);
  /// The last layer's raw output (T, D) and the final norm's rstd (T, 1).
  [[nodiscard]] OwnedMatrix& final_input() noexcept { return final_input_; }
  [[nodiscard]] OwnedMatrix& final_rstd() noexcept { return final_rstd_; }

  /// Returns the bytes that each row kept by the last forward takes, in any order of rows. Requires
  /// that no policy leaves parts out.
  [[nodiscard]] std::int64_t row_bytes();
  /// Copies row i, as it is kept, to `to[i]`, `row_bytes()` long; null: nowhere.
  void save_rows(std::span<std::byte* const> to);
  /// The opposite: becomes what a forward over those rows would leave. Requires that it has had a
  /// forward with the same adapter.
  void load_rows(std::span<const std::byte* const> from);

  /// Returns the memory it owns now.
  [[nodiscard]] std::int64_t size_bytes() const noexcept;
  /// Returns the memory that one training row takes with the adapter of `spec`.
  [[nodiscard]] static std::int64_t bytes_per_row(const ModelConfig& config,
                                                  std::int64_t first_layer,
                                                  const KeepOptions& options = {},
                                                  const AdapterSpec& spec = {});

private:
  [[nodiscard]] std::size_t place(std::int64_t index) const;
  // Rows of one part, one behind the other.
  struct RowPart {
    std::byte* first = nullptr;
    std::size_t row_bytes = 0;
  };
  template <class F>
  void for_each_part(F f);
  [[nodiscard]] std::vector<RowPart> row_parts();

  KeepOptions options_;
  std::int64_t first_layer_;
  // From first_layer_ on, or one for all.
  std::vector<AttentionActivations> attention_;
  std::vector<MlpActivations> mlp_;
  std::vector<OwnedMatrix> start_;
  std::vector<PerLinear<OwnedMatrix>> low_rank_;
  OwnedMatrix final_input_;
  OwnedMatrix final_rstd_;
};

}  // namespace tidemill::engines
