// SPDX-License-Identifier: Apache-2.0
// Products of bfloat16 pairs for attention: operands rounded to bfloat16, sums in float32.
//
// The right operand consists of words of two elements, as pages of the cache store them. The left
// operand consists of rows of consecutive elements. A step of a product adds a[r][2k] * b[k].first
// and then a[r][2k+1] * b[k].second. If the processor has an instruction for that (AVX-512 BF16),
// the instruction flushes denormals and gives different bits.
#pragma once

#include <cstdint>
#include <cstring>

#include "engines/ops/cpu/halves.hpp"
#include "engines/ops/cpu/tile.hpp"
#include "engines/ops/cpu/vec.hpp"

namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA {

/// Holds two bfloat16 elements, the first in the low half.
using Pair = std::uint32_t;

inline constexpr Pair kFirstOfPair = 0x0000FFFFU;
inline constexpr Pair kSecondOfPair = 0xFFFF0000U;

/// Holds a bfloat16 value of a left operand: its 16 bits if one instruction multiplies pairs, or
/// else widened to float.
#if defined(__AVX512BF16__)
using Rounded = std::uint16_t;
#else
using Rounded = float;
#endif

inline WordRegister load_words(const Pair* from) {
  WordRegister words;
  std::memcpy(&words, from, sizeof(words));
  return words;
}

#if defined(__AVX512BF16__)

/// Rounds sixteen elements to bfloat16, ties to even.
inline HalfRegister rounded_halves(const Vec& value) {
  return reinterpret_cast<HalfRegister>(_mm512_cvtneps_pbh(native(value)));
}
inline void store_rounded(Rounded* to, const Vec& value) {
  const HalfRegister halves = rounded_halves(value);
  std::memcpy(to, &halves, sizeof(halves));
}
/// Stores first[0], second[0], first[1], second[1] and so on.
inline void store_rounded_pairs(Rounded* to, const Vec& first, const Vec& second) {
  const WordRegister low = __builtin_convertvector(rounded_halves(first), WordRegister);
  const WordRegister high = __builtin_convertvector(rounded_halves(second), WordRegister);
  const WordRegister pairs = low | (high << 16U);
  std::memcpy(to, &pairs, sizeof(pairs));
}

/// sums[r][v] += the products of the pair at a + r * a_row with the pairs of b[v].
template <int kRows, int kVectors>
inline void add_pairs(const Rounded* a, std::int64_t a_row, const WordRegister (&b)[kVectors],
                      Accumulators<kRows, kVectors>& sums) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    std::int32_t pair = 0;
    std::memcpy(&pair, a + r * a_row, sizeof(pair));
    const auto factor = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      sums.value[r][v] = reinterpret_cast<Register>(_mm512_dpbf16_ps(
          reinterpret_cast<__m512>(sums.value[r][v]), reinterpret_cast<__m512bh>(b[v]), factor));
    }
  }
}

#else

/// Rounds sixteen elements to bfloat16, ties to even.
inline void store_rounded(Rounded* to, const Vec& value) {
  store(to, bf16_rounded(value));
}
/// Stores first[0], second[0], first[1], second[1] and so on.
inline void store_rounded_pairs(Rounded* to, const Vec& first, const Vec& second) {
  float lanes[2][kLanes];
  store(lanes[0], bf16_rounded(first));
  store(lanes[1], bf16_rounded(second));
  for (std::int64_t i = 0; i < kLanes; ++i) {
    to[2 * i] = lanes[0][i];
    to[2 * i + 1] = lanes[1][i];
  }
}

/// sums[r][v] += the products of the pair at a + r * a_row with the pairs of b[v].
template <int kRows, int kVectors>
inline void add_pairs(const Rounded* a, std::int64_t a_row, const WordRegister (&b)[kVectors],
                      Accumulators<kRows, kVectors>& sums) {
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    Register row[kVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      row[v] = reinterpret_cast<Register>(half == 0 ? b[v] << 16U : b[v] & kSecondOfPair);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Register factor = broadcast_register(a[r * a_row + half]);
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        sums.value[r][v] = multiply_add(factor, row[v], sums.value[r][v]);
      }
    }
  }
}

#endif

/// Stores sixteen rounded pairs of `first` and `second` as words of a right operand.
inline void store_pairs(Pair* to, const Vec& first, const Vec& second) {
#if defined(__AVX512BF16__)
  store_rounded_pairs(reinterpret_cast<Rounded*>(to), first, second);
#else
  const Vec low = bf16_rounded(first);
  const Vec high = bf16_rounded(second);
#pragma GCC unroll 4
  for (int i = 0; i < kRegisters; ++i) {
    const WordRegister pairs = reinterpret_cast<WordRegister>(low.part[i]) >> 16U |
                               reinterpret_cast<WordRegister>(high.part[i]);
    std::memcpy(to + i * kRegisterFloats, &pairs, sizeof(pairs));
  }
#endif
}

/// Describes the operands of a tile in the way of `TileOperands`; each step is a pair.
struct PairOperands {
  const Rounded* a = nullptr;
  std::int64_t a_row = 0;   // elements between the rows of a
  std::int64_t a_step = 2;  // elements between the pairs of a row
  const Pair* b = nullptr;
  std::int64_t b_step = 0;      // pairs between the steps of b
  std::int64_t panel_step = 0;  // pairs between panels of b
  std::int64_t depth = 0;       // pairs
};

/// Loads one step of b.
template <int kVectors>
inline void load_step(const Pair* b, std::int64_t panel_step, WordRegister (&row)[kVectors]) {
#pragma GCC unroll 16
  for (int v = 0; v < kVectors; ++v) {
    row[v] = load_words(b + v / kRegisters * panel_step + v % kRegisters * kRegisterFloats);
  }
}

template <int kRows, int kVectors>
inline void accumulate(const PairOperands& in, Accumulators<kRows, kVectors>& acc) {
  Accumulators<kRows, kVectors> sums = acc;
  const Rounded* a = in.a;
  const Pair* b = in.b;
  for (std::int64_t k = 0; k < in.depth; ++k) {
    WordRegister row[kVectors];
    load_step(b, in.panel_step, row);
    add_pairs(a, in.a_row, row, sums);
    a += in.a_step;
    b += in.b_step;
  }
  acc = sums;
}

}  // namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA
