// SPDX-License-Identifier: Apache-2.0
// Applies an adapter to one linear layer: forward, and the gradients of the adapter's tensors and
// of the layer's input.
#pragma once

#include <memory>

#include "base/result.hpp"
#include "base/tensor/tensor.hpp"
#include "engines/ops/ops.hpp"
#include "engines/peft/adapter_spec.hpp"

namespace tidemill::engines {

/// The buffers that accumulate the gradients of one linear layer. Views are null or empty for
/// tensors that are not trained.
struct LinearGradient {
  Matrix weight;        // (O, I)
  Vector bias;          // (O)
  Matrix a;             // (R, I)
  Matrix b;             // (O, R)
  Vector c;             // (O)
  Vector magnitude;     // (O)
  Vector input_scale;   // (I)
  Vector output_scale;  // (O)
};

/// The layer of the base model. `bias` is empty if the layer has none.
struct BaseLinear {
  const PreparedWeight* weight = nullptr;
  ConstVector bias;
};

/// A and B of one low-rank product, prepared for a device. Immutable.
class LowRank {
public:
  /// Prepares A (R, I), B (O, R), and c (O) unless it is null.
  /// Errors: those of `Ops::prepare_weight`.
  [[nodiscard]] static Result<LowRank> create(const Tensor& a, const Tensor& b, const Tensor* c,
                                              float scale, WeightUse use, Ops& ops);

  /// Computes scaled_u (T, R) = scale * A x and y (T, O) += B scaled_u + scale * c for x (T, I).
  void forward(ConstMatrix x, Matrix scaled_u, Matrix y, Ops& ops) const;
  /// Returns the term that `forward` adds.
  [[nodiscard]] LowRankTerm term() const noexcept {
    return {a_.get(), b_.get(), scale_, scaled_c_};
  }
  /// Adds the gradients of A, B and c to `gradient`, given dy (T, O) and the x (T, I) and scaled_u
  /// (T, R) of `forward`. If scaled_u has no data, it is computed again. If `dx` (T, I) is not
  /// null, adds the gradient of x through the product to it. Requires preparation for backward.
  void backward(ConstMatrix dy, ConstMatrix x, ConstMatrix scaled_u, const LinearGradient& gradient,
                const Matrix* dx, Ops& ops) const;

  [[nodiscard]] std::int64_t rank() const noexcept { return a_->out_features(); }
  [[nodiscard]] std::int64_t size_bytes() const noexcept;

private:
  LowRank() = default;

  void scaled_product(ConstMatrix x, Matrix scaled_u, Ops& ops) const;

  float scale_ = 0.0F;
  std::unique_ptr<PreparedWeight> a_;
  std::unique_ptr<PreparedWeight> b_;
  PreparedVector scaled_c_;
};

/// The adapter tensors of one linear layer, prepared for a device. Immutable; may be shared.
///
/// The adapter's own arithmetic is f32, whatever the type of the base weights: x is not rounded
/// before it is multiplied by A or by a weight that replaces the base weight, and u = A x is not
/// rounded before it is multiplied by B. The product with the base weight itself rounds x as
/// `Ops::linear` does. The bits of a row do not depend on other rows.
class LinearBypass {
public:
  /// Prepares the tensors of `module` from `tensors`. `base` is the weight of the base layer. It
  /// must have a tensor if the module has a magnitude, and is not read otherwise.
  /// Requires `tensors` to have the shapes of `adapter_shapes`.
  /// Errors: those of `Ops::prepare_weight`.
  [[nodiscard]] static Result<LinearBypass> create(const AdaptedModule& module,
                                                   const TensorMap& tensors, const BaseWeight& base,
                                                   WeightUse use, Ops& ops);

  /// Returns whether the adapter only adds a low-rank product to the output of the base layer. If
  /// so, the rows of the adapter can go through the base layer together with all other rows.
  [[nodiscard]] bool only_adds() const noexcept;
  /// Adds the low-rank product to y (T, O), and computes scaled_u (T, R) as `LowRank::forward`
  /// does. Requires `only_adds`.
  void add(ConstMatrix x, Matrix scaled_u, Matrix y, Ops& ops) const {
    low_rank_->forward(x, scaled_u, y, ops);
  }
  /// Returns the term that `add` adds. Requires `only_adds`.
  [[nodiscard]] LowRankTerm term() const noexcept { return low_rank_->term(); }
  /// Returns the rank of the low-rank product. Requires `only_adds`.
  [[nodiscard]] std::int64_t rank() const noexcept { return low_rank_->rank(); }
  /// Computes y (T, O) = or += the output of the whole adapted layer for x (T, I).
  void forward(const BaseLinear& base, ConstMatrix x, Store store, Matrix y, Ops& ops) const;

  /// Returns whether `backward` reads x.
  [[nodiscard]] bool needs_input() const noexcept;
  /// Adds the gradients of all adapter tensors to `gradient`, row by row (R2 of ops.hpp), given dy
  /// (T, O) and the x (T, I) of the forward pass. `scaled_u` is the result of `add`, or has no
  /// data. If `dx` (T, I) is not null, computes dx = or += the gradient of x through the whole
  /// layer, as `store` says. Requires that the base weight and the adapter tensors were prepared
  /// for backward.
  void backward(const BaseLinear& base, ConstMatrix dy, ConstMatrix x, ConstMatrix scaled_u,
                Store store, const Matrix* dx, const LinearGradient& gradient, Ops& ops) const;

  [[nodiscard]] std::int64_t size_bytes() const noexcept;

private:
  LinearBypass() = default;

  [[nodiscard]] const PreparedWeight& weight(const BaseLinear& base) const noexcept {
    return weight_ != nullptr ? *weight_ : *base.weight;
  }
  [[nodiscard]] ConstVector bias(const BaseLinear& base) const noexcept {
    return bias_.empty() ? base.bias : bias_.view();
  }
  // Computes the product that the output scale multiplies.
  void product(const BaseLinear& base, ConstMatrix x, Store store, Matrix y, Ops& ops) const;
  void scale_backward(const BaseLinear& base, ConstMatrix dy, ConstMatrix x,
                      const LinearGradient& gradient, Ops& ops) const;

  // Null or empty if the adapter has no such tensor.
  std::unique_ptr<PreparedWeight> weight_;  // replaces the base's
  PreparedVector bias_;                     // replaces the base's
  std::unique_ptr<LowRank> low_rank_;
  PreparedVector input_scale_;
  PreparedVector output_scale_;   // IA3's l, or DoRA's m / |W + scale * B A|
  PreparedVector inverse_norms_;  // of DoRA; if empty, the output scale applies to the bias too
};

/// The rows that go through a layer together.
struct BypassRows {
  std::int64_t layers = 0;  // through the embedding table and the linear layers of the decoder
  std::int64_t head = 0;
};

/// Returns how much of `Ops::scratch` the bypasses of an adapter need. Units: bytes.
[[nodiscard]] std::int64_t scratch_bytes(const AdapterSpec& spec, const BypassRows& rows);

}  // namespace tidemill::engines
