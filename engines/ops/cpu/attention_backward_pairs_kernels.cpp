// SPDX-License-Identifier: Apache-2.0
// Gradients of attention over one window of a sequence, bfloat16 keys and values.
//
// The formulas of attention_backward_kernels.cpp, with q, dout, P and scale * dS rounded to
// bfloat16 before they are multiplied; D, the exponential and all sums are float32. Sums over
// positions add pairs of positions 2i, 2i + 1, sums over queries pairs of a tile's (token, head)
// rows. A tile's columns are worked on in blocks, which stay near the processor.
#include <cstdint>

#include "engines/ops/cpu/attention_tiles.hpp"
#include "engines/ops/cpu/isa_kernels.hpp"
#include "engines/ops/cpu/kernels.hpp"
#include "engines/ops/cpu/pairs.hpp"
#include "engines/ops/cpu/tile.hpp"
#include "engines/ops/cpu/vec.hpp"

namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA {
namespace {

// Positions of a block.
constexpr std::int64_t kBlock = 64;

// Memory is counted in floats, of which a pair is one, and a rounded element at most one.
struct Workspace {
  std::int64_t width;      // head_dim in whole vectors
  std::int64_t origin;     // the first position seen, rounded down to whole vectors
  std::int64_t columns;    // positions in whole vectors
  std::int64_t key_pairs;  // pairs of features
  std::int64_t rows;       // (token, head) pairs of a tile, an even number
  Pair* keys_across;       // key_pairs x columns
  Pair* values_across;     // key_pairs x columns
  Pair* keys;              // columns / 2 x width
  float* dk;               // columns x width
  float* dv;               // columns x width
  Rounded* q;              // rows x width, and so on
  Rounded* dout;
  float* dq;
  Pair* q_pairs;  // rows / 2 x width
  Pair* dout_pairs;
  float* scores;  // rows x kBlock, and so on
  float* dweights;
  Rounded* dscores;
  Rounded* weight_pairs;  // rows / 2 x kBlock x 2
  Rounded* dscore_pairs;
  QueryRow* rows_of_tile;
  std::int64_t size = 0;

  Workspace(const AttentionBackwardJob& in, float* scratch) {
    width = round_up(in.job.layout.head_dim);
    origin = round_down(visible(in.job.window, in.job.first_position).first);
    columns = round_up(in.job.first_position + in.job.tokens) - origin;
    key_pairs = (in.job.layout.head_dim + 1) / 2;
    rows = (in.tile_tokens * in.job.ratio + 1) / 2 * 2;
    const auto take = [&](std::int64_t floats) {
      float* part = scratch + size;
      size += floats;
      return part;
    };
    const auto take_pairs = [&](std::int64_t pairs) {
      return reinterpret_cast<Pair*>(take(pairs));
    };
    const auto take_rounded = [&](std::int64_t elements) {
      return reinterpret_cast<Rounded*>(take(elements));
    };
    keys_across = take_pairs(key_pairs * columns);
    values_across = take_pairs(key_pairs * columns);
    keys = take_pairs(columns / 2 * width);
    dk = take(columns * width);
    dv = take(columns * width);
    q = take_rounded(rows * width);
    dout = take_rounded(rows * width);
    dq = take(rows * width);
    q_pairs = take_pairs(rows / 2 * width);
    dout_pairs = take_pairs(rows / 2 * width);
    scores = take(rows * kBlock);
    dweights = take(rows * kBlock);
    dscores = take_rounded(rows * kBlock);
    weight_pairs = take_rounded(rows * kBlock);
    dscore_pairs = take_rounded(rows * kBlock);
    rows_of_tile = reinterpret_cast<QueryRow*>(
        take(rows * static_cast<std::int64_t>(sizeof(QueryRow) / sizeof(float))));
  }
};

std::int64_t attention_backward_scratch(const AttentionBackwardJob& in) {
  return Workspace(in, nullptr).size;
}

// The words of a position's values and which half of them is its own.
struct ValueRow {
  const Pair* words = nullptr;
  std::uint32_t shift = 0;
};

ValueRow value_row(const AttentionJob& job, std::int64_t position) {
  const std::int64_t page_tokens = job.layout.page_tokens;
  const std::int64_t page = position / page_tokens;
  const std::int64_t pair = position / 2 - page * page_tokens / 2;
  return {page_head<Pair>(job, page).values + pair * job.layout.head_dim,
          position % 2 == 0 ? 0U : 16U};
}

// Sixteen columns of values across, from `column` on, those seen; features in pairs.
void unpack_values(const AttentionJob& job, const Workspace& work, std::int64_t column, Span seen) {
  const std::int64_t head_dim = job.layout.head_dim;
  ValueRow rows[kLanes];
  for (std::int64_t i = seen.first; i <= seen.last; ++i) {
    rows[i] = value_row(job, work.origin + column + i);
  }
  for (std::int64_t c = 0; c < head_dim; c += 2) {
    Pair* to = work.values_across + c / 2 * work.columns + column;
    for (std::int64_t i = seen.first; i <= seen.last; ++i) {
      const Pair first = rows[i].words[c] >> rows[i].shift & kFirstOfPair;
      const Pair second = c + 1 < head_dim ? rows[i].words[c + 1] >> rows[i].shift : 0U;
      to[i] = first | second << 16U;
    }
  }
}

// The same of keys, which pages keep so.
void unpack_keys(const AttentionJob& job, const Workspace& work, std::int64_t column, Span seen) {
  const std::int64_t page_tokens = job.layout.page_tokens;
  for (std::int64_t i = seen.first; i <= seen.last;) {
    const std::int64_t position = work.origin + column + i;
    const std::int64_t page = position / page_tokens;
    const std::int64_t count = smaller(seen.last + 1 - i, (page + 1) * page_tokens - position);
    const Pair* from = page_head<Pair>(job, page).keys + (position - page * page_tokens);
    for (std::int64_t c = 0; c < work.key_pairs; ++c) {
      Pair* to = work.keys_across + c * work.columns + column + i;
      for (std::int64_t j = 0; j < count; ++j) {
        to[j] = from[c * page_tokens + j];
      }
    }
    i += count;
  }
}

// Makes pairs of positions of sixteen columns of keys across.
void turn_keys(const Workspace& work, std::int64_t column) {
  for (std::int64_t c = 0; c < work.key_pairs; ++c) {
    const Pair* from = work.keys_across + c * work.columns + column;
    for (std::int64_t i = 0; i < kLanes / 2; ++i) {
      Pair* to = work.keys + (column / 2 + i) * work.width + 2 * c;
      const Pair even = from[2 * i];
      const Pair odd = from[2 * i + 1];
      to[0] = (even & kFirstOfPair) | odd << 16U;
      to[1] = even >> 16U | (odd & kSecondOfPair);
    }
  }
}

// Copies the keys seen both ways round, their values across, and their gradients so far; what lies
// beside them is 0.
void unpack(const AttentionBackwardJob& in, const Workspace& work) {
  const AttentionJob& job = in.job;
  fill_zero(reinterpret_cast<float*>(work.keys_across),
            work.columns * (2 * work.key_pairs + work.width / 2 + 2 * work.width));
  const Span seen = window_span(job);
  for (std::int64_t column = 0; column < work.columns; column += kLanes) {
    const Span lanes{larger(0, seen.first - work.origin - column),
                     smaller(kLanes - 1, seen.last - work.origin - column)};
    unpack_values(job, work, column, lanes);
    unpack_keys(job, work, column, lanes);
    turn_keys(work, column);
  }
  load_gradients(in, work.origin, work.width, work.dk, work.dv);
}

// Rounds a tile's rows to `to`, and row pairs of them to `pairs`.
void gather(const AttentionJob& job, const QueryTile& tile, const float* from, std::int64_t stride,
            const Workspace& work, Rounded* to, Pair* pairs) {
  const std::int64_t head_dim = job.layout.head_dim;
  const auto row_at = [&](std::int64_t row) {
    return from + (tile.first_token + row / job.ratio) * stride + row % job.ratio * head_dim;
  };
  for (std::int64_t r = 0; r < tile.rows; r += 2) {
    for (std::int64_t c = 0; c < head_dim; c += kLanes) {
      const Vec first = load_some(row_at(r) + c, head_dim - c);
      const Vec second =
          r + 1 < tile.rows ? load_some(row_at(r + 1) + c, head_dim - c) : broadcast(0.0F);
      store_rounded(to + r * work.width + c, first);
      store_rounded(to + (r + 1) * work.width + c, second);
      store_pairs(pairs + r / 2 * work.width + c, first, second);
    }
  }
}

// The columns [first, end) of a tile, at most kBlock of them.
struct Block {
  std::int64_t first = 0;
  std::int64_t end = 0;
};

// to (rows x kBlock) = from (rows x head_dim) across (head_dim x columns).
void multiply_across(const Workspace& work, const QueryTile& tile, const Block& block,
                     const Rounded* from, const Pair* across, float* to) {
  accumulate_columns<Start::kZero>(PairOperands{.a = from,
                                                .a_row = work.width,
                                                .b = across + block.first,
                                                .b_step = work.columns,
                                                .depth = work.key_pairs},
                                   tile.rows, block.end - block.first, to, kBlock);
}

// Turns scores into weights and their gradients into gradients of scores.
void differentiate_softmax(const AttentionBackwardJob& in, const Workspace& work,
                           const QueryTile& tile, const Block& block) {
  const Vec scale = broadcast(in.job.scale);
  const auto both = [&](std::int64_t r, std::int64_t column) {
    if (r >= tile.rows) {
      return WeightsAndDscores{broadcast(0.0F), broadcast(0.0F)};
    }
    const std::int64_t at = r * kBlock + column;
    return weights_and_dscores(work.rows_of_tile[r], block.first + column,
                               load(work.scores + at) * scale, load(work.dweights + at),
                               in.job.scale);
  };
  for (std::int64_t r = 0; r < tile.rows; r += 2) {
    for (std::int64_t column = 0; column < block.end - block.first; column += kLanes) {
      const WeightsAndDscores first = both(r, column);
      const WeightsAndDscores second = both(r + 1, column);
      store_rounded(work.dscores + r * kBlock + column, first.dscores);
      store_rounded(work.dscores + (r + 1) * kBlock + column, second.dscores);
      const std::int64_t pair = (r / 2 * kBlock + column) * 2;
      store_rounded_pairs(work.dscore_pairs + pair, first.dscores, second.dscores);
      store_rounded_pairs(work.weight_pairs + pair, first.weights, second.weights);
    }
  }
}

// to (columns x width) += rows^T from: position p receives coefficient[row][p] * from[row].
void add_to_positions(const Workspace& work, const QueryTile& tile, const Block& block,
                      const Rounded* coefficients, const Pair* from, float* to) {
  accumulate_columns<Start::kMemory>(PairOperands{.a = coefficients,
                                                  .a_row = 2,
                                                  .a_step = 2 * kBlock,
                                                  .b = from,
                                                  .b_step = work.width,
                                                  .depth = (tile.rows + 1) / 2},
                                     block.end - block.first, work.width,
                                     to + block.first * work.width, work.width);
}

void backward_tile(const AttentionBackwardJob& in, const Workspace& work, const QueryTile& tile) {
  const AttentionJob& job = in.job;
  gather(job, tile, job.q, job.q_stride, work, work.q, work.q_pairs);
  gather(job, tile, in.dout, in.dout_stride, work, work.dout, work.dout_pairs);
  fetch_next_tile(in, tile);
  fill_zero(work.dq, tile.rows * work.width);
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    work.rows_of_tile[r] = query_row(in, tile, r);
  }
  for (std::int64_t column = tile.first_column; column < tile.end_column; column += kBlock) {
    const Block block{column, smaller(column + kBlock, tile.end_column)};
    multiply_across(work, tile, block, work.q, work.keys_across, work.scores);
    multiply_across(work, tile, block, work.dout, work.values_across, work.dweights);
    differentiate_softmax(in, work, tile, block);
    accumulate_columns<Start::kMemory>(PairOperands{.a = work.dscores,
                                                    .a_row = kBlock,
                                                    .b = work.keys + block.first / 2 * work.width,
                                                    .b_step = work.width,
                                                    .depth = (block.end - block.first) / 2},
                                       tile.rows, work.width, work.dq, work.width);
    add_to_positions(work, tile, block, work.dscore_pairs, work.q_pairs, work.dk);
    add_to_positions(work, tile, block, work.weight_pairs, work.dout_pairs, work.dv);
  }
  store_queries(in, tile, 1.0F, work.dq, work.width);
}

void attention_backward(const AttentionBackwardJob& in, float* scratch) {
  const Workspace work(in, scratch);
  unpack(in, work);
  for_each_tile(in, work.origin, [&](const QueryTile& tile) { backward_tile(in, work, tile); });
  store_gradients(in, work.origin, work.width, work.dk, work.dv);
}

}  // namespace

void add_attention_backward_pairs_kernels(KernelTable& table) noexcept {
  table.attention_backward_scratch_bf16 = attention_backward_scratch;
  table.attention_backward_bf16 = attention_backward;
}

}  // namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA
