// SPDX-License-Identifier: Apache-2.0
// AdamW: Adam with decoupled weight decay.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.hpp"

namespace tidemill::engines {

/// The options of AdamW that hold for all tensors.
struct AdamWOptions {
  double beta1 = 0.9;     // in [0, 1)
  double beta2 = 0.999;   // in [0, 1)
  double epsilon = 1e-8;  // > 0
};

/// Checks that the options are in range.
/// Errors: `kInvalidArgument` naming the option.
[[nodiscard]] Status validate(const AdamWOptions& options);

/// The parameters of one optimizer step for one group of tensors.
struct AdamWStep {
  double learning_rate = 0.0;
  double weight_decay = 0.0;    // of this group; 0 for tensors that do not decay
  double gradient_scale = 1.0;  // from `clip_scale`
  std::int64_t step = 1;        // counts from 1
};

/// A tensor's weights, gradient and moments, or the same part of each.
/// Shapes: all (n).
template <class Real>
struct AdamWTensor {
  std::span<Real> weights;
  std::span<const Real> gradient;
  std::span<Real> first_moment;   // zero before step 1
  std::span<Real> second_moment;  // zero before step 1
};

/// The factors of one step, computed in double and rounded once. In terms of the formulas below:
/// keep = 1 - lr * decay, scale is the factor of the gradient, rest = 1 - beta,
/// rate = lr / (1 - b1^t), root2 = sqrt(1 - b2^t).
template <class Real>
struct AdamWFactors {
  Real keep{};
  Real scale{};
  Real beta1{};
  Real rest1{};
  Real beta2{};
  Real rest2{};
  Real rate{};
  Real root2{};
  Real epsilon{};
};

/// Computes the factors of `step`. Requires valid options and `step.step` >= 1.
template <class Real>
[[nodiscard]] AdamWFactors<Real> adamw_factors(const AdamWOptions& options, const AdamWStep& step);

/// Applies one step in place, with t = `step.step` and the scaled gradient g:
///
///     w *= 1 - lr * decay;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
///     w -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + epsilon)
///
/// Elements are independent of each other, so calling it on parts of a tensor, from any number of
/// threads, gives the same bits.
///
/// Source: Loshchilov & Hutter 2019, arXiv:1711.05101, with the order of operations of PyTorch.
/// Requires equal sizes.
template <class Real>
void adamw_update(const AdamWFactors<Real>& factors, const AdamWTensor<Real>& tensor);

}  // namespace tidemill::engines
