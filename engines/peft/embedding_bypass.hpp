// SPDX-License-Identifier: Apache-2.0
// Applies an adapter to the embedding table: look-ups, and the gradients of the adapter's tensors.
//
// Legend: T tokens, V vocabulary, D hidden size, R rank.
#pragma once

#include <cstdint>
#include <memory>

#include "base/result.hpp"
#include "base/tensor/tensor.hpp"
#include "engines/ops/ops.hpp"
#include "engines/peft/adapter_spec.hpp"

namespace tidemill::engines {

/// Borrowed buffers to which `EmbeddingBypass::backward` adds the gradients of the adapter's
/// tensors. A view is null if the adapter does not have the tensor.
struct EmbeddingGradient {
  Matrix table;         // (V, D)
  Matrix transposed_a;  // (V, R)
  Matrix b;             // (D, R)
};

/// The adapter tensors of the embedding table, prepared for a device. Immutable; may be shared.
///
/// The bits of a row do not depend on other rows. All tensors are f32, except a table that replaces
/// the base's, which keeps its stored type.
class EmbeddingBypass {
public:
  /// Prepares the tensors of `module`, whose path is `kTablePath`, from `tensors`.
  /// Requires `tensors` to have the shapes of `adapter_shapes`.
  /// Errors: those of `Ops::prepare_weight`.
  [[nodiscard]] static Result<EmbeddingBypass> create(const AdaptedModule& module,
                                                      const TensorMap& tensors, WeightUse use,
                                                      Ops& ops);

  /// Returns whether the adapter adds a low-rank product to the rows of the base table. If not, its
  /// own table replaces that of the base.
  [[nodiscard]] bool only_adds() const noexcept { return b_ != nullptr; }
  /// Computes out (T, D) += scale * B A[:, ids[t]]. Requires `only_adds`.
  void add(IndexList ids, Matrix out, Ops& ops) const;
  /// Copies rows of the adapter's own table to out (T, D). Requires `only_adds` to be false.
  void forward(IndexList ids, Matrix out, Ops& ops) const;

  /// Adds the gradients of all tensors to `gradient`, row by row (R2 of ops.hpp), given dout (T,
  /// D), the gradient of the looked-up rows. Requires a bypass made for `kForwardAndBackward`.
  void backward(IndexList ids, ConstMatrix dout, const EmbeddingGradient& gradient, Ops& ops) const;

  /// Returns the size of all its tensors. Units: bytes.
  [[nodiscard]] std::int64_t size_bytes() const noexcept;

private:
  EmbeddingBypass() = default;

  std::unique_ptr<PreparedTable> table_;  // (V, D), replaces the base's; null if there is none
  std::int64_t rank_ = 0;
  float scale_ = 0.0F;
  // Null if there is no low-rank product:
  std::unique_ptr<PreparedTable> transposed_a_;  // (V, R), so that a look-up reads one row
  std::unique_ptr<PreparedWeight> b_;
};

}  // namespace tidemill::engines
