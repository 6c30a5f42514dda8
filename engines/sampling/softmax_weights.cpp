// SPDX-License-Identifier: Apache-2.0
#include "engines/sampling/softmax_weights.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

namespace tidemill::engines {
namespace {

// A fixed number of lanes fixes the order of comparisons and additions. The compiler can vectorize
// the loops, and all machines still compute the same bits.
constexpr std::size_t kLanes = 16;

template <class Real>
Largest largest_in_lanes(std::span<const Real> values) noexcept {
  constexpr Real kLowest = -std::numeric_limits<Real>::infinity();
  std::array<Real, kLanes> lanes;
  lanes.fill(kLowest);
  std::array<bool, kLanes> nans{};
  const std::size_t whole = values.size() / kLanes * kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes) {
    for (std::size_t j = 0; j < kLanes; ++j) {
      const Real value = values[i + j];
      lanes[j] = value > lanes[j] ? value : lanes[j];
      nans[j] |= value != value;
    }
  }
  for (std::size_t i = whole; i < values.size(); ++i) {
    lanes[0] = values[i] > lanes[0] ? values[i] : lanes[0];
    nans[0] |= values[i] != values[i];
  }
  return {static_cast<double>(*std::max_element(lanes.begin(), lanes.end())),
          std::any_of(nans.begin(), nans.end(), [](bool is_nan) { return is_nan; })};
}

template <class Real>
void weigh(std::span<const Real> logits, Real largest, float temperature,
           std::span<float> weights) noexcept {
  const std::size_t size = std::min(logits.size(), weights.size());
  for (std::size_t i = 0; i < size; ++i) {
    weights[i] = exp_nonpositive(static_cast<float>(logits[i] - largest) / temperature);
  }
}

double block_sum(std::span<const float> block) noexcept {
  std::array<double, kLanes> lanes{};
  const std::size_t whole = block.size() / kLanes * kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes) {
    for (std::size_t j = 0; j < kLanes; ++j) {
      lanes[j] += static_cast<double>(block[i + j]);
    }
  }
  double sum = 0.0;
  for (const double lane : lanes) {
    sum += lane;
  }
  for (std::size_t i = whole; i < block.size(); ++i) {
    sum += static_cast<double>(block[i]);
  }
  return sum;
}

std::span<const float> block_of(std::span<const float> weights, std::size_t block) noexcept {
  const std::size_t begin = block * kWeightBlock;
  return weights.subspan(begin, std::min(kWeightBlock, weights.size() - begin));
}

}  // namespace

Largest largest_of(std::span<const float> values) noexcept {
  return largest_in_lanes(values);
}
Largest largest_of(std::span<const double> values) noexcept {
  return largest_in_lanes(values);
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
  // A mask instead of a branch, which would prevent loops from being vectorized.
  const std::uint32_t mask = x < -87.0F ? 0U : ~0U;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) & mask);
}

void softmax_weights(std::span<const float> logits, float largest, float temperature,
                     std::span<float> weights) noexcept {
  weigh(logits, largest, temperature, weights);
}

void softmax_weights(std::span<const double> logits, double largest, float temperature,
                     std::span<float> weights) noexcept {
  weigh(logits, largest, temperature, weights);
}

double sum_weights(std::span<const float> weights, std::span<double> block_sums) noexcept {
  double total = 0.0;
  for (std::size_t b = 0; b < block_sums.size(); ++b) {
    block_sums[b] = block_sum(block_of(weights, b));
    total += block_sums[b];
  }
  return total;
}

std::int32_t sample_by_weight(std::span<const float> weights, std::span<const double> block_sums,
                              double uniform) noexcept {
  double total = 0.0;
  for (const double sum : block_sums) {
    total += sum;
  }
  double left = uniform * total;
  // Because of rounding, `left` may reach the end of the last block with a weight above 0. That
  // block is then chosen.
  std::size_t chosen = 0;
  for (std::size_t b = 0; b < block_sums.size(); ++b) {
    if (block_sums[b] > 0.0) {
      chosen = b;
      if (left < block_sums[b]) {
        break;
      }
    }
    left -= block_sums[b];
  }
  const std::span<const float> block = block_of(weights, chosen);
  std::size_t token = 0;
  for (std::size_t i = 0; i < block.size(); ++i) {
    if (block[i] > 0.0F) {
      token = i;
      if (left < static_cast<double>(block[i])) {
        break;
      }
      left -= static_cast<double>(block[i]);
    }
  }
  return static_cast<std::int32_t>(chosen * kWeightBlock + token);
}

}  // namespace tidemill::engines
