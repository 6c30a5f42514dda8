// SPDX-License-Identifier: Apache-2.0
// Gradients of attention over one window of a sequence, float32 keys and values.
//
// With P the softmax weights, recomputed from the kept log-sums, and D[row] = dout . out:
//   dP = dout V^T,  dS = P * (dP - D),  dq = scale * dS K,  dK += dS^T (scale * q),  dV += P^T
//   dout,
// over the keys that the window sees.
// Rows are worked on in tiles of a few tokens, from the first to the last, so that a tile needs
// memory for its own rows alone and keys receive their queries in position order. Columns of keys
// and scores are positions from `origin` on.
#include <cstdint>

#include "engines/ops/cpu/attention_tiles.hpp"
#include "engines/ops/cpu/isa_kernels.hpp"
#include "engines/ops/cpu/kernels.hpp"
#include "engines/ops/cpu/tile.hpp"
#include "engines/ops/cpu/vec.hpp"

namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA {
namespace {

struct Workspace {
  std::int64_t width;    // head_dim in whole vectors
  std::int64_t origin;   // the first position seen, rounded down to whole vectors
  std::int64_t columns;  // positions in whole vectors
  std::int64_t rows;     // (token, head) pairs of a tile
  float* keys;           // columns x width
  float* keys_across;    // width x columns
  float* values_across;  // width x columns
  float* dk;             // columns x width
  float* dv;             // columns x width
  float* q;              // rows x width, and so on
  float* dout;
  float* dq;
  float* weights;  // rows x columns
  float* dscores;

  Workspace(const AttentionBackwardJob& in, float* scratch) {
    width = round_up(in.job.layout.head_dim);
    origin = round_down(visible(in.job.window, in.job.first_position).first);
    columns = round_up(in.job.first_position + in.job.tokens) - origin;
    rows = in.tile_tokens * in.job.ratio;
    keys = scratch;
    keys_across = keys + columns * width;
    values_across = keys_across + columns * width;
    dk = values_across + columns * width;
    dv = dk + columns * width;
    q = dv + columns * width;
    dout = q + rows * width;
    dq = dout + rows * width;
    weights = dq + rows * width;
    dscores = weights + rows * columns;
  }
  [[nodiscard]] std::int64_t size() const {
    return 5 * columns * width + rows * (3 * width + 2 * columns);
  }
};

std::int64_t attention_backward_scratch(const AttentionBackwardJob& in) {
  return Workspace(in, nullptr).size();
}

// Copies the keys seen both ways round, their values across, and their gradients so far; what lies
// beside them is 0.
void unpack(const AttentionBackwardJob& in, const Workspace& work) {
  const AttentionJob& job = in.job;
  fill_zero(work.keys, 5 * work.columns * work.width);
  const std::int64_t page_tokens = job.layout.page_tokens;
  const std::int64_t head_dim = job.layout.head_dim;
  const Span seen = window_span(job);
  for (std::int64_t position = seen.first; position <= seen.last; ++position) {
    const PageHead<float> page = page_head<float>(job, position / page_tokens);
    const std::int64_t place = position % page_tokens;
    const std::int64_t column = position - work.origin;
    for (std::int64_t c = 0; c < head_dim; ++c) {
      const float key = page.keys[c * page_tokens + place];
      work.keys[column * work.width + c] = key;
      work.keys_across[c * work.columns + column] = key;
      work.values_across[c * work.columns + column] = page.values[place * head_dim + c];
    }
  }
  load_gradients(in, work.origin, work.width, work.dk, work.dv);
}

// to (rows x columns) = from (rows x head_dim) across (head_dim x columns).
void multiply_across(const Workspace& work, const QueryTile& tile, std::int64_t head_dim,
                     const float* from, const float* across, float* to) {
  accumulate_columns<Start::kZero>(TileOperands{.a = from,
                                                .a_row = work.width,
                                                .a_step = 1,
                                                .b = across + tile.first_column,
                                                .b_step = work.columns,
                                                .depth = head_dim},
                                   tile.rows, tile.end_column - tile.first_column,
                                   to + tile.first_column, work.columns);
}

// Turns scores into weights and their gradients into gradients of scores.
void differentiate_softmax(const AttentionBackwardJob& in, const Workspace& work,
                           const QueryTile& tile) {
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    const QueryRow row = query_row(in, tile, r);
    for (std::int64_t column = tile.first_column; column < tile.end_column; column += kLanes) {
      float* weight_at = work.weights + r * work.columns + column;
      float* dscore_at = work.dscores + r * work.columns + column;
      const WeightsAndDscores both =
          weights_and_dscores(row, column, load(weight_at), load(dscore_at), 1.0F);
      store(weight_at, both.weights);
      store(dscore_at, both.dscores);
    }
  }
}

// to (columns x width) += rows^T from: position p receives coefficient[row][p] * from[row].
void add_to_positions(const Workspace& work, const QueryTile& tile, const float* coefficients,
                      const float* from, float* to) {
  accumulate_columns<Start::kMemory>(TileOperands{.a = coefficients + tile.first_column,
                                                  .a_row = 1,
                                                  .a_step = work.columns,
                                                  .b = from,
                                                  .b_step = work.width,
                                                  .depth = tile.rows},
                                     tile.end_column - tile.first_column, work.width,
                                     to + tile.first_column * work.width, work.width);
}

// Copies a tile's rows, times `factor`, to rows of `width`.
void gather(const AttentionJob& job, const QueryTile& tile, const float* from, std::int64_t stride,
            float factor, const Workspace& work, float* to) {
  const Vec scale = broadcast(factor);
  for_each_head(from + tile.first_token * stride, stride, tile.tokens, job.ratio,
                job.layout.head_dim, [&](std::int64_t row, std::int64_t c, const Vec& value) {
                  store(to + row * work.width + c, value * scale);
                });
}

void backward_tile(const AttentionBackwardJob& in, const Workspace& work, const QueryTile& tile) {
  const AttentionJob& job = in.job;
  const std::int64_t head_dim = job.layout.head_dim;
  gather(job, tile, job.q, job.q_stride, job.scale, work, work.q);
  gather(job, tile, in.dout, in.dout_stride, 1.0F, work, work.dout);
  fetch_next_tile(in, tile);
  multiply_across(work, tile, head_dim, work.q, work.keys_across, work.weights);
  multiply_across(work, tile, head_dim, work.dout, work.values_across, work.dscores);
  differentiate_softmax(in, work, tile);
  accumulate_columns<Start::kZero>(TileOperands{.a = work.dscores + tile.first_column,
                                                .a_row = work.columns,
                                                .a_step = 1,
                                                .b = work.keys + tile.first_column * work.width,
                                                .b_step = work.width,
                                                .depth = tile.end_column - tile.first_column},
                                   tile.rows, work.width, work.dq, work.width);
  store_queries(in, tile, job.scale, work.dq, work.width);
  add_to_positions(work, tile, work.dscores, work.q, work.dk);
  add_to_positions(work, tile, work.weights, work.dout, work.dv);
}

void attention_backward(const AttentionBackwardJob& in, float* scratch) {
  const Workspace work(in, scratch);
  unpack(in, work);
  for_each_tile(in, work.origin, [&](const QueryTile& tile) { backward_tile(in, work, tile); });
  store_gradients(in, work.origin, work.width, work.dk, work.dv);
}

}  // namespace

void add_attention_backward_kernels(KernelTable& table) noexcept {
  table.attention_backward_scratch_f32 = attention_backward_scratch;
  table.attention_backward_f32 = attention_backward;
}

}  // namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA
