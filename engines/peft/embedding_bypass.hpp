// SPDX-License-Identifier: Apache-2.0
// How an adapter changes the embedding table: look-ups, and gradients of its pieces.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "base/tensor.hpp"
#include "engines/ops/ops.hpp"
#include "engines/peft/adapter_spec.hpp"

namespace tidemill::engines {

/// Where the gradients of the look-ups are accumulated. Null views: not trained.
struct EmbeddingGradient {
  Matrix table;         // (V, D)
  Matrix transposed_a;  // (V, R)
  Matrix b;             // (D, R)
};

/// The pieces of the table, prepared for a device. Immutable; may be shared.
///
/// No row's bits depend on another's; everything is f32 but a table in place of the base's, which
/// stays as it is stored.
class EmbeddingBypass {
public:
  /// Prepares the pieces of `module`, that of `kTablePath`, found in `tensors`.
  /// Errors: those of `Ops::prepare_weight`. Requires `tensors` to have the shapes of
  /// `adapter_shapes`.
  [[nodiscard]] static Result<EmbeddingBypass> create(const AdaptedModule& module,
                                                      const TensorMap& tensors, WeightUse use,
                                                      Ops& ops);

  /// Returns whether rows = the base table's + `add`.
  [[nodiscard]] bool only_adds() const noexcept { return b_ != nullptr; }
  /// out (T, D) += scale * B A[:, ids[t]]. Requires `only_adds`.
  void add(std::span<const std::int32_t> ids, Matrix out, Ops& ops) const;
  /// out (T, D) = rows of the table in place of the base's. Requires `only_adds` to be false.
  void forward(std::span<const std::int32_t> ids, Matrix out, Ops& ops) const;

  /// Adds the gradients of all pieces, row after row (R2 of ops.hpp), for dout (T, D).
  /// Requires preparation for backward.
  void backward(std::span<const std::int32_t> ids, ConstMatrix dout,
                const EmbeddingGradient& gradient, Ops& ops) const;

  [[nodiscard]] std::int64_t size_bytes() const noexcept;

private:
  EmbeddingBypass() = default;

  [[nodiscard]] WeightView transposed_a() const noexcept;

  Tensor table_;  // (V, D), in place of the base's; empty: none
  std::int64_t vocabulary_ = 0;
  std::int64_t rank_ = 0;
  float scale_ = 0.0F;
  std::vector<float> transposed_a_;    // (V, R): a look-up reads one row
  std::unique_ptr<PreparedWeight> b_;  // null: no low-rank product
};

}  // namespace tidemill::engines
