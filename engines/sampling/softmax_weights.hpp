// SPDX-License-Identifier: Apache-2.0
// The softmax without its final division: the weights of tokens, their sums, and sampling by
// weight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tidemill::engines {

/// The largest of a sequence of values.
struct Largest {
  double value = 0.0;
  bool has_nan = false;  // if set, `value` is unspecified
};

/// Returns the largest of `values`, or minus infinity if `values` is empty.
[[nodiscard]] Largest largest_of(std::span<const float> values) noexcept;
[[nodiscard]] Largest largest_of(std::span<const double> values) noexcept;

/// Returns exp(x) for x <= 0 within 2 ulp. Returns exactly 1 for 0, and exactly 0 below -87, where
/// exp is smaller than the normal floats.
/// Uses only IEEE additions, multiplications and bit operations, so the bits are the same on every
/// machine, and loops that call it can be vectorized.
[[nodiscard]] float exp_nonpositive(float x) noexcept;

/// Tokens per entry of the block sums: large enough that blocks are few, small enough that a block
/// is searched quickly.
inline constexpr std::size_t kWeightBlock = 512;

/// Computes `weights[i] = exp((logits[i] - largest) / temperature)`. Doubles that hold float values
/// give the same bits as the floats, because both versions round the difference to float once.
/// Shapes: both (V). Requires `temperature` > 0 and no logit above `largest`.
void softmax_weights(std::span<const float> logits, float largest, float temperature,
                     std::span<float> weights) noexcept;
void softmax_weights(std::span<const double> logits, double largest, float temperature,
                     std::span<float> weights) noexcept;

/// Computes the sum of every block of `kWeightBlock` weights in a fixed order, and returns the sum
/// of the block sums.
/// Shapes: `block_sums` (ceil(V / kWeightBlock)).
[[nodiscard]] double sum_weights(std::span<const float> weights,
                                 std::span<double> block_sums) noexcept;

/// Returns the first token, in token order, whose cumulative weight exceeds `uniform` times the
/// total. Never returns a token of weight 0. Requires `uniform` in [0, 1) and a weight above 0.
[[nodiscard]] std::int32_t sample_by_weight(std::span<const float> weights,
                                            std::span<const double> block_sums,
                                            double uniform) noexcept;

}  // namespace tidemill::engines
