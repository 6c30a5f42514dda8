// SPDX-License-Identifier: Apache-2.0
// How an adapter changes one linear layer: forward, and gradients of its pieces and of its input.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "base/tensor.hpp"
#include "engines/ops/ops.hpp"
#include "engines/peft/adapter_spec.hpp"

namespace tidemill::engines {

/// Where the gradients of one linear layer are accumulated. Null or empty views: not trained.
struct LinearGradient {
  Matrix weight;                  // (O, I)
  std::span<float> bias;          // (O)
  Matrix a;                       // (R, I)
  Matrix b;                       // (O, R)
  std::span<float> c;             // (O)
  std::span<float> magnitude;     // (O)
  std::span<float> input_scale;   // (I)
  std::span<float> output_scale;  // (O)
};

/// The layer of the base model. `bias` is empty when there is none.
struct BaseLinear {
  const PreparedWeight* weight = nullptr;
  std::span<const float> bias;
};

/// A and B of one low-rank product, prepared for a device. Immutable.
class LowRank {
public:
  /// Prepares A (R, I) and B (O, R), and c (O) unless it is null.
  /// Errors: those of `Ops::prepare_weight`.
  [[nodiscard]] static Result<LowRank> create(const Tensor& a, const Tensor& b, const Tensor* c,
                                              float scale, WeightUse use, Ops& ops);

  /// scaled_u (T, R) = scale * A x, y (T, O) += B scaled_u + scale * c, x (T, I).
  void forward(ConstMatrix x, Matrix scaled_u, Matrix y, Ops& ops) const;
  /// Returns what `forward` adds, for the rows [first_row, first_row + num_rows) of a batch.
  [[nodiscard]] LowRankTerm term(std::int64_t first_row, std::int64_t num_rows) const noexcept {
    return {first_row, num_rows, a_.get(), b_.get(), scale_, scaled_c_};
  }
  /// Adds the gradients of A, B and c for dy (T, O) and the x (T, I) and scaled_u (T, R) of the
  /// forward, which is computed again when it has no data; with `dx` (T, I), dx += the input
  /// gradient through the product. Requires preparation for backward.
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
  std::vector<float> scaled_c_;
};

/// The pieces of one linear layer, prepared for a device. Immutable; may be shared.
///
/// Everything is f32, whatever type the base weights have: x is not rounded before A or W', and
/// u = A x is not rounded before B. No row's bits depend on another's.
class LinearBypass {
public:
  /// Prepares the pieces of `module` found in `tensors`. `base_weight` (O, I) is the base layer's
  /// tensor; only a magnitude needs it, others may give null.
  /// Errors: those of `Ops::prepare_weight`. Requires `tensors` to have the shapes of
  /// `adapter_shapes`.
  [[nodiscard]] static Result<LinearBypass> create(const AdaptedModule& module,
                                                   const TensorMap& tensors,
                                                   const Tensor* base_weight, WeightUse use,
                                                   Ops& ops);

  /// Returns whether y = the base layer's output + `add`, so that its rows can go through the base
  /// layer together with all others.
  [[nodiscard]] bool only_adds() const noexcept;
  /// y (T, O) += the low-rank product; scaled_u (T, R) as `LowRank::forward` makes it. Requires
  /// `only_adds`.
  void add(ConstMatrix x, Matrix scaled_u, Matrix y, Ops& ops) const {
    low_rank_->forward(x, scaled_u, y, ops);
  }
  /// Returns what `add` adds, for rows of a batch. Requires `only_adds`.
  [[nodiscard]] LowRankTerm term(std::int64_t first_row, std::int64_t num_rows) const noexcept {
    return low_rank_->term(first_row, num_rows);
  }
  /// Returns the rank of the low-rank product; requires `only_adds`.
  [[nodiscard]] std::int64_t rank() const noexcept { return low_rank_->rank(); }
  /// y (T, O) = or += the whole layer with its pieces, on x (T, I).
  void forward(const BaseLinear& base, ConstMatrix x, Store store, Matrix y, Ops& ops) const;

  /// Returns whether `backward` reads x.
  [[nodiscard]] bool needs_input() const noexcept;
  /// Adds the gradients of all pieces, row after row (R2 of ops.hpp), for dy (T, O) and the x
  /// (T, I) of the forward; `scaled_u` is what `add` left, or has no data. With `dx` (T, I), dx =
  /// or += the input gradient of the whole layer. Requires preparation of base and pieces for
  /// backward.
  void backward(const BaseLinear& base, ConstMatrix dy, ConstMatrix x, ConstMatrix scaled_u,
                Store store, const Matrix* dx, const LinearGradient& gradient, Ops& ops) const;

  [[nodiscard]] std::int64_t size_bytes() const noexcept;

private:
  LinearBypass() = default;

  [[nodiscard]] const PreparedWeight& weight(const BaseLinear& base) const noexcept {
    return weight_ != nullptr ? *weight_ : *base.weight;
  }
  [[nodiscard]] std::span<const float> bias(const BaseLinear& base) const noexcept {
    return bias_.empty() ? base.bias : std::span<const float>(bias_);
  }
  // What the output scale multiplies.
  void product(const BaseLinear& base, ConstMatrix x, Store store, Matrix y, Ops& ops) const;
  void scale_backward(const BaseLinear& base, ConstMatrix dy, ConstMatrix x,
                      const LinearGradient& gradient, Ops& ops) const;

  std::unique_ptr<PreparedWeight> weight_;  // in place of the base's; null: none
  std::vector<float> bias_;                 // in place of the base's; empty: none
  std::unique_ptr<LowRank> low_rank_;       // null: none
  std::vector<float> input_scale_;          // empty: none
  std::vector<float> output_scale_;         // l, or m / |W + scale * B A|; empty: none
  std::vector<float> inverse_norms_;        // of DoRA; empty: the bias is scaled too
};

}  // namespace tidemill::engines
