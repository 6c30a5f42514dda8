// SPDX-License-Identifier: Apache-2.0
// Transposes square blocks in registers.
#pragma once

#include <cstdint>
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

}  // namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA
