// SPDX-License-Identifier: Apache-2.0
// Softmax without its last division: weights of tokens, their sums, and the draw from them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tidemill::engines {

/// The largest of some values.
struct Largest {
  double value = 0.0;
  bool has_nan = false;  // then `value` means nothing
};

/// Returns the largest of `values`; minus infinity when there are none.
[[nodiscard]] Largest largest_of(std::span<const float> values) noexcept;
[[nodiscard]] Largest largest_of(std::span<const double> values) noexcept;

/// Returns exp(x) for x <= 0 within 2 ulp, exactly 1 for 0, and 0 below -87, where exp leaves the
/// normal floats.
/// Only IEEE additions, multiplications and bit operations: the same bits on every machine, and a
/// loop over it vectorises.
[[nodiscard]] float exp_nonpositive(float x) noexcept;

/// Tokens per entry of the block sums: large enough for few blocks, small enough to search.
inline constexpr std::size_t kWeightBlock = 512;

/// Computes `weights[i] = exp((logits[i] - largest) / temperature)`. A double holding a float gives
/// the float's bits: both are subtracted with one rounding to float.
/// Shapes: both (V). Requires `temperature` > 0 and no logit above `largest`.
void softmax_weights(std::span<const float> logits, float largest, float temperature,
                     std::span<float> weights) noexcept;
void softmax_weights(std::span<const double> logits, double largest, float temperature,
                     std::span<float> weights) noexcept;

/// Computes the sum of every block of `kWeightBlock` weights, in one fixed order, and returns their
/// sum.
/// Shapes: `block_sums` (ceil(V / kWeightBlock)).
[[nodiscard]] double sum_weights(std::span<const float> weights,
                                 std::span<double> block_sums) noexcept;

/// Returns the first token whose cumulative weight, in token order, exceeds `uniform` times the
/// total; never one of weight 0. Requires `uniform` in [0, 1) and a weight above 0.
[[nodiscard]] std::int32_t draw_by_weight(std::span<const float> weights,
                                          std::span<const double> block_sums,
                                          double uniform) noexcept;

}  // namespace tidemill::engines
