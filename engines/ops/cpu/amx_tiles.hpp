// SPDX-License-Identifier: Apache-2.0
// The tile registers of AMX.
#pragma once

#include <cstdint>
#include <immintrin.h>

#include "engines/ops/cpu/attention_kinds.hpp"

namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA {

inline constexpr std::int64_t kAmxRows = 16;      // of a tile
inline constexpr std::int64_t kAmxRowBytes = 64;  // of a tile
inline constexpr std::int64_t kAmxDepth = 32;     // bfloat16 elements in a row of a tile

/// GCC's intrinsics do not tell the compiler that they read memory. Call this between writing to
/// `memory` and loading it with an intrinsic.
inline void finish_writes(const void* memory) {
  asm volatile("" : : "r"(memory) : "memory");
}

/// The operand of LDTILECFG.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

/// Configures the tiles for products of `rows` <= 32 rows and `depth` elements, 16 or 32: tiles 0,
/// 1 and 4 for the first 16 rows, 2, 3 and 5 for the others, 6 and 7 for right operands. Sets all
/// tiles to zero.
inline void configure_tiles(std::int64_t rows, std::int64_t depth = kAmxDepth) {
  const auto upper = static_cast<std::uint8_t>(rows < kAmxRows ? rows : kAmxRows);
  const auto lower = static_cast<std::uint8_t>(rows > kAmxRows ? rows - kAmxRows : 1);
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    config.row_bytes[tile] = kAmxRowBytes;
  }
  config.rows[0] = config.rows[1] = config.rows[4] = upper;
  config.rows[2] = config.rows[3] = config.rows[5] = lower;
  config.row_bytes[4] = config.row_bytes[5] = static_cast<std::uint16_t>(depth * 2);
  config.rows[6] = config.rows[7] = static_cast<std::uint8_t>(depth / 2);
  finish_writes(&config);
  _tile_loadconfig(&config);
}

// A block of sums is tiles 0 and 1 (upper rows) and 2 and 3 (lower rows):
//
//        6  7
//   4    0  1
//   5    2  3
//
// A template parameter says whether the lower rows and the right columns exist. The compiler needs
// the numbers of tiles as literals.

/// The two tiles of an operand in memory: the upper and the lower rows of a left one, the left and
/// the right columns of a right one. `second` may be null if the block has no such half.
struct OperandTiles {
  const void* first = nullptr;
  const void* second = nullptr;
  std::int64_t row_bytes = 0;  // from one row of a tile to the next
};

/// Adds one step of a product to the sums.
template <bool kLower, bool kRight>
[[gnu::always_inline]] inline void add_step(const OperandTiles& a, const OperandTiles& b) {
  _tile_loadd(6, b.first, b.row_bytes);
  _tile_loadd(4, a.first, a.row_bytes);
  _tile_dpbf16ps(0, 4, 6);
  if constexpr (kRight) {
    _tile_loadd(7, b.second, b.row_bytes);
    _tile_dpbf16ps(1, 4, 7);
  }
  if constexpr (kLower) {
    _tile_loadd(5, a.second, a.row_bytes);
    _tile_dpbf16ps(2, 5, 6);
    if constexpr (kRight) {
      _tile_dpbf16ps(3, 5, 7);
    }
  }
}

inline void clear_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

/// Where a block of sums is in memory. Distances are in floats.
struct SumTiles {
  float* first = nullptr;
  std::int64_t row = 0;    // from one row of a tile to the next
  std::int64_t right = 0;  // to the tile beside
  std::int64_t lower = 0;  // to the tile below

  template <bool kLower, bool kRight>
  void load() const {
    finish_writes(first);
    _tile_loadd(0, first, row * 4);
    if constexpr (kRight) {
      _tile_loadd(1, first + right, row * 4);
    }
    if constexpr (kLower) {
      _tile_loadd(2, first + lower, row * 4);
    }
    if constexpr (kLower && kRight) {
      _tile_loadd(3, first + lower + right, row * 4);
    }
  }
  template <bool kLower, bool kRight>
  void store() const {
    _tile_stored(0, first, row * 4);
    if constexpr (kRight) {
      _tile_stored(1, first + right, row * 4);
    }
    if constexpr (kLower) {
      _tile_stored(2, first + lower, row * 4);
    }
    if constexpr (kLower && kRight) {
      _tile_stored(3, first + lower + right, row * 4);
    }
    finish_writes(first);
  }
};

/// Attention over a bfloat16 cache with products in tile registers.
struct TilePairs : Pairs {
  static constexpr std::int64_t kRowStep = kAmxDepth;
  static constexpr std::int64_t kColumnStep = kAmxDepth;
};

}  // namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA
