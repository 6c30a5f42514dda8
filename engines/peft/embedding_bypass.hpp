// SPDX-License-Identifier: Apache-2.0
// Applies an adapter to the embedding table: look-ups, and the gradients of the adapter's tensors.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "base/tensor/tensor.hpp"
#include "engines/ops/ops.hpp"
#include "engines/peft/adapter_spec.hpp"

namespace tidemill::engines {

/// The buffers that accumulate the gradients of look-ups. Views are null for tensors that are not
/// trained.
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

  /// Returns whether a look-up is that of the base table plus `add`.
  [[nodiscard]] bool only_adds() const noexcept { return b_ != nullptr; }
  /// Computes out (T, D) += scale * B A[:, ids[t]]. Requires `only_adds`.
  void add(std::span<const std::int32_t> ids, Matrix out, Ops& ops) const;
  /// Looks up out (T, D) in the table that replaces the base's. Requires `only_adds` to be false.
  void forward(std::span<const std::int32_t> ids, Matrix out, Ops& ops) const;

  /// Adds the gradients of all tensors for dout (T, D), row after row (R2 of ops.hpp).
  /// Requires preparation for backward.
  void backward(std::span<const std::int32_t> ids, ConstMatrix dout,
                const EmbeddingGradient& gradient, Ops& ops) const;

  [[nodiscard]] std::int64_t size_bytes() const noexcept;

private:
  EmbeddingBypass() = default;

  [[nodiscard]] WeightView transposed_a() const noexcept;

  Tensor table_;  // (V, D), replaces the base's; empty if there is none
  std::int64_t vocabulary_ = 0;
  std::int64_t rank_ = 0;
  float scale_ = 0.0F;
  std::vector<float> transposed_a_;    // (V, R), so that a look-up reads one row
  std::unique_ptr<PreparedWeight> b_;  // null if there is no low-rank product
};

}  // namespace tidemill::engines
