// SPDX-License-Identifier: Apache-2.0
// Attention over paged keys and values.
//
// The rows of a job are (token, head) pairs that share one kv head. The scores of all rows are kept
// for all positions, so the softmax computes its maximum once and its sum in a fixed order: lane
// p % 16 of sixteen partial sums adds the positions p in ascending order. Values are then added
// position after position; bfloat16 values pair after pair of positions 2i, 2i + 1. These orders
// depend on absolute positions only. Neither the division into segments and tiles nor the pages
// affect a bit (R1 in engines/ops/ops.hpp). A row uses no position that it does not see, except in
// scores that are masked afterwards, so not even a NaN leaks into it. If it sees only one half of a
// pair, the other half counts as 0.
#pragma once

#include <cstdint>
#include <math.h>  // NOLINT(modernize-deprecated-headers): <cmath> brings inline functions along.

#include "engines/ops/cpu/attention_kinds.hpp"
#include "engines/ops/cpu/attention_tiles.hpp"
#include "engines/ops/cpu/kernels.hpp"
#include "engines/ops/cpu/pairs.hpp"
#include "engines/ops/cpu/tile.hpp"
#include "engines/ops/cpu/vec.hpp"
#include "engines/ops/cpu/vec_math.hpp"

namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA {

// Divides a job's scratch memory into queries, scores and sums of values, each with a row per
// (token, head), and the sums of the weights.
template <class Kind>
struct Workspace {
  std::int64_t rows;
  std::int64_t width;   // head_dim in whole steps
  std::int64_t origin;  // the position of score column 0, a multiple of 16
  std::int64_t columns;
  float* scores;
  float* sums;
  float* weight_sums;
  typename Kind::Left* q;

  /// Lays out the memory at `scratch`. If `scratch` is null, only `size` may be called.
  Workspace(const AttentionJob& job, float* scratch) {
    const std::int64_t page = job.layout.page_tokens;
    const std::int64_t first = visible(job.window, job.first_position).first / page * page;
    const std::int64_t end = ((job.first_position + job.tokens - 1) / page + 1) * page;
    rows = job.tokens * job.ratio;
    width = round_up(job.layout.head_dim, Kind::kColumnStep);
    origin = round_down(first);
    // Stores of whole vectors may start at any position of the last page.
    columns = round_up(end - origin) + kLanes;
    const auto at = [scratch](std::int64_t offset) {
      return scratch != nullptr ? scratch + offset : nullptr;
    };
    scores = scratch;
    sums = at(rows * columns);
    weight_sums = at(rows * (columns + width));
    q = reinterpret_cast<typename Kind::Left*>(at(rows * (columns + width) + round_up(rows)));
  }
  // Returns the floats of scratch for the kind that needs the most.
  [[nodiscard]] std::int64_t size() const { return rows * (2 * width + columns) + round_up(rows); }

  // Returns the weights of a row from `position` on. They overwrite the row's scores.
  [[nodiscard]] typename Kind::Left* weights(std::int64_t row, std::int64_t position) const {
    return reinterpret_cast<typename Kind::Left*>(scores + row * columns) + (position - origin);
  }
  // Returns the number of elements between the rows of weights.
  [[nodiscard]] std::int64_t weight_stride() const {
    return columns * std::int64_t{sizeof(float)} / std::int64_t{sizeof(typename Kind::Left)};
  }
};

// Returns whether each key and value is read only once, because the job has a single token. The
// memory then bounds its time, so it prefetches.
inline bool reads_once(const AttentionJob& job) {
  return job.tokens == 1;
}

// Returns whether the next job reads the kv head after that of `job`, in the same pages. Its keys
// then follow the values of `job` in each page.
inline bool continues(const AttentionJob& job) {
  return job.next != nullptr && job.next->pages == job.pages &&
         job.next->kv_head == job.kv_head + 1 && job.next->first_position == job.first_position;
}

// Prefetches the keys that the single token of a job sees to the second-level cache, if they do not
// follow what the job before it reads. A page of one kv head is a run of consecutive cache lines,
// but the hardware prefetcher cannot know where the next run begins. The runs of a long context
// would evict each other, so only the first ones are prefetched.
template <class Unit>
void prefetch_keys(const AttentionJob& job) {
  constexpr std::int64_t kMaxBytes = std::int64_t{64} * 1024;
  const PageLayout& layout = job.layout;
  const std::int64_t units = layout.key_units();
  const Span seen = visible(job.window, job.first_position);
  const std::int64_t first = seen.first / layout.page_tokens;
  const std::int64_t max_pages = larger(1, kMaxBytes / (units * std::int64_t{sizeof(Unit)}));
  const std::int64_t last = smaller(seen.last / layout.page_tokens, first + max_pages - 1);
  for (std::int64_t page = first; page <= last; ++page) {
    const Unit* keys = page_head<Unit>(job, page).keys;
    for (std::int64_t i = 0; i < units; i += kLanes) {
      __builtin_prefetch(keys + i, 0, 2);
    }
  }
}

// Returns the keys of 16 positions: rows of units with a stride of `page_tokens`.
template <class Kind>
const typename Kind::Unit* keys_at(const AttentionJob& job, std::int64_t position) {
  const std::int64_t page = position / job.layout.page_tokens;
  return page_head<typename Kind::Unit>(job, page).keys +
         (position - page * job.layout.page_tokens);
}

// Computes scores[row][position] = q[row] . key[position], in page order: the last vector of a page
// may run into the columns of the next page, which then overwrites them.
template <class Kind>
void compute_scores(const AttentionJob& job, const Workspace<Kind>& work) {
  const std::int64_t page_tokens = job.layout.page_tokens;
  const std::int64_t last_page = (job.first_position + job.tokens - 1) / page_tokens;
  const std::int64_t end = (last_page + 1) * page_tokens;
  const auto multiply = [&]<int kWidth>(std::int64_t at, std::int64_t panel_step) {
    // Rows before this one see none of these positions.
    const std::int64_t row = larger(0, at - job.first_position) * job.ratio;
    const typename Kind::Operands in{
        .a = work.q + row * work.width,
        .a_row = work.width,
        .a_step = Kind::kUnitElements,
        .b = keys_at<Kind>(job, at),
        .b_step = page_tokens,
        .panel_step = panel_step,
        .depth = (job.layout.head_dim + Kind::kUnitElements - 1) / Kind::kUnitElements};
    const auto multiply_rows = [&](const auto& operands) {
      accumulate_rows<Start::kZero, kWidth>(operands, work.rows - row,
                                            work.scores + row * work.columns + at - work.origin,
                                            work.columns);
    };
    if (reads_once(job)) {  // the values of a page follow its keys
      multiply_rows(Prefetching<typename Kind::Operands>{in, job.layout.key_units()});
    } else {
      multiply_rows(in);
    }
  };
  std::int64_t at = visible(job.window, job.first_position).first / page_tokens * page_tokens;
  if (page_tokens % kLanes == 0) {
    // Groups of 16 positions, `kTileWidth` at a time, which may be in different pages.
    for (; at + kTileWidth * kLanes <= end; at += kTileWidth * kLanes) {
      multiply.template operator()<kTileWidth>(
          at, keys_at<Kind>(job, at + (kTileWidth - 1) * kLanes) - keys_at<Kind>(job, at));
    }
  }
  for (; at < end; at += smaller(kLanes, page_tokens - at % page_tokens)) {
    multiply.template operator()<1>(at, 0);
  }
}

struct SoftmaxSum {
  float top = 0.0F;
  float sum = 0.0F;
};

// Replaces the scores of a row with exp(factor * score - top), for each group of 16 positions of
// which it sees at least one. Positions that it does not see get the weight 0.
template <class Kind>
SoftmaxSum exponentiate(const Workspace<Kind>& work, std::int64_t row, float factor, Span seen) {
  const float* scores = work.scores + row * work.columns;
  const Vec lowest = broadcast(-__builtin_inff());
  const Vec zero = broadcast(0.0F);
  const Vec scale = broadcast(factor);
  const auto masked = [&](std::int64_t block, const Vec& value, const Vec& otherwise) {
    return block >= seen.first && block + kLanes - 1 <= seen.last
               ? value
               : select(lanes_between(seen.first - block, seen.last - block), value, otherwise);
  };
  const std::int64_t first = round_down(seen.first);
  Vec tops = lowest;
  for (std::int64_t block = first; block <= seen.last; block += kLanes) {
    tops = maximum(tops, masked(block, load(scores + block - work.origin) * scale, lowest));
  }
  SoftmaxSum out;
  out.top = max_lane(tops);
  const Vec minus_top = broadcast(-out.top);
  Vec sums = zero;
  for (std::int64_t block = first; block <= seen.last; block += kLanes) {
    const Vec difference = multiply_add(load(scores + block - work.origin), scale, minus_top);
    const Vec weight = masked(block, bounded_exponential(difference), zero);
    // This never overwrites scores that are still to be read: a weight is no larger than a score.
    Kind::keep(work.weights(row, block), weight);
    sums = sums + weight;
  }
  out.sum = sum_lanes(sums);
  return out;
}

// Adds a product with values of one page.
template <class Operands, int kRows, int kVectors>
void add_product(const AttentionJob& job, const Operands& in, Accumulators<kRows, kVectors>& acc) {
  if (reads_once(job) && continues(job)) {
    const PageLayout& layout = job.layout;
    accumulate(Prefetching<Operands>{in, layout.head_units() - layout.key_units()}, acc);
  } else {
    accumulate(in, acc);
  }
}

// Computes acc[row] += weight[row][p] * value[p] for the positions of `range` in ascending order.
// `column` is the first feature.
template <int kRows, int kVectors>
void add_range(const AttentionJob& job, const Workspace<Floats>& work, std::int64_t row,
               std::int64_t column, Span range, Accumulators<kRows, kVectors>& acc) {
  const std::int64_t page_tokens = job.layout.page_tokens;
  const std::int64_t head_dim = job.layout.head_dim;
  for (std::int64_t position = range.first; position <= range.last;) {
    const std::int64_t page = position / page_tokens;
    const std::int64_t end = smaller(range.last + 1, (page + 1) * page_tokens);
    add_product(job,
                TileOperands{.a = work.weights(row, position),
                             .a_row = work.weight_stride(),
                             .a_step = 1,
                             .b = page_head<float>(job, page).values +
                                  (position - page * page_tokens) * head_dim + column,
                             .b_step = head_dim,
                             .panel_step = kLanes,
                             .depth = end - position},
                acc);
    position = end;
  }
}

// Loads the words of the pair that contains `position` from its page, and clears the other half.
template <int kVectors>
void load_half(const AttentionJob& job, std::int64_t position, std::int64_t column, Pair half,
               WordRegister (&row)[kVectors]) {
  const std::int64_t page = position / job.layout.page_tokens;
  const std::int64_t first = page * job.layout.page_tokens / 2;
  load_step(
      page_head<Pair>(job, page).values + (position / 2 - first) * job.layout.head_dim + column,
      kLanes, row);
#pragma GCC unroll 16
  for (int v = 0; v < kVectors; ++v) {
    row[v] &= half;
  }
}

// `add_range` for bfloat16: adds pairs of positions in ascending order. A half that is outside of
// `range` counts as 0.
template <class Kind, int kRows, int kVectors>
requires(Kind::kUnitElements ==
         2) void add_range(const AttentionJob& job, const Workspace<Kind>& work, std::int64_t row,
                           std::int64_t column, Span range, Accumulators<kRows, kVectors>& acc) {
  const std::int64_t page_tokens = job.layout.page_tokens;
  const std::int64_t head_dim = job.layout.head_dim;
  Accumulators<kRows, kVectors> sums = acc;
  for (std::int64_t position = range.first; position <= range.last;) {
    const std::int64_t page = position / page_tokens;
    const std::int64_t end = smaller(range.last + 1, (page + 1) * page_tokens);
    if (position % 2 == 0 && position + 1 < end) {
      const std::int64_t pairs = (end - position) / 2;
      add_product(job,
                  PairOperands{.a = work.weights(row, position),
                               .a_row = work.weight_stride(),
                               .b = page_head<Pair>(job, page).values +
                                    (position / 2 - page * page_tokens / 2) * head_dim + column,
                               .b_step = head_dim,
                               .panel_step = kLanes,
                               .depth = pairs},
                  sums);
      position += 2 * pairs;
      continue;
    }
    // One half of this pair is not seen or is stored in the next page.
    WordRegister pair[kVectors];
    load_half(job, position, column, position % 2 == 0 ? kFirstOfPair : kSecondOfPair, pair);
    if (position % 2 == 0 && position < range.last) {
      WordRegister second[kVectors];
      load_half(job, position + 1, column, kSecondOfPair, second);
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        pair[v] |= second[v];
      }
    }
    add_pairs(work.weights(row, position / 2 * 2), work.weight_stride(), pair, sums);
    position = position / 2 * 2 + 2;
  }
  acc = sums;
}

// Adds the values of one tile of rows and columns. Its sums stay in registers from page to page.
template <int kRows, int kWidth, class Kind>
[[gnu::noinline]] void add_values_tile(const AttentionJob& job, const Workspace<Kind>& work,
                                       std::int64_t row, std::int64_t column, Span range) {
  constexpr int kVectors = kWidth * kRegisters;
  float* sums = work.sums + row * work.width + column;
  Accumulators<kRows, kVectors> acc;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      acc.value[r][v] = load_register(sums + r * work.width + v * kRegisterFloats);
    }
  }
  add_range(job, work, row, column, range, acc);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      store_register(sums + r * work.width + v * kRegisterFloats, acc.value[r][v]);
    }
  }
}

template <class Kind>
void add_values(const AttentionJob& job, const Workspace<Kind>& work, std::int64_t first_row,
                std::int64_t rows, Span range) {
  if (range.first > range.last) {
    return;
  }
  // A page has no more features, even if the rows of `work` are padded further.
  const std::int64_t columns = round_up(job.layout.head_dim);
  for (const std::int64_t end = first_row + rows; first_row < end;) {
    const std::int64_t count = next_rows(end - first_row);
    with_rows(count, [&]<int kRows>() {
      // With few rows, registers have room for more columns, whose sums are independent.
      constexpr int kWide = kRegisterFloats == 16 && kRows <= 4 ? 4 : kTileWidth;
      std::int64_t column = 0;
      for (; column + kWide * kLanes <= columns; column += kWide * kLanes) {
        add_values_tile<kRows, kWide>(job, work, first_row, column, range);
      }
      for (; column < columns; column += kLanes) {
        add_values_tile<kRows, 1>(job, work, first_row, column, range);
      }
    });
    first_row += count;
  }
}

// Adds the values of `tokens` tokens. Positions that all tokens see are added for all rows at once,
// in whole pairs. The positions before and after those are added token by token.
template <class Kind>
void add_token_values(const AttentionJob& job, const Workspace<Kind>& work,
                      std::int64_t first_token, std::int64_t tokens) {
  constexpr std::int64_t kStep = Kind::kUnitElements;
  const auto seen = [&](std::int64_t t) { return visible(job.window, job.first_position + t); };
  const auto add = [&](std::int64_t token, std::int64_t count, Span range) {
    add_values(job, work, token * job.ratio, count * job.ratio, range);
  };
  const std::int64_t end = first_token + tokens;
  const Span shared{(seen(end - 1).first + kStep - 1) / kStep * kStep,
                    (seen(first_token).last + 1) / kStep * kStep - 1};
  if (tokens == 1 || shared.first > shared.last) {
    for (std::int64_t t = first_token; t < end; ++t) {
      add(t, 1, seen(t));
    }
    return;
  }
  for (std::int64_t t = first_token; t < end; ++t) {
    add(t, 1, {seen(t).first, shared.first - 1});
  }
  add(first_token, tokens, shared);
  for (std::int64_t t = first_token; t < end; ++t) {
    add(t, 1, {shared.last + 1, seen(t).last});
  }
}

template <class Kind>
void add_all_values(const AttentionJob& job, const Workspace<Kind>& work) {
  // As many tokens as fill a tile. More tokens would have fewer positions in common.
  const std::int64_t group = larger(1, kTileRows / job.ratio);
  for (std::int64_t t = 0; t < job.tokens; t += group) {
    add_token_values(job, work, t, smaller(group, job.tokens - t));
  }
}

template <class Kind>
void attention(const AttentionJob& job, float* scratch) {
  const Workspace<Kind> work(job, scratch);
  const std::int64_t head_dim = job.layout.head_dim;
  const Vec factor = broadcast(Kind::query_factor(job.scale));
  for_each_head(job.q, job.q_stride, job.tokens, job.ratio, head_dim,
                [&](std::int64_t row, std::int64_t c, const Vec& value) {
                  Kind::keep(work.q + row * work.width + c, value * factor);
                });
  for (std::int64_t c = round_up(head_dim); c < work.width; c += kLanes) {
    for (std::int64_t r = 0; r < work.rows; ++r) {
      Kind::keep(work.q + r * work.width + c, broadcast(0.0F));
    }
  }
  // The next job probably computes the next kv head of the same tokens.
  const std::int64_t floats = job.ratio * head_dim;
  prefetch_rows(job.q + floats, job.q_stride, job.tokens, floats);
  compute_scores(job, work);
  if (job.next != nullptr && reads_once(*job.next) && !continues(job)) {
    prefetch_keys<typename Kind::Unit>(*job.next);
  }
  const auto out_row = [&](std::int64_t r) {
    return job.out + r / job.ratio * job.out_stride + r % job.ratio * head_dim;
  };
  for (std::int64_t r = 0; r < work.rows; ++r) {
    const std::int64_t token = r / job.ratio;
    const SoftmaxSum softmax = exponentiate(work, r, Kind::score_factor(job.scale),
                                            visible(job.window, job.first_position + token));
    work.weight_sums[r] = softmax.sum;
    for (std::int64_t c = 0; c < head_dim; c += kLanes) {
      __builtin_prefetch(out_row(r) + c, 1, 2);
    }
    if (job.lse != nullptr) {
      job.lse[token * job.lse_stride + r % job.ratio] =
          static_cast<float>(double{softmax.top} + ::log(double{softmax.sum}));
    }
  }
  fill_zero(work.sums, work.rows * work.width);
  add_all_values(job, work);
  for (std::int64_t r = 0; r < work.rows; ++r) {
    const Vec sum = broadcast(work.weight_sums[r]);
    for (std::int64_t c = 0; c < head_dim; c += kLanes) {
      store_some(out_row(r) + c, load(work.sums + r * work.width + c) / sum, head_dim - c);
    }
  }
}

}  // namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA
