// SPDX-License-Identifier: Apache-2.0
// The global norm of a gradient, and how far it is clipped.
//
// Squares are summed in double, block by block, lane by lane: one fixed order, whoever computes
// which block. A caller with threads lets each fill the entries of its blocks and adds them up
// after.
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

/// Computes the sum of squares of every block of `values`. To split the work, cut `values` at
/// multiples of `kNormBlock` and `sums` to match.
/// Shapes: `values` (n), `sums` (norm_blocks(n)).
template <class Real>
void block_squares(std::span<const Real> values, std::span<double> sums);

/// Returns the sum of squares of `values`: the sum of its blocks, in order.
/// A square of a float cannot overflow a double; NaN and infinities show in the result.
template <class Real>
[[nodiscard]] double squared_norm(std::span<const Real> values);

/// Returns what the gradient is multiplied by: `min(1, max_norm / (norm + 1e-6))`; 1 when
/// `max_norm` is 0, which means no clipping.
/// Source: Pascanu et al. 2013, arXiv:1211.5063; the 1e-6 as in PyTorch.
[[nodiscard]] double clip_scale(double norm, double max_norm) noexcept;

}  // namespace tidemill::engines
