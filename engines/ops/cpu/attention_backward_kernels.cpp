// SPDX-License-Identifier: Apache-2.0
// Gradients of attention over one whole sequence.
//
// With P the softmax weights, recomputed from the kept log-sums, and D[row] = dout . out:
//   dP = dout V^T,  dS = P * (dP - D),  dq = scale * dS K,  dK += dS^T (scale * q),  dV += P^T
//   dout.
// Rows are worked on in tiles of a few tokens, from the first to the last, so that a tile needs
// memory for its own rows alone and keys receive their queries in position order.
#include <cstdint>

#include "engines/ops/cpu/attention_tiles.hpp"
#include "engines/ops/cpu/isa_kernels.hpp"
#include "engines/ops/cpu/kernels.hpp"
#include "engines/ops/cpu/tile.hpp"
#include "engines/ops/cpu/vec.hpp"
#include "engines/ops/cpu/vec_math.hpp"

namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA {
namespace {

struct Workspace {
  std::int64_t width;    // head_dim in whole vectors
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
    columns = round_up(in.job.tokens);
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

float widened(float x) {
  return x;
}
float widened(std::uint16_t x) {
  return __builtin_bit_cast(float, std::uint32_t{x} << 16U);
}

// Copies the sequence's keys both ways round and its values across; what lies past them is 0.
template <class Element>
void unpack(const AttentionJob& job, const Workspace& work) {
  fill_zero(work.keys, 5 * work.columns * work.width);
  const std::int64_t page_tokens = job.layout.page_tokens;
  const std::int64_t head_dim = job.layout.head_dim;
  for (std::int64_t position = 0; position < job.tokens; ++position) {
    const PageHead<Element> page = page_head<Element>(job, position / page_tokens);
    const std::int64_t place = position % page_tokens;
    for (std::int64_t c = 0; c < head_dim; ++c) {
      const float key = widened(page.keys[c * page_tokens + place]);
      work.keys[position * work.width + c] = key;
      work.keys_across[c * work.columns + position] = key;
      work.values_across[c * work.columns + position] = widened(page.values[place * head_dim + c]);
    }
  }
}

// One tile of queries.
struct Tile {
  std::int64_t first_token = 0;
  std::int64_t tokens = 0;
  std::int64_t rows = 0;
  // Columns that some row sees, in whole vectors.
  std::int64_t first_column = 0;
  std::int64_t end_column = 0;
};

// to (rows x columns) = from (rows x head_dim) across (head_dim x columns).
void multiply_across(const Workspace& work, const Tile& tile, std::int64_t head_dim,
                     const float* from, const float* across, float* to) {
  accumulate_columns<Start::kZero>(TileOperands<float>{.a = from,
                                                       .a_row = work.width,
                                                       .a_step = 1,
                                                       .b = across + tile.first_column,
                                                       .b_step = work.columns,
                                                       .depth = head_dim},
                                   tile.rows, tile.end_column - tile.first_column,
                                   to + tile.first_column, work.columns);
}

// Turns scores into weights and their gradients into gradients of scores.
void weights_and_dscores(const AttentionBackwardJob& in, const Workspace& work, const Tile& tile) {
  const AttentionJob& job = in.job;
  const Vec zero = broadcast(0.0F);
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    const std::int64_t token = tile.first_token + r / job.ratio;
    const std::int64_t head = r % job.ratio;
    const float* out = in.out + token * in.out_stride + head * job.layout.head_dim;
    Vec products = zero;
    for (std::int64_t c = 0; c < job.layout.head_dim; c += kLanes) {
      products = multiply_add(load(work.dout + r * work.width + c),
                              load_some(out + c, job.layout.head_dim - c), products);
    }
    const Vec mean = broadcast(sum_lanes(products));
    const Vec lse = broadcast(in.lse[token * in.lse_stride + head]);
    const Span seen = visible(job.window, token);
    for (std::int64_t column = tile.first_column; column < tile.end_column; column += kLanes) {
      float* weight_at = work.weights + r * work.columns + column;
      float* dscore_at = work.dscores + r * work.columns + column;
      Vec weight = exponential(load(weight_at) - lse);
      Vec dscore = weight * (load(dscore_at) - mean);
      if (column < seen.first || column + kLanes - 1 > seen.last) {
        const Mask mask = lanes_between(seen.first - column, seen.last - column);
        weight = select(mask, weight, zero);
        dscore = select(mask, dscore, zero);
      }
      store(weight_at, weight);
      store(dscore_at, dscore);
    }
  }
}

// to (columns x width) += rows^T from: position p receives coefficient[row][p] * from[row].
void add_to_positions(const Workspace& work, const Tile& tile, const float* coefficients,
                      const float* from, float* to) {
  accumulate_columns<Start::kMemory>(TileOperands<float>{.a = coefficients + tile.first_column,
                                                         .a_row = 1,
                                                         .a_step = work.columns,
                                                         .b = from,
                                                         .b_step = work.width,
                                                         .depth = tile.rows},
                                     tile.end_column - tile.first_column, work.width,
                                     to + tile.first_column * work.width, work.width);
}

void store_queries(const AttentionBackwardJob& in, const Workspace& work, const Tile& tile) {
  const AttentionJob& job = in.job;
  const Vec scale = broadcast(job.scale);
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    const std::int64_t token = tile.first_token + r / job.ratio;
    float* to = in.dq + token * in.dq_stride + r % job.ratio * job.layout.head_dim;
    for (std::int64_t c = 0; c < job.layout.head_dim; c += kLanes) {
      store_some(to + c, load(work.dq + r * work.width + c) * scale, job.layout.head_dim - c);
    }
  }
}

void backward_tile(const AttentionBackwardJob& in, const Workspace& work, const Tile& tile) {
  const AttentionJob& job = in.job;
  const std::int64_t head_dim = job.layout.head_dim;
  gather_heads(job.q + tile.first_token * job.q_stride, job.q_stride, tile.tokens, job.ratio,
               head_dim, job.scale, work.q, work.width);
  gather_heads(in.dout + tile.first_token * in.dout_stride, in.dout_stride, tile.tokens, job.ratio,
               head_dim, 1.0F, work.dout, work.width);
  multiply_across(work, tile, head_dim, work.q, work.keys_across, work.weights);
  multiply_across(work, tile, head_dim, work.dout, work.values_across, work.dscores);
  weights_and_dscores(in, work, tile);
  accumulate_columns<Start::kZero>(
      TileOperands<float>{.a = work.dscores + tile.first_column,
                          .a_row = work.columns,
                          .a_step = 1,
                          .b = work.keys + tile.first_column * work.width,
                          .b_step = work.width,
                          .depth = tile.end_column - tile.first_column},
      tile.rows, work.width, work.dq, work.width);
  store_queries(in, work, tile);
  add_to_positions(work, tile, work.dscores, work.q, work.dk);
  add_to_positions(work, tile, work.weights, work.dout, work.dv);
}

template <class Element>
void attention_backward(const AttentionBackwardJob& in, float* scratch) {
  const AttentionJob& job = in.job;
  const Workspace work(in, scratch);
  unpack<Element>(job, work);
  for (std::int64_t first = 0; first < job.tokens; first += in.tile_tokens) {
    Tile tile;
    tile.first_token = first;
    tile.tokens = smaller(in.tile_tokens, job.tokens - first);
    tile.rows = tile.tokens * job.ratio;
    tile.first_column = round_down(visible(job.window, first).first);
    tile.end_column = round_up(first + tile.tokens);
    backward_tile(in, work, tile);
  }
  for (std::int64_t position = 0; position < job.tokens; ++position) {
    for (std::int64_t c = 0; c < job.layout.head_dim; c += kLanes) {
      const std::int64_t count = job.layout.head_dim - c;
      store_some(in.dk + position * in.dk_stride + c, load(work.dk + position * work.width + c),
                 count);
      store_some(in.dv + position * in.dv_stride + c, load(work.dv + position * work.width + c),
                 count);
    }
  }
}

}  // namespace

void add_attention_backward_kernels(KernelTable& table) noexcept {
  table.attention_backward_scratch = attention_backward_scratch;
  table.attention_backward_f32 = attention_backward<float>;
  table.attention_backward_bf16 = attention_backward<std::uint16_t>;
}

}  // namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA
