// SPDX-License-Identifier: Apache-2.0
// Prepares the operands of attention's backward pass in scratch memory: keys and values by column,
// and the queries and output gradients of a tile by row.
#pragma once

#include <cstdint>
#include <cstring>

#include "engines/ops/cpu/attention_kinds.hpp"
#include "engines/ops/cpu/attention_tiles.hpp"
#include "engines/ops/cpu/kernels.hpp"
#include "engines/ops/cpu/transpose.hpp"
#include "engines/ops/cpu/vec.hpp"

namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA {

/// The maximum number of columns that a tile processes together. A column is a position.
inline constexpr std::int64_t kBlock = 96;

/// Divides a job's scratch memory into its operands. All views are borrowed from that memory.
///
/// With a float32 cache, a `Unit` is a float. With a bfloat16 cache, it is a pair of neighboring
/// features, positions or rows. Memory is counted in floats: a pair takes one float, a rounded
/// element at most one.
///
/// Transposed right operands are stored in panels of sixteen columns, units of features x 16 each.
/// Left operands of sums over rows are stored in units of rows: rows / unit x kBlock x unit. With a
/// float32 cache, `query_units`, `dout_units`, `dscores`, `weight_columns` and `dscore_columns`
/// share the memory of other members.
template <class Kind>
struct BackwardWorkspace {
  using Left = typename Kind::Left;
  using Unit = typename Kind::Unit;

  std::int64_t width;          // head_dim, rounded up to whole steps
  std::int64_t depth;          // head_dim in units
  std::int64_t feature_units;  // width in units
  std::int64_t origin;         // the first visible position, rounded down to whole vectors
  std::int64_t columns;        // positions from `origin` on, rounded up to whole steps
  Unit* transposed_keys;       // columns / 16 x feature_units x 16
  Unit* transposed_values;
  Unit* keys;  // columns / unit x width
  float* dk;   // columns x width
  float* dv;
  Left* q;               // rows x width
  Left* dout;            // likewise
  float* dq;             // likewise
  Unit* query_units;     // rows / unit x width
  Unit* dout_units;      // likewise
  float* scores;         // rows x kBlock
  float* dweights;       // likewise
  Left* dscores;         // likewise
  Left* weight_columns;  // rows / unit x kBlock x unit
  Left* dscore_columns;  // likewise
  QueryRow* rows_of_tile;
  std::int64_t size = 0;  // floats

  /// Lays out the memory at `scratch`. If `scratch` is null, only `size` may be used.
  BackwardWorkspace(const AttentionBackwardJob& in, float* scratch) {
    constexpr std::int64_t kUnit = Kind::kUnitElements;
    width = round_up(in.job.layout.head_dim, Kind::kColumnStep);
    depth = (in.job.layout.head_dim + kUnit - 1) / kUnit;
    feature_units = width / kUnit;
    origin = round_down(visible(in.job.window, in.job.first_position).first);
    columns = round_up(in.job.first_position + in.job.tokens - origin, Kind::kColumnStep);
    const std::int64_t rows = round_up(in.tile_tokens * in.job.ratio, Kind::kRowStep);
    const auto take = [&]<class T>(T*& part, std::int64_t count) {
      part = scratch != nullptr ? reinterpret_cast<T*>(scratch + size) : nullptr;
      size += count;
    };
    take(transposed_keys, columns * feature_units);
    take(transposed_values, columns * feature_units);
    take(keys, columns / kUnit * width);
    take(dk, columns * width);
    take(dv, columns * width);
    take(q, rows * width);
    take(dout, rows * width);
    take(dq, rows * width);
    take(scores, rows * kBlock);
    take(dweights, rows * kBlock);
    if constexpr (kUnit == 1) {
      query_units = q;
      dout_units = dout;
      dscores = dweights;
      weight_columns = scores;
      dscore_columns = dweights;
    } else {
      take(query_units, rows / kUnit * width);
      take(dout_units, rows / kUnit * width);
      take(dscores, rows * kBlock);
      take(weight_columns, rows * kBlock);
      take(dscore_columns, rows * kBlock);
    }
    take(rows_of_tile, rows * static_cast<std::int64_t>(sizeof(QueryRow) / sizeof(float)));
  }

  /// Stores the weights and the gradients of scores of one unit of rows, which starts at row `r`,
  /// in sixteen columns of the block, which start at `column`.
  void keep(std::int64_t r, std::int64_t column,
            const WeightsAndDscores (&unit)[Kind::kUnitElements]) const {
    const std::int64_t at = r * kBlock + column;
    if constexpr (Kind::kUnitElements == 1) {
      store(weight_columns + at, unit[0].weights);
      store(dscores + at, unit[0].dscores);
    } else {
      store_rounded(dscores + at, unit[0].dscores);
      store_rounded(dscores + at + kBlock, unit[1].dscores);
      store_rounded_pairs(dscore_columns + at + column, unit[0].dscores, unit[1].dscores);
      store_rounded_pairs(weight_columns + at + column, unit[0].weights, unit[1].weights);
    }
  }
};

// -- keys and values ------------------------------------------------------------------------------

/// Fills sixteen columns, from `column` on, of the transposed keys, the transposed values and the
/// keys. `seen` is the range of these columns that the window sees; the others become 0.
inline void unpack_columns(const AttentionJob& job, const BackwardWorkspace<Floats>& work,
                           std::int64_t column, Span seen) {
  const std::int64_t page_tokens = job.layout.page_tokens;
  const std::int64_t head_dim = job.layout.head_dim;
  const auto page_head_of = [&](std::int64_t lane) {
    const std::int64_t position = work.origin + column + lane;
    const std::int64_t page = position / page_tokens;
    PageHead<float> head = page_head<float>(job, page);
    head.keys += position - page * page_tokens;
    head.values += (position - page * page_tokens) * head_dim;
    return head;
  };
  float* keys = work.transposed_keys + column * work.feature_units;
  const float* values[kLanes] = {};
  for (std::int64_t lane = seen.first; lane <= seen.last; ++lane) {
    values[lane] = page_head_of(lane).values;
  }
  if (page_tokens % kLanes == 0 && seen.first == 0 && seen.last == kLanes - 1) {
    const float* from = page_head_of(0).keys;
    for (std::int64_t c = 0; c < head_dim; ++c) {
      store(keys + c * kLanes, load(from + c * page_tokens));
    }
  } else {
    fill_zero(keys, kLanes * work.width);
    for (std::int64_t lane = seen.first; lane <= seen.last; ++lane) {
      const float* from = page_head_of(lane).keys;
      for (std::int64_t c = 0; c < head_dim; ++c) {
        keys[c * kLanes + lane] = from[c * page_tokens];
      }
    }
  }
  fill_zero(keys + head_dim * kLanes, (work.width - head_dim) * kLanes);
  for (std::int64_t c = 0; c < work.width; c += kLanes) {
    transpose_sixteen(
        [&](std::int64_t i, std::int64_t lane) {
          return load_register(keys + (c + i) * kLanes + lane);
        },
        work.keys + column * work.width + c, work.width);
    float rows[kLanes * kLanes];
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      store(rows + lane * kLanes,
            values[lane] == nullptr ? broadcast(0.0F) : load_some(values[lane] + c, head_dim - c));
    }
    transpose_sixteen(
        [&](std::int64_t i, std::int64_t lane) { return load_register(rows + i * kLanes + lane); },
        work.transposed_values + column * work.feature_units + c * kLanes, kLanes);
  }
}

inline const std::uint16_t* halves_of(const Pair* pairs) {
  return reinterpret_cast<const std::uint16_t*>(pairs);
}
inline std::uint16_t* halves_of(Pair* pairs) {
  return reinterpret_cast<std::uint16_t*>(pairs);
}

/// Does the same for sixteen positions in one page of a bfloat16 cache. Requires that head_dim is a
/// multiple of 16.
template <class Kind>
void unpack_page(const PageHead<Pair>& head, std::int64_t first_in_page, const PageLayout& layout,
                 const BackwardWorkspace<Kind>& work, std::int64_t column) {
  constexpr std::int64_t kPairs = kLanes / 2;
  Pair* keys = work.transposed_keys + column * work.feature_units;
  Pair* values = work.transposed_values + column * work.feature_units;
  for (std::int64_t c = 0; c < work.depth; ++c) {
    std::memcpy(keys + c * kLanes, head.keys + c * layout.page_tokens + first_in_page,
                kLanes * sizeof(Pair));
  }
  const Pair* from = head.values + first_in_page / 2 * layout.head_dim;
  for (std::int64_t c = 0; c < layout.head_dim; c += kLanes) {
    transpose_pairs(halves_of(from + c), 2 * layout.head_dim, kPairs,
                    halves_of(values + c * kPairs), 2 * kLanes);
  }
}

/// Does the same for a bfloat16 cache: transposed operands hold pairs of features, keys hold pairs
/// of positions.
template <class Kind>
requires(Kind::kUnitElements == 2) void unpack_columns(const AttentionJob& job,
                                                       const BackwardWorkspace<Kind>& work,
                                                       std::int64_t column, Span seen) {
  const std::int64_t page_tokens = job.layout.page_tokens;
  const std::int64_t head_dim = job.layout.head_dim;
  Pair* keys = work.transposed_keys + column * work.feature_units;
  Pair* values = work.transposed_values + column * work.feature_units;
  fill_zero(reinterpret_cast<float*>(keys), kLanes * work.feature_units);
  fill_zero(reinterpret_cast<float*>(values), kLanes * work.feature_units);
  if (page_tokens % kLanes == 0 && head_dim % kLanes == 0 && seen.first == 0 &&
      seen.last == kLanes - 1) {
    const std::int64_t position = work.origin + column;
    const std::int64_t page = position / page_tokens;
    unpack_page(page_head<Pair>(job, page), position - page * page_tokens, job.layout, work,
                column);
    seen = {0, -1};
  }
  for (std::int64_t lane = seen.first; lane <= seen.last; ++lane) {
    const std::int64_t position = work.origin + column + lane;
    const std::int64_t page = position / page_tokens;
    const PageHead<Pair> head = page_head<Pair>(job, page);
    const Pair* key = head.keys + (position - page * page_tokens);
    const Pair* value = head.values + (position / 2 - page * page_tokens / 2) * head_dim;
    const std::uint32_t shift = position % 2 == 0 ? 0U : 16U;
    for (std::int64_t c = 0; c < work.depth; ++c) {
      const Pair first = value[2 * c] >> shift & kFirstOfPair;
      const Pair second = 2 * c + 1 < head_dim ? value[2 * c + 1] >> shift : 0U;
      keys[c * kLanes + lane] = key[c * page_tokens];
      values[c * kLanes + lane] = first | second << 16U;
    }
  }
  for (std::int64_t c = 0; c < work.width; c += kLanes) {
    transpose_pairs(halves_of(keys + c * (kLanes / 2)), 2 * kLanes, kLanes / 2,
                    halves_of(work.keys + column / 2 * work.width + c), 2 * work.width);
  }
}

/// Calls f(at, dk, dv, count) for each group of sixteen gradients of the keys and values that the
/// window sees: `at` is its place in the rows of `work`, and `count` of the group exist at `dk` and
/// `dv`.
template <class Kind, class F>
void for_each_gradient(const AttentionBackwardJob& in, const BackwardWorkspace<Kind>& work, F f) {
  const Span seen = window_span(in.job);
  for (std::int64_t position = seen.first; position <= seen.last; ++position) {
    prefetch_gradients(in, position, seen.last);
    for (std::int64_t c = 0; c < in.job.layout.head_dim; c += kLanes) {
      f((position - work.origin) * work.width + c, in.dk + position * in.dk_stride + c,
        in.dv + position * in.dv_stride + c, in.job.layout.head_dim - c);
    }
  }
}

/// Copy the gradients of all keys and values that the window sees to rows of `width` floats, and
/// back after they have been added to.
template <class Kind>
void load_gradients(const AttentionBackwardJob& in, const BackwardWorkspace<Kind>& work) {
  for_each_gradient(in, work, [&](std::int64_t at, float* dk, float* dv, std::int64_t count) {
    store(work.dk + at, load_some(dk, count));
    store(work.dv + at, load_some(dv, count));
  });
}
template <class Kind>
void store_gradients(const AttentionBackwardJob& in, const BackwardWorkspace<Kind>& work) {
  for_each_gradient(in, work, [&](std::int64_t at, float* dk, float* dv, std::int64_t count) {
    store_some(dk, load(work.dk + at), count);
    store_some(dv, load(work.dv + at), count);
  });
}

/// Copies the keys that the window sees, both untransposed and transposed, their values transposed,
/// and the gradients accumulated until now. Columns that the window does not see and padding
/// features are 0.
template <class Kind>
void unpack(const AttentionBackwardJob& in, const BackwardWorkspace<Kind>& work) {
  const Span window = window_span(in.job);
  for (std::int64_t column = 0; column < work.columns; column += kLanes) {
    const Span seen{larger(0, window.first - work.origin - column),
                    smaller(kLanes - 1, window.last - work.origin - column)};
    unpack_columns(in.job, work, column, seen);
    if (seen.first > 0 || seen.last < kLanes - 1) {
      fill_zero(work.dk + column * work.width, kLanes * work.width);
      fill_zero(work.dv + column * work.width, kLanes * work.width);
    }
  }
  load_gradients(in, work);
}

// -- queries --------------------------------------------------------------------------------------

/// Copies the rows of a tile, multiplied by `factor`, to rows of `work.width` floats.
inline void gather(const AttentionJob& job, const QueryTile& tile, const float* from,
                   std::int64_t stride, float factor, const BackwardWorkspace<Floats>& work,
                   float* to, float* /*units*/) {
  const Vec scale = broadcast(factor);
  for_each_head(from + tile.first_token * stride, stride, tile.tokens, job.ratio,
                job.layout.head_dim, [&](std::int64_t row, std::int64_t c, const Vec& value) {
                  store(to + row * work.width + c, value * scale);
                });
}

/// Stores the rows of a tile, rounded to bfloat16, in `to` and, as pairs of rows, in `units`.
inline void gather(const AttentionJob& job, const QueryTile& tile, const float* from,
                   std::int64_t stride, float /*factor*/, const BackwardWorkspace<Pairs>& work,
                   Rounded* to, Pair* units) {
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
      store_pairs(units + r / 2 * work.width + c, first, second);
    }
  }
}

}  // namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA
