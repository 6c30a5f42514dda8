// SPDX-License-Identifier: Apache-2.0
// The inner loops of sampling: the weights of the tokens of a row, block by block.
//
// The weight of a token is exp((logit - largest) / temperature), which is the softmax without its
// final division. Sampling needs two sums of weights:
//
//  - To choose a token, it inverts the cumulative weight. Floats are added in a fixed order: each
//    block of `kWeightBlock` tokens has sixteen sums in double precision.
//  - Top-p compares cumulative weights in the order of the logits. The order in which they are
//    added must not matter, since finding that order means sorting. Top-p therefore adds
//    integers: each weight is rounded to a multiple of 2^-b, with b = `unit_bits(V)`. For a
//    vocabulary of 151,936 tokens b is 44, and the rounding of all tokens together is less than
//    10^-8 of the sum.
//
// Blocks are independent of each other, so workers may divide them. A backend may bring loops for
// its processor. All loops use only IEEE additions, multiplications, divisions and conversions, in
// the same order, so they compute the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tidemill::engines {

/// Tokens per block: large enough that blocks are few, small enough that a block stays in the
/// first-level cache and is searched quickly.
inline constexpr std::size_t kWeightBlock = 512;

/// Sums of a block that `WeightKernels::sum` adds at the end.
inline constexpr std::size_t kWeightLanes = 16;

/// The largest of a sequence of values.
struct Largest {
  double value = 0.0;
  bool has_nan = false;  // if set, `value` is unspecified
};

/// The loops over one block.
///
/// Legend: `count`, at most `kWeightBlock`, is the size of the block.
/// Threads: concurrent calls with different results are safe.
struct WeightKernels {
  /// Returns the largest of `logits` (count), or minus infinity if there are none.
  Largest (*largest)(const float* logits, std::size_t count) = nullptr;
  /// Computes weights[i] = exp_nonpositive(d / temperature), where d is logits[i] - largest in
  /// double precision, rounded to float. Requires that no logit exceeds `largest`, which is finite.
  void (*weigh)(const float* logits, std::size_t count, double largest, float temperature,
                float* weights) = nullptr;
  /// Returns the sum of the weights. With n = `kWeightLanes`, lane j adds the weights at j, j + n
  /// and so on. The lanes are then added in order, and then the weights after the last n.
  double (*sum)(const float* weights, std::size_t count) = nullptr;
  /// Returns the sum of `weight_units` of the weights.
  std::uint64_t (*units)(const float* weights, std::size_t count, int bits) = nullptr;
  /// Writes the indices of the weights that are at least `least` to `found` (count), in ascending
  /// order, and returns how many there are.
  std::size_t (*find)(const float* weights, std::size_t count, float least,
                      std::int32_t* found) = nullptr;
};

/// Returns the loops that define the results.
[[nodiscard]] const WeightKernels& portable_weight_kernels() noexcept;

/// Returns exp(x) within 2 ulp for -87 <= x <= 0, and exactly 1 for 0. Returns exactly 0 below -87,
/// where exp soon becomes smaller than the normal floats.
/// Uses only IEEE additions, multiplications and bit operations, so the bits are the same on every
/// machine.
[[nodiscard]] float exp_nonpositive(float x) noexcept;

/// Returns b such that the sum of `vocabulary` weights of at most 1 is less than 2^62 units of
/// 2^-b. At most 51.
[[nodiscard]] int unit_bits(std::size_t vocabulary) noexcept;

/// Returns the weight in units of 2^-bits, rounded to the nearest integer with ties to even.
/// Requires a weight in [0, 1] and `bits` from `unit_bits`.
[[nodiscard]] std::uint64_t weight_units(float weight, int bits) noexcept;

/// Returns the first token, in token order, whose cumulative weight exceeds `uniform` times the
/// total. Never returns a token of weight 0. Requires `uniform` in [0, 1) and a weight above 0.
/// Shapes: `weights` (V), `block_sums` (ceil(V / kWeightBlock)), as `WeightKernels::sum` computes
/// them.
[[nodiscard]] std::int32_t sample_by_weight(std::span<const float> weights,
                                            std::span<const double> block_sums,
                                            double uniform) noexcept;

}  // namespace tidemill::engines
