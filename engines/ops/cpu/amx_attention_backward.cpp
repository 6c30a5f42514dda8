// SPDX-License-Identifier: Apache-2.0
// Gradients of attention with products in the tile registers of AMX.
//
// All operands of attention_backward.hpp already have the layout of a tile, except the queries and
// the gradients of outputs that are summed over rows. A sum over rows is transposed here: its left
// operand is the queries by column, and the gradients of keys and values are kept in panels of
// sixteen positions, each features x 16.
#include <cstddef>
#include <cstdint>
#include <immintrin.h>

#include "engines/ops/cpu/amx_tiles.hpp"
#include "engines/ops/cpu/attention_backward.hpp"
#include "engines/ops/cpu/attention_backward_rows.hpp"
#include "engines/ops/cpu/attention_kinds.hpp"
#include "engines/ops/cpu/isa_kernels.hpp"
#include "engines/ops/cpu/kernels.hpp"
#include "engines/ops/cpu/transpose.hpp"
#include "engines/ops/cpu/vec.hpp"

namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA {

using TileWorkspace = BackwardWorkspace<TilePairs>;

namespace {

constexpr std::int64_t kStep = kAmxTileDepth;
constexpr std::int64_t kHalf = kAmxTileRows;

// A left or right operand in memory, a pair of tiles in each step. Distances are in bytes.
struct Steps {
  const void* first = nullptr;
  std::int64_t row_bytes = 0;
  std::int64_t second = 0;  // to the other tile of a step
  std::int64_t step = 0;    // to the next step of the depth

  [[nodiscard]] OperandTiles at(std::int64_t k) const {
    const auto* tile = static_cast<const std::byte*>(first) + k * step;
    return {tile, tile + second, row_bytes};
  }
};

// Adds the products of 32 rows of `a` with 32 columns of `b`, in steps of 32 elements.
inline void add_products(const Steps& a, const Steps& b, std::int64_t steps) {
  for (std::int64_t k = 0; k < steps; ++k) {
    add_step<true, true>(a.at(k), b.at(k));
  }
}

}  // namespace

// -- the steps of attention_backward.hpp
// ------------------------------------------------------------

/// Copies the rows of a tile, rounded to bfloat16, to `to`, and pairs of rows to `units`: for each
/// 32 rows, `work.width` features of sixteen pairs. Rows and features that do not exist are 0.
inline void gather(const AttentionJob& job, const QueryTile& tile, const float* from,
                   std::int64_t stride, float /*factor*/, const TileWorkspace& work, Rounded* to,
                   Pair* units) {
  const std::int64_t head_dim = job.layout.head_dim;
  const auto row_at = [&](std::int64_t row, std::int64_t c) {
    const float* head =
        from + (tile.first_token + row / job.ratio) * stride + row % job.ratio * head_dim;
    return row < tile.rows && c < head_dim ? load_some(head + c, head_dim - c) : broadcast(0.0F);
  };
  const std::int64_t rows = round_up(tile.rows, kStep);
  for (std::int64_t first = 0; first < rows; first += kStep) {
    for (std::int64_t c = 0; c < work.width; c += kLanes) {
      alignas(64) Pair pairs[kHalf * kLanes];
      for (std::int64_t i = 0; i < kHalf; ++i) {
        const std::int64_t r = first + 2 * i;
        const Vec even = row_at(r, c);
        const Vec odd = row_at(r + 1, c);
        store_rounded(to + r * work.width + c, even);
        store_rounded(to + (r + 1) * work.width + c, odd);
        store_pairs(pairs + i * kLanes, even, odd);
      }
      transpose_sixteen(
          [&](std::int64_t i, std::int64_t lane) {
            return load_register(reinterpret_cast<const float*>(pairs) + i * kLanes + lane);
          },
          reinterpret_cast<float*>(units + (first / 2) * work.width + c * kHalf), kHalf);
    }
  }
}

/// Copy the gradients of all keys and values that the window sees to panels, and back.
inline void load_panels(const float* from, std::int64_t stride, const AttentionBackwardJob& in,
                        const TileWorkspace& work, float* panels) {
  const Span seen = window_span(in.job);
  const std::int64_t head_dim = in.job.layout.head_dim;
  for (std::int64_t column = 0; column < work.columns; column += kLanes) {
    for (std::int64_t c = 0; c < head_dim; c += kLanes) {
      alignas(64) float rows[kLanes * kLanes];
      for (std::int64_t i = 0; i < kLanes; ++i) {
        const std::int64_t position = work.origin + column + i;
        store(rows + i * kLanes, position >= seen.first && position <= seen.last
                                     ? load_some(from + position * stride + c, head_dim - c)
                                     : broadcast(0.0F));
      }
      transpose_sixteen([&](std::int64_t i,
                            std::int64_t lane) { return load_register(rows + i * kLanes + lane); },
                        panels + column * work.width + c * kLanes, kLanes);
    }
  }
}
inline void store_panels(const float* panels, const AttentionBackwardJob& in,
                         const TileWorkspace& work, float* to, std::int64_t stride) {
  const Span seen = window_span(in.job);
  const std::int64_t head_dim = in.job.layout.head_dim;
  for (std::int64_t column = 0; column < work.columns; column += kLanes) {
    for (std::int64_t c = 0; c < head_dim; c += kLanes) {
      alignas(64) float rows[kLanes * kLanes];
      const float* panel = panels + column * work.width + c * kLanes;
      transpose_sixteen([&](std::int64_t i,
                            std::int64_t lane) { return load_register(panel + i * kLanes + lane); },
                        rows, kLanes);
      for (std::int64_t i = 0; i < kLanes; ++i) {
        const std::int64_t position = work.origin + column + i;
        if (position >= seen.first && position <= seen.last) {
          store_some(to + position * stride + c, load(rows + i * kLanes), head_dim - c);
        }
      }
    }
  }
}
inline void load_gradients(const AttentionBackwardJob& in, const TileWorkspace& work) {
  load_panels(in.dk, in.dk_stride, in, work, work.dk);
  load_panels(in.dv, in.dv_stride, in, work, work.dv);
}
inline void store_gradients(const AttentionBackwardJob& in, const TileWorkspace& work) {
  store_panels(work.dk, in, work, in.dk, in.dk_stride);
  store_panels(work.dv, in, work, in.dv, in.dv_stride);
}

/// Computes to (rows x kBlock) = from (rows x head_dim) transposed (head_dim x columns).
inline void multiply_transposed(const AttentionBackwardJob& in, const TileWorkspace& work,
                                const QueryTile& tile, const Block& block, const Rounded* from,
                                const Pair* transposed, float* to) {
  tile_memory_barrier(from);
  for (std::int64_t column = block.first; column < block.end; column += kStep) {
    const Steps b{transposed + column * work.feature_units, kAmxTileRowBytes,
                  kLanes * work.feature_units * 4, kHalf * kAmxTileRowBytes};
    for (std::int64_t row = first_row<TilePairs>(in, tile, column); row < tile.rows; row += kStep) {
      const SumTiles sums{to + row * kBlock + column - block.first, kBlock, kLanes, kHalf * kBlock};
      clear_sums();
      add_products({from + row * work.width, work.width * 2, kHalf * work.width * 2, kStep * 2}, b,
                   work.width / kStep);
      sums.store<true, true>();
    }
  }
}

/// Computes dq (rows x width) += dscores (rows x columns) keys (columns x width).
inline void add_to_queries(const TileWorkspace& work, const QueryTile& tile, const Block& block) {
  tile_memory_barrier(work.dscores);
  for (std::int64_t row = 0; row < tile.rows; row += kStep) {
    const std::int64_t last = smaller(row + kStep, tile.rows) - 1;
    const std::int64_t seen =
        smaller(block.end, work.rows_of_tile[last].seen.last + 1) - block.first;
    if (seen <= 0) {
      continue;
    }
    for (std::int64_t c = 0; c < work.width; c += kStep) {
      const SumTiles sums{work.dq + row * work.width + c, work.width, kLanes, kHalf * work.width};
      sums.load<true, true>();
      add_products({work.dscores + row * kBlock, kBlock * 2, kHalf * kBlock * 2, kStep * 2},
                   {work.keys + block.first / 2 * work.width + c, work.width * 4, kLanes * 4,
                    kHalf * work.width * 4},
                   (seen + kStep - 1) / kStep);
      sums.store<true, true>();
    }
  }
}

/// Adds coefficient[row][p] * from[row] to the row of position p of `to`, which is kept in panels.
inline void add_to_positions(const AttentionBackwardJob& in, const TileWorkspace& work,
                             const QueryTile& tile, const Block& block, const Rounded* coefficients,
                             const Pair* from, float* to) {
  tile_memory_barrier(coefficients);
  const auto* pairs = reinterpret_cast<const Pair*>(coefficients);
  for (std::int64_t column = block.first; column < block.end; column += kStep) {
    const std::int64_t row = first_row<TilePairs>(in, tile, column);
    if (row >= tile.rows) {
      continue;
    }
    for (std::int64_t c = 0; c < work.width; c += kStep) {
      const SumTiles sums{to + column * work.width + c * kLanes, kLanes, kLanes * work.width,
                          kHalf * kLanes};
      sums.load<true, true>();
      add_products({from + row / 2 * work.width + c * kHalf, kAmxTileRowBytes,
                    kHalf * kAmxTileRowBytes, kHalf * work.width * 4},
                   {pairs + row / 2 * kBlock + column - block.first, kBlock * 4, kLanes * 4,
                    kHalf * kBlock * 4},
                   (tile.rows - row + kStep - 1) / kStep);
      sums.store<true, true>();
    }
  }
}

namespace {

void attention_backward_tiles(const AttentionBackwardJob& in, float* scratch) {
  configure_tiles(2 * kAmxTileRows);
  attention_backward<TilePairs>(in, scratch);
  _tile_release();
}

}  // namespace

void add_amx_attention_backward_kernels(KernelTable& table) noexcept {
  table.attention_backward_scratch_bf16 = attention_backward_scratch<TilePairs>;
  table.attention_backward_bf16 = attention_backward_tiles;
}

}  // namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA
