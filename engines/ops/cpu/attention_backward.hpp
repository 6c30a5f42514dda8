// SPDX-License-Identifier: Apache-2.0
// Gradients of attention for the consecutive tokens of a training window of one sequence.
//
// With the softmax weights P, recomputed from the stored lse, and D[row] = dout . out:
//   dP = dout V^T,  dS = P * (dP - D),  dq = scale * dS K,  dK += scale * dS^T q,
//   dV += P^T dout,
// over the keys that each query sees. With bfloat16 keys and values, q, dout, P and scale * dS are
// rounded to bfloat16 before they are multiplied; D, the exponential and all sums are float32. Sums
// over positions then add pairs of positions 2i, 2i + 1, and sums over queries add pairs of the
// (token, head) rows of a tile.
//
// Tiles of a few tokens are processed from the first to the last, so that keys receive the
// contributions of queries in position order. The columns of a tile are processed in blocks, which
// stay in a near cache. Columns of keys and scores are positions from `origin` on. If the
// queries of a tile are among its own keys, the products skip columns that none of their rows sees.
#pragma once

#include <cstdint>

#include "engines/ops/cpu/attention_backward_rows.hpp"
#include "engines/ops/cpu/attention_tiles.hpp"
#include "engines/ops/cpu/kernels.hpp"
#include "engines/ops/cpu/tile.hpp"
#include "engines/ops/cpu/vec.hpp"

namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA {

template <class Kind>
std::int64_t attention_backward_scratch(const AttentionBackwardJob& in) {
  return BackwardWorkspace<Kind>(in, nullptr).size;
}

// A range of columns [first, end) of a tile, at most kBlock of them.
struct Block {
  std::int64_t first = 0;
  std::int64_t end = 0;
};

// Returns the first row of the tile that sees column `column` or a later one, rounded down to whole
// steps.
template <class Kind>
std::int64_t first_row(const AttentionBackwardJob& in, const QueryTile& tile, std::int64_t column) {
  const std::int64_t token = tile.origin + column - (in.job.first_position + tile.first_token);
  return larger(0, token) * in.job.ratio / Kind::kRowStep * Kind::kRowStep;
}

// Computes to (rows x kBlock) = from (rows x head_dim) transposed (head_dim x columns).
template <class Kind>
void multiply_transposed(const AttentionBackwardJob& in, const BackwardWorkspace<Kind>& work,
                         const QueryTile& tile, const Block& block, const typename Kind::Left* from,
                         const typename Kind::Unit* transposed, float* to) {
  const auto multiply = [&]<int kWidth>(std::int64_t column) {
    const std::int64_t row = first_row<Kind>(in, tile, column);
    if (row >= tile.rows) {
      return;
    }
    accumulate_rows<Start::kZero, kWidth>(
        typename Kind::Operands{.a = from + row * work.width,
                                .a_row = work.width,
                                .a_step = Kind::kUnitElements,
                                .b = transposed + column * work.feature_units,
                                .b_step = kLanes,
                                .panel_step = kLanes * work.feature_units,
                                .depth = work.depth},
        tile.rows - row, to + row * kBlock + column - block.first, kBlock);
  };
  std::int64_t column = block.first;
  for (; column + kTileWidth * kLanes <= block.end; column += kTileWidth * kLanes) {
    multiply.template operator()<kTileWidth>(column);
  }
  for (; column < block.end; column += kLanes) {
    multiply.template operator()<1>(column);
  }
}

// Turns scores into weights, and gradients of weights into gradients of scores.
template <class Kind>
void differentiate_softmax(const AttentionBackwardJob& in, const BackwardWorkspace<Kind>& work,
                           const QueryTile& tile, const Block& block) {
  const Vec score_factor = broadcast(Kind::score_factor(in.job.scale));
  const Vec dscore_factor = broadcast(Kind::dscore_factor(in.job.scale));
  const auto both = [&](std::int64_t r, std::int64_t column) {
    const std::int64_t at = r * kBlock + column;
    return weights_and_dscores(work.rows_of_tile[r], block.first + column,
                               load(work.scores + at) * score_factor, load(work.dweights + at),
                               dscore_factor);
  };
  const std::int64_t columns = block.end - block.first;
  const std::int64_t rows = round_up(tile.rows, Kind::kRowStep);
  for (std::int64_t r = 0; r < rows; r += Kind::kUnitElements) {
    if (block.first == tile.first_column) {
      for (std::int64_t i = r; i < smaller(r + Kind::kUnitElements, tile.rows); ++i) {
        prefetch_next_row(in, tile, i);
      }
    }
    for (std::int64_t column = 0; column < columns; column += kLanes) {
      WeightsAndDscores unit[Kind::kUnitElements];
#pragma GCC unroll 2
      for (std::int64_t i = 0; i < Kind::kUnitElements; ++i) {
        unit[i] = r + i < tile.rows ? both(r + i, column)
                                    : WeightsAndDscores{broadcast(0.0F), broadcast(0.0F)};
      }
      work.keep(r, column, unit);
    }
  }
}

// Computes dq (rows x width) += dscores (rows x columns) keys (columns x width).
template <class Kind>
void add_to_queries(const BackwardWorkspace<Kind>& work, const QueryTile& tile,
                    const Block& block) {
  for (std::int64_t row = 0; row < tile.rows;) {
    const std::int64_t count = next_rows(tile.rows - row);
    const std::int64_t seen =
        smaller(block.end, work.rows_of_tile[row + count - 1].seen.last + 1) - block.first;
    if (seen > 0) {
      accumulate_columns<Start::kMemory>(
          typename Kind::Operands{.a = work.dscores + row * kBlock,
                                  .a_row = kBlock,
                                  .a_step = Kind::kUnitElements,
                                  .b = work.keys + block.first / Kind::kUnitElements * work.width,
                                  .b_step = work.width,
                                  .depth = (seen + Kind::kUnitElements - 1) / Kind::kUnitElements},
          count, work.width, work.dq + row * work.width, work.width);
    }
    row += count;
  }
}

// Adds coefficient[row][p] * from[row] to the row of position p of `to` (columns x width).
template <class Kind>
void add_to_positions(const AttentionBackwardJob& in, const BackwardWorkspace<Kind>& work,
                      const QueryTile& tile, const Block& block,
                      const typename Kind::Left* coefficients, const typename Kind::Unit* from,
                      float* to) {
  constexpr std::int64_t kUnit = Kind::kUnitElements;
  for (std::int64_t column = block.first; column < block.end;) {
    const std::int64_t count = next_rows(block.end - column);
    const std::int64_t row = first_row<Kind>(in, tile, column);
    if (row < tile.rows) {
      accumulate_columns<Start::kMemory>(
          typename Kind::Operands{.a = coefficients + row * kBlock + (column - block.first) * kUnit,
                                  .a_row = kUnit,
                                  .a_step = kUnit * kBlock,
                                  .b = from + row / kUnit * work.width,
                                  .b_step = work.width,
                                  .depth = (tile.rows - row + kUnit - 1) / kUnit},
          count, work.width, to + column * work.width, work.width);
    }
    column += count;
  }
}

template <class Kind>
void backward_tile(const AttentionBackwardJob& in, const BackwardWorkspace<Kind>& work,
                   const QueryTile& tile) {
  const AttentionJob& job = in.job;
  gather(job, tile, job.q, job.q_stride, Kind::query_factor(job.scale), work, work.q,
         work.query_units);
  gather(job, tile, in.dout, in.dout_stride, 1.0F, work, work.dout, work.dout_units);
  fill_zero(work.dq, tile.rows * work.width);
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    work.rows_of_tile[r] = query_row(in, tile, r);
  }
  for (std::int64_t column = tile.first_column; column < tile.end_column; column += kBlock) {
    const Block block{column, smaller(column + kBlock, tile.end_column)};
    multiply_transposed(in, work, tile, block, work.q, work.transposed_keys, work.scores);
    multiply_transposed(in, work, tile, block, work.dout, work.transposed_values, work.dweights);
    differentiate_softmax(in, work, tile, block);
    add_to_queries(work, tile, block);
    add_to_positions(in, work, tile, block, work.dscore_columns, work.query_units, work.dk);
    add_to_positions(in, work, tile, block, work.weight_columns, work.dout_units, work.dv);
  }
  store_queries(in, tile, Kind::dquery_factor(job.scale), work.dq, work.width);
}

template <class Kind>
void attention_backward(const AttentionBackwardJob& in, float* scratch) {
  const BackwardWorkspace<Kind> work(in, scratch);
  unpack(in, work);
  for_each_tile(in, work.origin, Kind::kColumnStep,
                [&](const QueryTile& tile) { backward_tile(in, work, tile); });
  store_gradients(in, work);
}

}  // namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA
