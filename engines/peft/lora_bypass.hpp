// SPDX-License-Identifier: Apache-2.0
// The computation of one LoRA bypass: forward, and gradients of its matrices and its input.
#pragma once

#include <memory>

#include "base/result.hpp"
#include "base/tensor.hpp"
#include "engines/ops/ops.hpp"
#include "engines/peft/lora_spec.hpp"

namespace tidemill::engines {

/// Where the gradients of one bypass are accumulated: a (R, I), b (O, R).
struct LoraGradient {
  Matrix a;
  Matrix b;
};

/// The matrices of one bypass, prepared for a device. Immutable; may be shared.
///
/// Everything is f32, whatever type the base weights have: x is not rounded before A, and
/// u = A x is not rounded before B.
class LoraBypass {
public:
  /// Prepares the matrices of `module` found in `tensors`.
  /// Errors: those of `Ops::prepare_weight`. Requires `tensors` to have the shapes of
  /// `lora_shapes`.
  [[nodiscard]] static Result<LoraBypass> create(const LoraModule& module, const TensorMap& tensors,
                                                 WeightUse use, Ops& ops);

  /// y (T, O) += scale * B (A x), x (T, I). Rows outside the views are not touched, and no row's
  /// bits depend on another's.
  void forward(ConstMatrix x, Matrix y, Ops& ops) const;

  /// Adds the gradients of A and B, row after row (R2 of ops.hpp), for dy (T, O) and the x (T, I)
  /// of the forward. With `dx` (T, I), dx += the input gradient through the bypass alone.
  /// Requires preparation for backward.
  void backward(ConstMatrix dy, ConstMatrix x, LoraGradient gradient, const Matrix* dx,
                Ops& ops) const;

  [[nodiscard]] std::int64_t size_bytes() const noexcept;

private:
  LoraBypass() = default;

  std::int64_t rank_ = 0;
  float scale_ = 0.0F;
  std::unique_ptr<PreparedWeight> a_;
  std::unique_ptr<PreparedWeight> b_;
};

}  // namespace tidemill::engines
