// SPDX-License-Identifier: Apache-2.0
// Transposes square blocks in registers.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#include "engines/ops/cpu/vec.hpp"

namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA {

/// Swaps the off-diagonal blocks of `kStep` lanes between two rows that are `kStep` apart.
template <int kStep, class V, int... lane>
inline void swap_blocks(V& a, V& b, std::integer_sequence<int, lane...>) {
  constexpr int kSize = sizeof...(lane);
  const V upper =
      __builtin_shufflevector(a, b, ((lane & kStep) == 0 ? lane : kSize + lane - kStep)...);
  const V lower =
      __builtin_shufflevector(a, b, ((lane & kStep) == 0 ? lane + kStep : kSize + lane)...);
  a = upper;
  b = lower;
}

template <int n, int kStep, class V>
inline void transpose_step(V (&rows)[n]) {
#pragma GCC unroll 16
  for (int i = 0; i < n; ++i) {
    if ((i & kStep) == 0) {
      swap_blocks<kStep>(rows[i], rows[i + kStep], std::make_integer_sequence<int, n>());
    }
  }
  if constexpr (kStep * 2 < n) {
    transpose_step<n, kStep * 2>(rows);
  }
}

/// Transposes n rows of n lanes in registers.
template <int n, class V>
inline void transpose_square(V (&rows)[n]) {
  transpose_step<n, 1>(rows);
}

/// Transposes sixteen rows of sixteen floats: stores their columns `to_row` floats apart.
/// `row(i, lane)` loads a register of row i from `lane` on.
template <class Row>
inline void transpose_sixteen(const Row& row, float* to, std::int64_t to_row) {
  constexpr int kSide = kRegisterFloats;
  for (std::int64_t lane = 0; lane < kLanes; lane += kSide) {
    for (std::int64_t i = 0; i < kLanes; i += kSide) {
      Register block[kSide];
#pragma GCC unroll 16
      for (int r = 0; r < kSide; ++r) {
        block[r] = row(i + r, lane);
      }
      transpose_square<kSide>(block);
#pragma GCC unroll 16
      for (int r = 0; r < kSide; ++r) {
        store_register(to + (lane + r) * to_row + i, block[r]);
      }
    }
  }
}

using Halves = std::uint16_t __attribute__((vector_size(kRegisterFloats * 4)));
using DoubleWords = std::uint64_t __attribute__((vector_size(kRegisterFloats * 4)));

/// Reorders [a0 a1 b0 b1] to [a0 b0 a1 b1]: pairs of i for outputs a and b become pairs of outputs.
template <int... quad>
inline Halves pair_up(Halves x, std::integer_sequence<int, quad...>) {
  return __builtin_shufflevector(x, x,
                                 (quad % 4 == 1   ? quad + 1
                                  : quad % 4 == 2 ? quad - 1
                                                  : quad)...);
}

/// Transposes a 16 x 16 block of pairs: `in` holds 8 pairs of i for each of 16 o, `out` 8 pairs of
/// o for each of 16 i. Two of o and two of i form one double word; there are 8 x 8 of them. `count`
/// pairs of `in` exist. The pairs of each are `in_row` and `out_row` elements apart.
inline void transpose_pairs(const std::uint16_t* in, std::int64_t in_row, std::int64_t count,
                            std::uint16_t* out, std::int64_t out_row) {
  constexpr std::int64_t kPairs = kLanes / 2;
  constexpr int kDoubleWords = kRegisterFloats / 2;
  for (std::int64_t i = 0; i < kPairs; i += kDoubleWords) {
    for (std::int64_t o = 0; o < kPairs; o += kDoubleWords) {
      DoubleWords block[kDoubleWords];
#pragma GCC unroll 8
      for (int r = 0; r < kDoubleWords; ++r) {
        Halves row = {};
        if (i + r < count) {
          std::memcpy(&row, in + (i + r) * in_row + o * 4, sizeof(row));
        }
        block[r] = reinterpret_cast<DoubleWords>(
            pair_up(row, std::make_integer_sequence<int, 2 * kRegisterFloats>()));
      }
      transpose_square<kDoubleWords>(block);
#pragma GCC unroll 8
      for (int r = 0; r < kDoubleWords; ++r) {
        std::memcpy(out + (o + r) * out_row + i * 4, &block[r], sizeof(block[r]));
      }
    }
  }
}

}  // namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA
