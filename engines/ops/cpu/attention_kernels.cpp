// SPDX-License-Identifier: Apache-2.0
// Attention over paged keys and values.
//
// A job's rows are (token, head) pairs that share one kv head. Scores of all rows are kept for all
// positions, so that the softmax needs its maximum once and its sum in one fixed order: lane p % 16
// of sixteen partial sums holds the positions p, in rising order. Values are then added position
// after position. Both orders follow absolute positions alone: neither the cut into segments and
// tiles nor the pages enter a bit (R1). A row never touches a position that it does not see, but
// for scores that are then masked, so that not even a NaN crosses over.
#include <cstdint>
#include <math.h>  // NOLINT(modernize-deprecated-headers): <cmath> brings inline functions along.

#include "engines/ops/cpu/attention_tiles.hpp"
#include "engines/ops/cpu/isa_kernels.hpp"
#include "engines/ops/cpu/kernels.hpp"
#include "engines/ops/cpu/tile.hpp"
#include "engines/ops/cpu/vec.hpp"
#include "engines/ops/cpu/vec_math.hpp"

namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA {
namespace {

// Where a job's scratch lies: queries, scores and sums of values, each a row per (token, head).
struct Workspace {
  std::int64_t rows;
  std::int64_t width;   // head_dim in whole vectors
  std::int64_t origin;  // the position of score column 0, a multiple of 16
  std::int64_t columns;
  float* q;
  float* scores;
  float* sums;

  Workspace(const AttentionJob& job, float* scratch) {
    const std::int64_t page = job.layout.page_tokens;
    const std::int64_t first = visible(job.window, job.first_position).first / page * page;
    const std::int64_t end = ((job.first_position + job.tokens - 1) / page + 1) * page;
    rows = job.tokens * job.ratio;
    width = round_up(job.layout.head_dim);
    origin = round_down(first);
    // Whole vectors are stored from any position of the last page on.
    columns = round_up(end - origin) + kLanes;
    q = scratch;
    scores = q + rows * width;
    sums = scores + rows * columns;
  }
  [[nodiscard]] std::int64_t size() const { return rows * (2 * width + columns); }
};

std::int64_t attention_scratch(const AttentionJob& job) {
  return Workspace(job, nullptr).size();
}

// The keys of 16 positions: head_dim rows, a page's length apart.
template <class Element>
const Element* keys_at(const AttentionJob& job, std::int64_t position) {
  const std::int64_t page = position / job.layout.page_tokens;
  return page_head<Element>(job, page).keys + (position - page * job.layout.page_tokens);
}

// scores[row][position] = q[row] . key[position], in page order: a page's last vector may run into
// the next page's columns, which are then overwritten.
template <class Element>
void compute_scores(const AttentionJob& job, const Workspace& work) {
  const std::int64_t page_tokens = job.layout.page_tokens;
  const std::int64_t last_page = (job.first_position + job.tokens - 1) / page_tokens;
  const std::int64_t end = (last_page + 1) * page_tokens;
  TileOperands<Element> in{.a = work.q,
                           .a_row = work.width,
                           .a_step = 1,
                           .b_step = page_tokens,
                           .depth = job.layout.head_dim};
  std::int64_t at = visible(job.window, job.first_position).first / page_tokens * page_tokens;
  if (page_tokens % kLanes == 0) {
    // Two sixteens of positions at a time, wherever their pages lie.
    for (; at + kTileWidth * kLanes <= end; at += kTileWidth * kLanes) {
      in.b = keys_at<Element>(job, at);
      in.panel_step = keys_at<Element>(job, at + (kTileWidth - 1) * kLanes) - in.b;
      accumulate_rows<Start::kZero, kTileWidth>(in, work.rows, work.scores + at - work.origin,
                                                work.columns);
    }
  }
  for (; at < end; at += smaller(kLanes, page_tokens - at % page_tokens)) {
    in.b = keys_at<Element>(job, at);
    accumulate_rows<Start::kZero>(in, work.rows, work.scores + at - work.origin, work.columns);
  }
}

struct SoftmaxSum {
  float top = 0.0F;
  float sum = 0.0F;
};

// Replaces the scores of the seen positions by exp(score - top).
SoftmaxSum exponentiate(float* scores, std::int64_t origin, Span seen) {
  const Vec lowest = broadcast(-__builtin_inff());
  const Vec zero = broadcast(0.0F);
  const auto masked = [&](std::int64_t block, const Vec& value, const Vec& otherwise) {
    return block >= seen.first && block + kLanes - 1 <= seen.last
               ? value
               : select(lanes_between(seen.first - block, seen.last - block), value, otherwise);
  };
  const std::int64_t first = round_down(seen.first);
  Vec tops = lowest;
  for (std::int64_t block = first; block <= seen.last; block += kLanes) {
    tops = maximum(tops, masked(block, load(scores + block - origin), lowest));
  }
  SoftmaxSum out;
  out.top = max_lane(tops);
  const Vec top = broadcast(out.top);
  Vec sums = zero;
  for (std::int64_t block = first; block <= seen.last; block += kLanes) {
    float* at = scores + block - origin;
    const Vec weight = masked(block, exponential(load(at) - top), zero);
    store(at, weight);
    sums = sums + weight;
  }
  out.sum = sum_lanes(sums);
  return out;
}

// sums[row] += weight[row][p] * value[p] for the positions of `range`, in rising order; the sums of
// one tile of rows and columns stay in registers from page to page.
template <int kRows, int kWidth, class Element>
void add_values_tile(const AttentionJob& job, const Workspace& work, std::int64_t row,
                     std::int64_t column, Span range) {
  constexpr int kVectors = kWidth * kRegisters;
  const std::int64_t page_tokens = job.layout.page_tokens;
  const std::int64_t head_dim = job.layout.head_dim;
  float* sums = work.sums + row * work.width + column;
  Accumulators<kRows, kVectors> acc;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      acc.value[r][v] = load_register(sums + r * work.width + v * kRegisterFloats);
    }
  }
  for (std::int64_t position = range.first; position <= range.last;) {
    const std::int64_t page = position / page_tokens;
    const std::int64_t end = smaller(range.last + 1, (page + 1) * page_tokens);
    accumulate(TileOperands<Element>{.a = work.scores + row * work.columns + position - work.origin,
                                     .a_row = work.columns,
                                     .a_step = 1,
                                     .b = page_head<Element>(job, page).values +
                                          (position - page * page_tokens) * head_dim + column,
                                     .b_step = head_dim,
                                     .panel_step = kLanes,
                                     .depth = end - position},
               acc);
    position = end;
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      store_register(sums + r * work.width + v * kRegisterFloats, acc.value[r][v]);
    }
  }
}

template <class Element>
void add_values(const AttentionJob& job, const Workspace& work, std::int64_t first_row,
                std::int64_t rows, Span range) {
  if (range.first > range.last) {
    return;
  }
  for (const std::int64_t end = first_row + rows; first_row < end;) {
    const std::int64_t count = next_rows(end - first_row);
    with_rows(count, [&]<int kRows>() {
      std::int64_t column = 0;
      for (; column + kTileWidth * kLanes <= work.width; column += kTileWidth * kLanes) {
        add_values_tile<kRows, kTileWidth, Element>(job, work, first_row, column, range);
      }
      for (; column < work.width; column += kLanes) {
        add_values_tile<kRows, 1, Element>(job, work, first_row, column, range);
      }
    });
    first_row += count;
  }
}

// The values of `tokens` tokens: positions that all of them see are added for all rows at once,
// those before and after them token by token.
template <class Element>
void add_token_values(const AttentionJob& job, const Workspace& work, std::int64_t first_token,
                      std::int64_t tokens) {
  const auto seen = [&](std::int64_t t) { return visible(job.window, job.first_position + t); };
  const auto add = [&](std::int64_t token, std::int64_t count, Span range) {
    add_values<Element>(job, work, token * job.ratio, count * job.ratio, range);
  };
  const std::int64_t end = first_token + tokens;
  const Span shared{seen(end - 1).first, seen(first_token).last};
  if (shared.first > shared.last) {
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

template <class Element>
void attention(const AttentionJob& job, float* scratch) {
  const Workspace work(job, scratch);
  const std::int64_t head_dim = job.layout.head_dim;
  gather_heads(job.q, job.q_stride, job.tokens, job.ratio, head_dim, job.scale, work.q, work.width);
  compute_scores<Element>(job, work);
  // The sums wait in the first float of a query, which has served.
  for (std::int64_t r = 0; r < work.rows; ++r) {
    const std::int64_t token = r / job.ratio;
    const SoftmaxSum softmax = exponentiate(work.scores + r * work.columns, work.origin,
                                            visible(job.window, job.first_position + token));
    work.q[r * work.width] = softmax.sum;
    if (job.lse != nullptr) {
      job.lse[token * job.lse_stride + r % job.ratio] =
          static_cast<float>(double{softmax.top} + ::log(double{softmax.sum}));
    }
  }
  fill_zero(work.sums, work.rows * work.width);
  // So many tokens as fill a tile: more would share fewer positions.
  const std::int64_t group = larger(1, kTileRows / job.ratio);
  for (std::int64_t t = 0; t < job.tokens; t += group) {
    add_token_values<Element>(job, work, t, smaller(group, job.tokens - t));
  }
  for (std::int64_t r = 0; r < work.rows; ++r) {
    const Vec sum = broadcast(work.q[r * work.width]);
    float* out = job.out + r / job.ratio * job.out_stride + r % job.ratio * head_dim;
    for (std::int64_t c = 0; c < head_dim; c += kLanes) {
      store_some(out + c, load(work.sums + r * work.width + c) / sum, head_dim - c);
    }
  }
}

}  // namespace

void add_attention_kernels(KernelTable& table) noexcept {
  table.attention_scratch = attention_scratch;
  table.attention_f32 = attention<float>;
  table.attention_bf16 = attention<std::uint16_t>;
}

}  // namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA
