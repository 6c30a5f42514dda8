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

/// Attention over a bfloat16 cache with products in tile registers.
struct TilePairs : Pairs {
  static constexpr std::int64_t kRowStep = kAmxDepth;
  static constexpr std::int64_t kColumnStep = kAmxDepth;
};

}  // namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA
