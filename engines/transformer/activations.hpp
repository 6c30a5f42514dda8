// SPDX-License-Identifier: Apache-2.0
// What a forward pass keeps for the backward pass: the least that gives exact gradients.
//
// Kept per layer and training row: the layer's input and the residual after attention (D each)
// with their rstd, the query after rotation (H*C), the attention output (H*C) and its log
// denominators (H), gate and up (F each). A model with q/k norms keeps query and key before the
// norm instead of the rotated query. Keys and values are in the cache pages. Norm outputs, SwiGLU
// and the A x of adapters are computed again, bit for bit, by the same operations.
#pragma once

#include <cstdint>
#include <vector>

#include "engines/formats/model_config.hpp"
#include "engines/transformer/owned_matrix.hpp"

namespace tidemill::engines {

/// One layer's part.
struct LayerActivations {
  OwnedMatrix input;          // (T, D)
  OwnedMatrix input_rstd;     // (T, 1)
  OwnedMatrix query;          // (T, H*C): rotated, or before its norm when there is one
  OwnedMatrix query_rstd;     // (T, H), with q/k norms only
  OwnedMatrix key;            // (T, K*C) before its norm, with q/k norms only
  OwnedMatrix key_rstd;       // (T, K), with q/k norms only
  OwnedMatrix attention;      // (T, H*C)
  OwnedMatrix lse;            // (T, H)
  OwnedMatrix residual;       // (T, D)
  OwnedMatrix residual_rstd;  // (T, 1)
  OwnedMatrix gate;           // (T, F); `backward` overwrites gate and up
  OwnedMatrix up;             // (T, F)
};

/// Filled by `Transformer::forward`, consumed by one `backward`; reused from batch to batch.
class Activations {
public:
  /// Keeps what gradients down to `first_layer` need: `Gradients::first_layer()`.
  Activations(const ModelConfig& config, std::int64_t first_layer);

  [[nodiscard]] std::int64_t first_layer() const noexcept { return first_layer_; }
  [[nodiscard]] LayerActivations& layer(std::int64_t index);
  /// The last layer's raw output (T, D) and the final norm's rstd (T, 1).
  [[nodiscard]] OwnedMatrix& final_input() noexcept { return final_input_; }
  [[nodiscard]] OwnedMatrix& final_rstd() noexcept { return final_rstd_; }

  /// Returns the memory it owns now.
  [[nodiscard]] std::int64_t size_bytes() const noexcept;
  /// Returns the memory one training row takes.
  [[nodiscard]] static std::int64_t bytes_per_row(const ModelConfig& config,
                                                  std::int64_t first_layer) noexcept;

private:
  std::int64_t first_layer_;
  std::vector<LayerActivations> layers_;  // from first_layer_ on
  OwnedMatrix final_input_;
  OwnedMatrix final_rstd_;
};

}  // namespace tidemill::engines
