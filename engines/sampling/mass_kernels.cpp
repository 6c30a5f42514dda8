// SPDX-License-Identifier: Apache-2.0
#include "engines/sampling/mass_kernels.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "engines/sampling/choose_by_mass.hpp"

namespace tidemill::engines {
namespace {

Largest largest_of(const float* logits, std::size_t count) {
  float largest = -std::numeric_limits<float>::infinity();
  bool has_nan = false;
  for (std::size_t i = 0; i < count; ++i) {
    largest = logits[i] > largest ? logits[i] : largest;
    has_nan |= logits[i] != logits[i];
  }
  return {static_cast<double>(largest), has_nan};
}

void compute_masses(const float* logits, std::size_t count, double largest, float temperature,
                    float* masses) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto below = static_cast<float>(static_cast<double>(logits[i]) - largest);
    masses[i] = exp_nonpositive(below / temperature);
  }
}

double sum(const float* masses, std::size_t count) {
  std::array<double, kMassLanes> lanes{};
  const std::size_t whole = count / kMassLanes * kMassLanes;
  for (std::size_t i = 0; i < whole; ++i) {
    lanes[i % kMassLanes] += static_cast<double>(masses[i]);
  }
  double total = 0.0;
  for (const double lane : lanes) {
    total += lane;
  }
  for (std::size_t i = whole; i < count; ++i) {
    total += static_cast<double>(masses[i]);
  }
  return total;
}

std::uint64_t fixed_point_sum(const float* masses, std::size_t count, int bits, float min) {
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < count; ++i) {
    total += masses[i] >= min ? fixed_point_mass(masses[i], bits) : 0;
  }
  return total;
}

std::size_t find(const float* masses, std::size_t count, float min, float max,
                 std::int32_t* found) {
  std::size_t size = 0;
  for (std::size_t i = 0; i < count; ++i) {
    found[size] = static_cast<std::int32_t>(i);
    size += masses[i] >= min && masses[i] <= max ? 1 : 0;
  }
  return size;
}

void drop_below(float* masses, std::size_t count, float min) {
  for (std::size_t i = 0; i < count; ++i) {
    masses[i] = masses[i] < min ? 0.0F : masses[i];
  }
}

}  // namespace

const MassKernels& portable_mass_kernels() noexcept {
  static constexpr MassKernels kKernels{largest_of,      compute_masses, sum,
                                        fixed_point_sum, find,           drop_below};
  return kKernels;
}

float exp_nonpositive(float x) noexcept {
  constexpr float kLog2E = 1.44269504F;
  constexpr float kLn2High = 0.693359375F;  // 9 bits, so its product with an exponent is exact
  constexpr float kLn2Low = -2.12194440e-4F;
  constexpr float kRounder = 12582912.0F;  // 1.5 * 2^23: adding it rounds to a whole number
  const float shifted = x * kLog2E + kRounder;
  const float n = shifted - kRounder;
  const float r = x - n * kLn2High - n * kLn2Low;  // |r| <= ln(2) / 2
  float value = 1.0F / 5040.0F;                    // Horner's scheme for the series of exp
  value = value * r + 1.0F / 720.0F;
  value = value * r + 1.0F / 120.0F;
  value = value * r + 1.0F / 24.0F;
  value = value * r + 1.0F / 6.0F;
  value = value * r + 0.5F;
  value = value * r + 1.0F;
  value = value * r + 1.0F;
  // The low bits of `shifted` are n in two's complement. Shifted up, they are added to the bits of
  // an exponent of 0.
  const std::uint32_t exponent = (std::bit_cast<std::uint32_t>(shifted) << 23U) + 0x3F800000U;
  const float scaled = value * std::bit_cast<float>(exponent);
  return x < -87.0F ? 0.0F : scaled;
}

int fixed_point_bits(std::size_t vocabulary) noexcept {
  return std::min(51, 62 - static_cast<int>(std::bit_width(vocabulary)));
}

std::uint64_t fixed_point_mass(float mass, int bits) noexcept {
  // Adding 2^52 to a number below it rounds to an integer, which is then in the low bits.
  constexpr double kRounder = 0x1p52;
  const auto scale = std::bit_cast<double>(static_cast<std::uint64_t>(1023 + bits) << 52U);
  const double rounded = static_cast<double>(mass) * scale + kRounder;
  return std::bit_cast<std::uint64_t>(rounded) - std::bit_cast<std::uint64_t>(kRounder);
}

std::int32_t sample_by_mass(std::span<const float> masses, std::span<const double> block_sums,
                            double uniform) noexcept {
  double total = 0.0;
  for (const double sum_of_block : block_sums) {
    total += sum_of_block;
  }
  double left = uniform * total;
  const std::size_t begin =
      kMassBlock * choose_by_mass(
                       block_sums.size(), [&](std::size_t b) { return block_sums[b]; }, left);
  const std::size_t end = std::min(begin + kMassBlock, masses.size());
  const std::size_t offset = choose_by_mass(
      end - begin, [&](std::size_t i) { return static_cast<double>(masses[begin + i]); }, left);
  return static_cast<std::int32_t>(begin + offset);
}

}  // namespace tidemill::engines
