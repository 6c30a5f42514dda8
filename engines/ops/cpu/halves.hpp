// SPDX-License-Identifier: Apache-2.0
// Rounds sixteen lanes to bfloat16.
#pragma once

#include <cstdint>
#include <cstring>

#include "engines/ops/cpu/vec.hpp"

namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA {

/// Rounds to bfloat16, ties to even, as `float_to_bf16` does. A NaN stays a NaN. The low half of
/// each word is 0 unless the lane is a NaN.
inline Vec bf16_rounded(const Vec& x) {
  const Vec rounded = each_part([&](int i) {
    const auto bits = reinterpret_cast<WordRegister>(x.part[i]);
    return reinterpret_cast<Register>((bits + 0x7FFFU + ((bits >> 16U) & 1U)) & 0xFFFF0000U);
  });
  return select(x != x, x, rounded);
}

/// Stores the upper halves of the first min(count, 16) lanes.
inline void store_halves(std::uint16_t* to, const Vec& value, std::int64_t count) {
  std::uint16_t halves[kLanes];
#pragma GCC unroll 4
  for (int i = 0; i < kRegisters; ++i) {
    const auto words = reinterpret_cast<WordRegister>(value.part[i]) >> 16U;
    const HalfRegister half = __builtin_convertvector(words, HalfRegister);
    std::memcpy(halves + i * kRegisterFloats, &half, sizeof(half));
  }
  if (count >= kLanes) {
    std::memcpy(to, halves, sizeof(halves));
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    to[i] = halves[i];
  }
}

}  // namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA
