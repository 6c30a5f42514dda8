// SPDX-License-Identifier: Apache-2.0
#include "base/random.hpp"

#include <array>
#include <cmath>
#include <numbers>

namespace tidemill {
namespace {

using Word = std::uint32_t;

constexpr Word kMultiplier0 = 0xD2511F53U;
constexpr Word kMultiplier1 = 0xCD9E8D57U;
constexpr Word kWeyl0 = 0x9E3779B9U;
constexpr Word kWeyl1 = 0xBB67AE85U;
constexpr int kRounds = 10;

constexpr Word low(std::uint64_t x) {
  return static_cast<Word>(x);
}
constexpr Word high(std::uint64_t x) {
  return static_cast<Word>(x >> 32U);
}

}  // namespace

std::uint64_t keyed_bits(std::uint64_t seed, std::uint64_t stream, std::uint64_t counter) noexcept {
  std::array<Word, 4> x{low(counter), high(counter), low(stream), high(stream)};
  Word key0 = low(seed);
  Word key1 = high(seed);
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t product0 = std::uint64_t{kMultiplier0} * x[0];
    const std::uint64_t product1 = std::uint64_t{kMultiplier1} * x[2];
    x = {high(product1) ^ x[1] ^ key0, low(product1), high(product0) ^ x[3] ^ key1, low(product0)};
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return (std::uint64_t{x[1]} << 32U) | x[0];
}

double keyed_uniform(std::uint64_t seed, std::uint64_t stream, std::uint64_t counter) noexcept {
  constexpr double kScale = 1.0 / 9007199254740992.0;  // 2^-53
  return static_cast<double>(keyed_bits(seed, stream, counter) >> 11U) * kScale;
}

std::uint64_t RandomStream::below(std::uint64_t bound) noexcept {
  // Rejects the lowest draws so that a multiple of `bound` remains. Takes fewer than two on
  // average.
  const std::uint64_t threshold = (0 - bound) % bound;
  for (;;) {
    const std::uint64_t draw = bits();
    if (draw >= threshold) {
      return draw % bound;
    }
  }
}

double RandomStream::normal() noexcept {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
  return radius * std::cos(2.0 * std::numbers::pi * uniform());
}

}  // namespace tidemill
