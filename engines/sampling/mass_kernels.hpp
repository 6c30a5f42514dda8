// SPDX-License-Identifier: Apache-2.0
// The inner loops of sampling: the masses of the tokens of a row, block by block.
//
// The mass of a token is exp((logit - largest) / temperature), which is the softmax without its
// final division. Sampling needs two sums of masses:
//
//  - To choose a token, it inverts the cumulative mass. Floats are added in a fixed order: each
//    block of `kMassBlock` tokens has sixteen sums in double precision.
//  - Top-p compares cumulative masses in the order of the logits. The order in which they are
//    added must not matter, since finding that order means sorting. Top-p therefore adds
//    integers: each mass is rounded to a multiple of 2^-b, with b = `fixed_point_bits(V)`. For a
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
inline constexpr std::size_t kMassBlock = 512;

/// Sums of a block that `MassKernels::sum` adds at the end.
inline constexpr std::size_t kMassLanes = 16;

/// The largest of a sequence of values.
struct Largest {
  double value = 0.0;
  bool has_nan = false;  // if set, `value` is unspecified
};

/// The loops over one block.
///
/// Legend: `count`, at most `kMassBlock`, is the size of the block.
/// Threads: concurrent calls with different results are safe.
struct MassKernels {
  /// Returns the largest of `logits` (count), or minus infinity if there are none.
  Largest (*largest)(const float* logits, std::size_t count) = nullptr;
  /// Computes masses[i] = exp_nonpositive(d / temperature), where d is logits[i] - largest in
  /// double precision, rounded to float. Requires that no logit exceeds `largest`, which is finite.
  void (*compute_masses)(const float* logits, std::size_t count, double largest, float temperature,
                         float* masses) = nullptr;
  /// Returns the sum of the masses. With n = `kMassLanes`, lane j adds the masses at j, j + n
  /// and so on. The lanes are then added in order, and then the masses after the last n.
  double (*sum)(const float* masses, std::size_t count) = nullptr;
  /// Returns the sum of `fixed_point_mass` of the masses that are at least `min`.
  std::uint64_t (*fixed_point_sum)(const float* masses, std::size_t count, int bits,
                                   float min) = nullptr;
  /// Writes the indices of the masses from `min` to `max` to `found` (count), in ascending
  /// order, and returns how many there are.
  std::size_t (*find)(const float* masses, std::size_t count, float min, float max,
                      std::int32_t* found) = nullptr;
  /// Sets the masses that are less than `min` to 0.
  void (*drop_below)(float* masses, std::size_t count, float min) = nullptr;
};

/// Returns the loops that define the results.
[[nodiscard]] const MassKernels& portable_mass_kernels() noexcept;

/// Returns exp(x) within 2 ulp for -87 <= x <= 0, and exactly 1 for 0. Returns exactly 0 below -87,
/// where exp soon becomes smaller than the normal floats.
/// Uses only IEEE additions, multiplications and bit operations, so the bits are the same on every
/// machine.
[[nodiscard]] float exp_nonpositive(float x) noexcept;

/// Returns b such that the sum of `vocabulary` masses of at most 1 is less than 2^62 units of
/// 2^-b. At most 51.
[[nodiscard]] int fixed_point_bits(std::size_t vocabulary) noexcept;

/// Returns the mass in units of 2^-bits, rounded to the nearest integer with ties to even.
/// Requires a mass in [0, 1] and `bits` from `fixed_point_bits`.
[[nodiscard]] std::uint64_t fixed_point_mass(float mass, int bits) noexcept;

/// Returns the first token, in token order, whose cumulative mass exceeds `uniform` times the
/// total. Never returns a token of mass 0. Requires `uniform` in [0, 1) and a mass above 0.
/// Shapes: `masses` (V), `block_sums` (ceil(V / kMassBlock)), as `MassKernels::sum` computes
/// them.
[[nodiscard]] std::int32_t sample_by_mass(std::span<const float> masses,
                                          std::span<const double> block_sums,
                                          double uniform) noexcept;

}  // namespace tidemill::engines
