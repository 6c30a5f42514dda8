// SPDX-License-Identifier: Apache-2.0
// Functions that the forward and backward attention kernels share: addresses of keys and values,
// the positions that a query sees, and the tiles of the backward pass.
#pragma once

#include <cstdint>

#include "engines/ops/cpu/kernels.hpp"
#include "engines/ops/cpu/tile.hpp"
#include "engines/ops/cpu/vec.hpp"
#include "engines/ops/cpu/vec_math.hpp"

namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA {

inline std::int64_t round_down(std::int64_t x) {
  return x / kLanes * kLanes;
}
inline std::int64_t round_up(std::int64_t x, std::int64_t step = kLanes) {
  return (x + step - 1) / step * step;
}
inline std::int64_t smaller(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}
inline std::int64_t larger(std::int64_t a, std::int64_t b) {
  return a > b ? a : b;
}

/// A range of positions [first, last].
struct Span {
  std::int64_t first = 0;
  std::int64_t last = 0;
};

/// Returns the positions that a query at `position` sees.
inline Span visible(std::int64_t window, std::int64_t position) {
  return {window == 0 ? 0 : larger(0, position - window + 1), position};
}

/// Points to the keys and values of one kv head in a page, in units (see `PageLayout`): floats or
/// pairs.
template <class Unit>
struct PageHead {
  const Unit* keys = nullptr;
  const Unit* values = nullptr;
};

template <class Unit>
inline PageHead<Unit> page_head(const AttentionJob& job, std::int64_t page) {
  const std::byte* start = job.cache + job.pages[page] * job.layout.page_bytes;
  const Unit* keys = reinterpret_cast<const Unit*>(start) + job.kv_head * job.layout.head_units();
  return {keys, keys + job.layout.key_units()};
}

inline void fill_zero(float* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    to[i] = 0.0F;
  }
}

/// Prefetches `floats` floats of each row to the second-level cache. Rows are too far apart for the
/// hardware prefetcher.
inline void prefetch_rows(const float* from, std::int64_t stride, std::int64_t rows,
                          std::int64_t floats) {
  for (std::int64_t t = 0; t < rows; ++t) {
    for (std::int64_t c = 0; c < floats; c += kLanes) {
      __builtin_prefetch(from + t * stride + c, 0, 2);
    }
  }
}

/// Calls f(row, c, value) for each group of sixteen elements of the rows (token, head) of a (T,
/// heads * head_dim) matrix. `value` starts at column c of the head; lanes past the head are 0.
template <class F>
inline void for_each_head(const float* from, std::int64_t stride, std::int64_t tokens,
                          std::int64_t ratio, std::int64_t head_dim, F f) {
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t h = 0; h < ratio; ++h) {
      for (std::int64_t c = 0; c < head_dim; c += kLanes) {
        f(t * ratio + h, c, load_some(from + t * stride + h * head_dim + c, head_dim - c));
      }
    }
  }
}

/// Returns the positions that a window of queries sees.
inline Span window_span(const AttentionJob& job) {
  return {visible(job.window, job.first_position).first, job.first_position + job.tokens - 1};
}

/// Describes a tile of a window's queries in the backward pass.
struct QueryTile {
  std::int64_t first_token = 0;
  std::int64_t tokens = 0;
  std::int64_t rows = 0;  // (token, head) pairs
  /// Columns that at least one row sees, rounded to whole steps. Column 0 is position `origin`.
  std::int64_t first_column = 0;
  std::int64_t end_column = 0;
  std::int64_t origin = 0;
};

/// Calls f with every tile of the window, from the first to the last. Their columns are multiples
/// of `column_step`, which is a multiple of 16.
template <class F>
inline void for_each_tile(const AttentionBackwardJob& in, std::int64_t origin,
                          std::int64_t column_step, F f) {
  const AttentionJob& job = in.job;
  for (std::int64_t first = 0; first < job.tokens; first += in.tile_tokens) {
    QueryTile tile;
    tile.first_token = first;
    tile.tokens = smaller(in.tile_tokens, job.tokens - first);
    tile.rows = tile.tokens * job.ratio;
    const std::int64_t position = job.first_position + first;
    const std::int64_t first_seen = visible(job.window, position).first;
    tile.first_column = (first_seen - origin) / column_step * column_step;
    tile.end_column = round_up(position + tile.tokens - origin, column_step);
    tile.origin = origin;
    f(tile);
  }
}

/// Prefetches row `row` of the tile after `tile`, and the destination of the gradient of row `row`
/// of `tile`. The caller prefetches one row at a time between other work, since memory accepts few
/// requests at once.
inline void prefetch_next_row(const AttentionBackwardJob& in, const QueryTile& tile,
                              std::int64_t row) {
  const std::int64_t head_dim = in.job.layout.head_dim;
  const std::int64_t token = tile.first_token + row / in.job.ratio;
  const std::int64_t column = row % in.job.ratio * head_dim;
  const std::int64_t next = token + in.tile_tokens;
  for (std::int64_t c = column; c < column + head_dim; c += kLanes) {
    __builtin_prefetch(in.dq + token * in.dq_stride + c, 1, 2);
  }
  if (next < in.job.tokens) {
    prefetch_rows(in.job.q + next * in.job.q_stride + column, 0, 1, head_dim);
    prefetch_rows(in.dout + next * in.dout_stride + column, 0, 1, head_dim);
    prefetch_rows(in.out + next * in.out_stride + column, 0, 1, head_dim);
  }
}

/// The values with which the scores of one query are turned into gradients of scores.
struct QueryRow {
  float lse = 0.0F;
  float mean = 0.0F;  // dout . out: the mean of the gradients of its weights, by weight
  Span seen;          // columns
};

inline QueryRow query_row(const AttentionBackwardJob& in, const QueryTile& tile, std::int64_t row) {
  const AttentionJob& job = in.job;
  const std::int64_t token = tile.first_token + row / job.ratio;
  const std::int64_t head = row % job.ratio;
  const std::int64_t head_dim = job.layout.head_dim;
  const float* out = in.out + token * in.out_stride + head * head_dim;
  const float* dout = in.dout + token * in.dout_stride + head * head_dim;
  Vec products = broadcast(0.0F);
  for (std::int64_t c = 0; c < head_dim; c += kLanes) {
    products =
        multiply_add(load_some(dout + c, head_dim - c), load_some(out + c, head_dim - c), products);
  }
  const Span seen = visible(job.window, job.first_position + token);
  return {in.lse[token * in.lse_stride + head],
          sum_lanes(products),
          {seen.first - tile.origin, seen.last - tile.origin}};
}

/// Holds the weights of sixteen keys and the gradients of their scores.
struct WeightsAndDscores {
  Vec weights;
  Vec dscores;
};

/// Computes the weights and the gradients of scores, multiplied by `factor`, of sixteen columns
/// from `column` on. Both are 0 for positions that the row does not see.
inline WeightsAndDscores weights_and_dscores(const QueryRow& row, std::int64_t column,
                                             const Vec& scores, const Vec& dweights,
                                             const Vec& factor) {
  const Vec zero = broadcast(0.0F);
  if (column > row.seen.last) {
    return {zero, zero};
  }
  WeightsAndDscores out;
  out.weights = bounded_exponential(scores - broadcast(row.lse));
  out.dscores = out.weights * (dweights - broadcast(row.mean)) * factor;
  if (column < row.seen.first || column + kLanes - 1 > row.seen.last) {
    const Mask mask = lanes_between(row.seen.first - column, row.seen.last - column);
    out.weights = select(mask, out.weights, zero);
    out.dscores = select(mask, out.dscores, zero);
  }
  return out;
}

/// Prefetches the gradients of a position ahead of `position` for writing.
inline void prefetch_gradients(const AttentionBackwardJob& in, std::int64_t position,
                               std::int64_t last) {
  constexpr std::int64_t kAhead = 16;
  if (position + kAhead <= last) {
    for (std::int64_t c = 0; c < in.job.layout.head_dim; c += kLanes) {
      __builtin_prefetch(in.dk + (position + kAhead) * in.dk_stride + c, 1, 2);
      __builtin_prefetch(in.dv + (position + kAhead) * in.dv_stride + c, 1, 2);
    }
  }
}

/// Stores the rows of dq of a tile, multiplied by `factor`. Rows of `from` are `from_row` floats
/// apart.
inline void store_queries(const AttentionBackwardJob& in, const QueryTile& tile, float factor,
                          const float* from, std::int64_t from_row) {
  const AttentionJob& job = in.job;
  const Vec scale = broadcast(factor);
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    const std::int64_t token = tile.first_token + r / job.ratio;
    float* to = in.dq + token * in.dq_stride + r % job.ratio * job.layout.head_dim;
    for (std::int64_t c = 0; c < job.layout.head_dim; c += kLanes) {
      store_some(to + c, load(from + r * from_row + c) * scale, job.layout.head_dim - c);
    }
  }
}

}  // namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA
