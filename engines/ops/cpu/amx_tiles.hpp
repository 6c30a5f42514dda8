// SPDX-License-Identifier: Apache-2.0
// The tile registers of AMX.
#pragma once

#include <cstdint>
#include <immintrin.h>

#include "engines/ops/cpu/attention_kinds.hpp"

namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA {

inline constexpr std::int64_t kAmxTileRows = 16;
inline constexpr std::int64_t kAmxTileRowBytes = 64;
inline constexpr std::int64_t kAmxTileDepth = 32;  // bfloat16 elements in a row

/// A barrier for the compiler. GCC's intrinsics do not declare the memory that they access, so
/// without it, the compiler may move other accesses to `memory` past them. Call it after writing
/// what an intrinsic loads, and between an intrinsic's store and reading the result.
inline void tile_memory_barrier(const void* memory) {
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
inline void configure_tiles(std::int64_t rows, std::int64_t depth = kAmxTileDepth) {
  const auto upper = static_cast<std::uint8_t>(rows < kAmxTileRows ? rows : kAmxTileRows);
  const auto lower = static_cast<std::uint8_t>(rows > kAmxTileRows ? rows - kAmxTileRows : 1);
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    config.row_bytes[tile] = kAmxTileRowBytes;
  }
  config.rows[0] = config.rows[1] = config.rows[4] = upper;
  config.rows[2] = config.rows[3] = config.rows[5] = lower;
  config.row_bytes[4] = config.row_bytes[5] = static_cast<std::uint16_t>(depth * 2);
  config.rows[6] = config.rows[7] = static_cast<std::uint8_t>(depth / 2);
  tile_memory_barrier(&config);
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
    tile_memory_barrier(first);
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
    tile_memory_barrier(first);
  }
};

/// `Pairs` for products in tile registers: rows and columns are padded to whole tiles.
struct TilePairs : Pairs {
  static constexpr std::int64_t kRowStep = kAmxTileDepth;
  static constexpr std::int64_t kColumnStep = kAmxTileDepth;
};

}  // namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA
