// SPDX-License-Identifier: Apache-2.0
// The register tile of attention products and weight gradients.
//
// A tile holds kRows x (kVectors registers) of results and adds a[r][k] * b[k][lane] in ascending
// order of k. Each element is one chain of multiply-adds, so neither the size of the tile nor the
// position of an element in it affects the bits.
#pragma once

#include <cstdint>

#include "engines/ops/cpu/vec.hpp"

namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA {

// The maximum rows of a tile of one panel: the register file also holds a row of b and a broadcast.
#if defined(__AVX512F__)
inline constexpr int kTileRows = 12;
#elif defined(__AVX2__) && defined(__FMA__)
inline constexpr int kTileRows = 6;
#else
inline constexpr int kTileRows = 3;
#endif

/// Describes the operands of a tile. Register v of a step is loaded from
/// b + v / kRegisters * panel_step + v % kRegisters * kRegisterFloats.
struct TileOperands {
  const float* a = nullptr;
  std::int64_t a_row = 0;   // floats between the rows of a
  std::int64_t a_step = 0;  // floats between the steps of a
  const float* b = nullptr;
  std::int64_t b_step = 0;      // floats between the steps of b
  std::int64_t panel_step = 0;  // floats between panels of b
  std::int64_t depth = 0;
};

template <int kRows, int kVectors>
struct Accumulators {
  Register value[kRows][kVectors];
};

template <int kRows, int kVectors>
inline void accumulate(const TileOperands& in, Accumulators<kRows, kVectors>& acc) {
  // A local copy: the compiler keeps it in registers.
  Accumulators<kRows, kVectors> sum = acc;
  const float* a = in.a;
  const float* b = in.b;
  for (std::int64_t k = 0; k < in.depth; ++k) {
    Register row[kVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      row[v] = load_register(b + v / kRegisters * in.panel_step + v % kRegisters * kRegisterFloats);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Register x = broadcast_register(a[r * in.a_row]);
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        sum.value[r][v] = multiply_add(x, row[v], sum.value[r][v]);
      }
    }
    a += in.a_step;
    b += in.b_step;
  }
  acc = sum;
}

/// Operands that are read once: with each register of b, also prefetches the memory `ahead`
/// elements of b after it to the second-level cache. Prefetches between products cost no time of
/// their own, while memory accepts only a few dozen at once.
template <class Base>
struct Prefetching : Base {
  std::int64_t ahead = 0;
};

template <int kRows, int kVectors, class Base>
inline void accumulate(const Prefetching<Base>& in, Accumulators<kRows, kVectors>& acc) {
  Accumulators<kRows, kVectors> sums = acc;
  Base step = static_cast<const Base&>(in);
  step.depth = 1;
  for (std::int64_t k = 0; k < in.depth; ++k) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      __builtin_prefetch(
          step.b + in.ahead + v / kRegisters * in.panel_step + v % kRegisters * kRegisterFloats, 0,
          2);
    }
    accumulate(step, sums);
    step.a += in.a_step;
    step.b += in.b_step;
  }
  acc = sums;
}

/// Says what the sums of a tile start from: zero, or the values in memory.
enum class Start { kZero, kMemory };

/// Computes kRows x (kVectors registers) results in memory, `c_row` floats between rows. `Operands`
/// is `TileOperands` or another type that `accumulate` takes.
template <int kRows, int kVectors, Start kStart, class Operands>
inline void accumulate_in_memory(const Operands& in, float* c, std::int64_t c_row) {
  Accumulators<kRows, kVectors> acc = {};
  if constexpr (kStart == Start::kMemory) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        acc.value[r][v] = load_register(c + r * c_row + v * kRegisterFloats);
      }
    }
  }
  accumulate(in, acc);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      store_register(c + r * c_row + v * kRegisterFloats, acc.value[r][v]);
    }
  }
}

/// Calls f.template operator()<rows>() with the compile-time constant `rows` in [1, kRows].
template <int kRows = kTileRows, class F>
inline void with_rows(std::int64_t rows, F f) {
  if constexpr (kRows > 1) {
    if (rows < kRows) {
      with_rows<kRows - 1>(rows, f);
      return;
    }
  }
  f.template operator()<kRows>();
}

/// Returns how many of the `left` rows the next tile takes, so that tiles have similar heights.
inline std::int64_t next_rows(std::int64_t left) {
  const std::int64_t tiles = (left + kTileRows - 1) / kTileRows;
  return (left + tiles - 1) / tiles;
}

// The width of the widest tile of kTileRows rows, in groups of 16 columns.
#if defined(__AVX512F__)
inline constexpr int kTileWidth = 2;
#else
inline constexpr int kTileWidth = 1;
#endif

/// Computes the product of a (rows x depth) and b (depth x 16 kWidth) in memory. Adds it to the
/// values there if `kStart` is kMemory.
template <Start kStart, int kWidth = 1, class Operands>
inline void accumulate_rows(Operands in, std::int64_t rows, float* c, std::int64_t c_row) {
  while (rows > 0) {
    const std::int64_t count = next_rows(rows);
    with_rows(count, [&]<int kRows>() {
      accumulate_in_memory<kRows, kWidth * kRegisters, kStart>(in, c, c_row);
    });
    in.a += count * in.a_row;
    c += count * c_row;
    rows -= count;
  }
}

/// Does the same for any multiple of 16 columns; the columns of b are adjacent.
template <Start kStart, class Operands>
inline void accumulate_columns(const Operands& in, std::int64_t rows, std::int64_t columns,
                               float* c, std::int64_t c_row) {
  std::int64_t column = 0;
  const auto at_column = [&] {
    Operands from = in;
    from.b += column;
    from.panel_step = kLanes;
    return from;
  };
  for (; column + kTileWidth * kLanes <= columns; column += kTileWidth * kLanes) {
    accumulate_rows<kStart, kTileWidth>(at_column(), rows, c + column, c_row);
  }
  for (; column < columns; column += kLanes) {
    accumulate_rows<kStart>(at_column(), rows, c + column, c_row);
  }
}

}  // namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA
