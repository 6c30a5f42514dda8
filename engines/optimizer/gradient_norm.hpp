// SPDX-License-Identifier: Apache-2.0
// The global norm of a gradient, and the factor that clips it.
//
// Squares are summed in double, by blocks and lanes, in a fixed order that does not depend on which
// thread computes which block. A caller with several threads lets each of them fill the entries of
// its blocks, and adds up the entries afterwards.
#pragma once

#include <cstddef>
#include <span>

namespace tidemill::engines {

/// Elements per partial sum.
inline constexpr std::size_t kNormBlock = 4096;

/// Returns the number of blocks of a tensor with `size` elements.
[[nodiscard]] constexpr std::size_t norm_blocks(std::size_t size) noexcept {
  return (size + kNormBlock - 1) / kNormBlock;
}

/// Computes the sum of squares of every block of `values`. To distribute the work, split `values`
/// at multiples of `kNormBlock`, and `sums` correspondingly.
/// Shapes: `values` (n), `sums` (norm_blocks(n)).
template <class Real>
void block_squares(std::span<const Real> values, std::span<double> sums);

/// Returns the sum of squares of `values`, which is the sum of its block sums in order.
/// The square of a float cannot overflow a double. NaN and infinities propagate to the result.
template <class Real>
[[nodiscard]] double squared_norm(std::span<const Real> values);

/// Returns the factor of the gradient, `min(1, max_norm / (norm + 1e-6))`, or 1 if `max_norm` is 0,
/// which disables clipping.
/// Source: Pascanu et al. 2013, arXiv:1211.5063, with the 1e-6 of PyTorch.
[[nodiscard]] double clip_scale(double norm, double max_norm) noexcept;

}  // namespace tidemill::engines
