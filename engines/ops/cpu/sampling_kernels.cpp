// SPDX-License-Identifier: Apache-2.0
// The loops of sampling over blocks of masses. They compute the bits of the portable ones
// (engines/sampling/mass_kernels.cpp): every product is rounded before it is added, on processors
// with FMA too.
#include <cstdint>
#include <cstring>

#include "engines/ops/cpu/isa_kernels.hpp"
#include "engines/ops/cpu/kernels.hpp"
#include "engines/ops/cpu/vec.hpp"

namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA {
namespace {

using Doubles = double __attribute__((vector_size(kRegisterFloats * 4)));
using LongWords = std::uint64_t __attribute__((vector_size(kRegisterFloats * 4)));
using HalfFloats = float __attribute__((vector_size(kRegisterFloats * 2)));

constexpr std::int64_t kDoubles = kRegisterFloats / 2;  // doubles of a register
constexpr std::int64_t kWide = kLanes / kDoubles;       // registers of sixteen doubles

// Sixteen doubles.
struct WideVec {
  Doubles part[kWide];
};

inline WideVec widen(const float* from) {
  WideVec out;
#pragma GCC unroll 8
  for (std::int64_t i = 0; i < kWide; ++i) {
    HalfFloats half;
    std::memcpy(&half, from + i * kDoubles, sizeof(half));
    out.part[i] = __builtin_convertvector(half, Doubles);
  }
  return out;
}

inline Vec narrow(const WideVec& from) {
  float lanes[kLanes];
#pragma GCC unroll 8
  for (std::int64_t i = 0; i < kWide; ++i) {
    const HalfFloats half = __builtin_convertvector(from.part[i], HalfFloats);
    std::memcpy(lanes + i * kDoubles, &half, sizeof(half));
  }
  return load(lanes);
}

// `exp_nonpositive` of sixteen lanes.
inline Vec exponential_nonpositive(const Vec& x) {
  const Vec rounder = broadcast(12582912.0F);
  const Vec shifted = x * broadcast(1.44269504F) + rounder;
  const Vec n = shifted - rounder;
  const Vec r = x - n * broadcast(0.693359375F) - n * broadcast(-2.12194440e-4F);
  Vec value = broadcast(1.0F / 5040.0F);
  for (const float term :
       {1.0F / 720.0F, 1.0F / 120.0F, 1.0F / 24.0F, 1.0F / 6.0F, 0.5F, 1.0F, 1.0F}) {
    value = value * r + broadcast(term);
  }
  const Vec power = each_part([&](int i) {
    return reinterpret_cast<Register>((reinterpret_cast<WordRegister>(shifted.part[i]) << 23U) +
                                      0x3F800000U);
  });
  return select(x < broadcast(-87.0F), broadcast(0.0F), value * power);
}

// The loops are flattened because the calls for the last lanes would otherwise keep GCC from
// inlining those of the loop.
[[gnu::flatten]] Largest largest(const float* logits, std::size_t count) {
  const auto size = static_cast<std::int64_t>(count);
  const Vec lowest = broadcast(-__builtin_inff());
  Vec tops = lowest;
  Mask nans = lowest != lowest;
  std::int64_t j = 0;
  for (; j + kLanes <= size; j += kLanes) {
    const Vec value = load(logits + j);
    tops = maximum(value, tops);
    nans = nans | (value != value);
  }
  if (j < size) {
    const Vec value =
        select(lanes_between(0, size - j - 1), load_some(logits + j, size - j), lowest);
    tops = maximum(value, tops);
    nans = nans | (value != value);
  }
  return {double{max_lane(tops)}, any(nans)};
}

// Returns the difference of sixteen logits and the largest. If the largest logit is a float, the
// difference of two floats rounds to the same float in single and in double precision.
template <bool kInFloat>
inline Vec below_largest(const Vec& logits, double largest) {
  if constexpr (kInFloat) {
    return logits - broadcast(static_cast<float>(largest));
  } else {
    float lanes[kLanes];
    store(lanes, logits);
    WideVec wide = widen(lanes);
    for (Doubles& part : wide.part) {
      part -= largest;
    }
    return narrow(wide);
  }
}

template <bool kInFloat, bool kDivides>
[[gnu::flatten]] void compute_with(const float* logits, std::int64_t size, double largest,
                                   float temperature, float* masses) {
  const Vec divisor = broadcast(temperature);
  const auto masses_of = [&](const Vec& some) {
    const Vec below = below_largest<kInFloat>(some, largest);
    return exponential_nonpositive(kDivides ? below / divisor : below);
  };
  std::int64_t j = 0;
  for (; j + kLanes <= size; j += kLanes) {
    store(masses + j, masses_of(load(logits + j)));
  }
  if (j < size) {
    store_some(masses + j, masses_of(load_some(logits + j, size - j)), size - j);
  }
}

void compute_masses(const float* logits, std::size_t count, double largest, float temperature,
                    float* masses) {
  const auto size = static_cast<std::int64_t>(count);
  const bool in_float = double{static_cast<float>(largest)} == largest;
  const bool divides = temperature != 1.0F;
  const auto loop = in_float ? (divides ? compute_with<true, true> : compute_with<true, false>)
                             : (divides ? compute_with<false, true> : compute_with<false, false>);
  loop(logits, size, largest, temperature, masses);
}

[[gnu::flatten]] double sum(const float* masses, std::size_t count) {
  const auto size = static_cast<std::int64_t>(count);
  const std::int64_t whole = size / kLanes * kLanes;
  WideVec sums = {};
  for (std::int64_t j = 0; j < whole; j += kLanes) {
    const WideVec wide = widen(masses + j);
    for (std::int64_t i = 0; i < kWide; ++i) {
      sums.part[i] += wide.part[i];
    }
  }
  double total = 0.0;
  for (const Doubles& part : sums.part) {
    for (std::int64_t i = 0; i < kDoubles; ++i) {
      total += part[i];
    }
  }
  for (std::int64_t j = whole; j < size; ++j) {
    total += double{masses[j]};
  }
  return total;
}

// Sums of fixed-point masses. Adding 2^52 to a number below it rounds to an integer, which is then
// in the low bits.
struct FixedPointSums {
  LongWords part[kWide] = {};
  std::uint64_t count = 0;

  void add(const float* masses, double scale) {
    const WideVec wide = widen(masses);
#pragma GCC unroll 8
    for (std::int64_t i = 0; i < kWide; ++i) {
      part[i] += reinterpret_cast<LongWords>(wide.part[i] * scale + 0x1p52);
    }
    count += kLanes;
  }
  [[nodiscard]] std::uint64_t total() const {
    constexpr std::uint64_t kRounderBits = std::uint64_t{1023 + 52} << 52U;
    std::uint64_t sum = 0;
    for (const LongWords& words : part) {
      for (std::int64_t i = 0; i < kDoubles; ++i) {
        sum += words[i];
      }
    }
    return sum - count * kRounderBits;
  }
};

[[gnu::flatten]] std::uint64_t sum_of_all(const float* masses, std::int64_t size, double scale) {
  FixedPointSums sums;
  std::int64_t j = 0;
  for (; j + kLanes <= size; j += kLanes) {
    sums.add(masses + j, scale);
  }
  if (j < size) {
    float lanes[kLanes];
    store(lanes, load_some(masses + j, size - j));
    sums.add(lanes, scale);
  }
  return sums.total();
}

[[gnu::flatten]] std::uint64_t sum_of_some(const float* masses, std::int64_t size, double scale,
                                           float min) {
  const Vec bound = broadcast(min);
  FixedPointSums sums;
  const auto add = [&](const Vec& some, std::uint32_t valid) {
    const Mask below = some < bound;
    const std::uint32_t lanes = ~lane_bits(below) & valid;
    if (lanes != 0) {
      float reaching[kLanes];
      store(reaching, select(below, broadcast(0.0F), some));
      sums.add(reaching, scale);
    }
  };
  std::int64_t j = 0;
  for (; j + kLanes <= size; j += kLanes) {
    add(load(masses + j), 0xFFFFU);
  }
  if (j < size) {
    add(load_some(masses + j, size - j), (1U << static_cast<std::uint32_t>(size - j)) - 1U);
  }
  return sums.total();
}

std::uint64_t fixed_point_sum(const float* masses, std::size_t count, int bits, float min) {
  const auto size = static_cast<std::int64_t>(count);
  const double scale = static_cast<double>(std::uint64_t{1} << static_cast<std::uint32_t>(bits));
  return min > 0.0F ? sum_of_some(masses, size, scale, min) : sum_of_all(masses, size, scale);
}

[[gnu::flatten]] std::size_t find(const float* masses, std::size_t count, float min, float max,
                                  std::int32_t* found) {
  const auto size = static_cast<std::int64_t>(count);
  const Vec low = broadcast(min);
  const Vec high = broadcast(max);
  std::size_t number = 0;
  const auto add = [&](const Vec& some, std::uint32_t valid, std::int64_t first) {
    std::uint32_t lanes = ~lane_bits((some < low) | (high < some)) & valid;
    for (; lanes != 0; lanes &= lanes - 1U) {
      found[number++] = static_cast<std::int32_t>(first) + __builtin_ctz(lanes);
    }
  };
  std::int64_t j = 0;
  for (; j + kLanes <= size; j += kLanes) {
    add(load(masses + j), 0xFFFFU, j);
  }
  if (j < size) {
    add(load_some(masses + j, size - j), (1U << static_cast<std::uint32_t>(size - j)) - 1U, j);
  }
  return number;
}

[[gnu::flatten]] void drop_below(float* masses, std::size_t count, float min) {
  const auto size = static_cast<std::int64_t>(count);
  const Vec bound = broadcast(min);
  const auto dropped = [&](const Vec& some) { return select(some < bound, broadcast(0.0F), some); };
  std::int64_t j = 0;
  for (; j + kLanes <= size; j += kLanes) {
    store(masses + j, dropped(load(masses + j)));
  }
  if (j < size) {
    store_some(masses + j, dropped(load_some(masses + j, size - j)), size - j);
  }
}

}  // namespace

void add_sampling_kernels(KernelTable& table) noexcept {
  table.masses = {largest, compute_masses, sum, fixed_point_sum, find, drop_below};
}

}  // namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA
