// SPDX-License-Identifier: Apache-2.0
// A paged cache for tests. Its sequences have shuffled pages, and its memory is initialized with
// NaN, so that reading a position that was never written shows in the result.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "tests/engines/ops/fixtures.hpp"

namespace tidemill::engines::ops_test {

class TestCache {
public:
  /// Creates a cache for sequences of `lengths` tokens. `random` shuffles the pages.
  TestCache(const Ops& ops, const AttentionShape& shape, std::span<const std::int64_t> lengths,
            RandomStream& random) {
    std::int64_t total = 1;
    for (const std::int64_t length : lengths) {
      total += pages_for(shape, length);
    }
    std::vector<std::int32_t> numbers(static_cast<std::size_t>(total));
    std::iota(numbers.begin(), numbers.end(), 0);
    shuffle(std::span<std::int32_t>(numbers), random);
    auto next = numbers.begin();
    for (const std::int64_t length : lengths) {
      const auto end = next + pages_for(shape, length);
      pages_.emplace_back(next, end);
      next = end;
    }
    // Bytes with all bits set are NaN as float and as bfloat16.
    memory_.resize(static_cast<std::size_t>(total * ops.kv_page_bytes(shape)), std::byte{0xFF});
  }

  [[nodiscard]] KvLayer layer() { return {memory_.data()}; }
  [[nodiscard]] std::span<const std::int32_t> pages(std::size_t sequence) const {
    return pages_[sequence];
  }

private:
  static std::int64_t pages_for(const AttentionShape& shape, std::int64_t length) {
    return (length + shape.page_tokens - 1) / shape.page_tokens;
  }
  std::vector<std::vector<std::int32_t>> pages_;
  std::vector<std::byte> memory_;
};

/// The operands of one sequence's attention.
struct Sequence {
  Rows q;
  Rows k;
  Rows v;
  Rows dout;

  Sequence(const AttentionShape& shape, std::int64_t tokens, std::uint64_t seed)
      : q(Rows::random(tokens, shape.num_heads * shape.head_dim, seed, 1.0F)),
        k(Rows::random(tokens, shape.num_kv_heads * shape.head_dim, seed + 1000, 1.0F)),
        v(Rows::random(tokens, shape.num_kv_heads * shape.head_dim, seed + 2000, 1.0F)),
        dout(Rows::random(tokens, shape.num_heads * shape.head_dim, seed + 3000, 1.0F)) {}
};

/// The results of attention and its gradients for one sequence.
struct AttentionRows {
  Rows out;
  Rows lse;
  Rows dq;
  Rows dk;
  Rows dv;

  AttentionRows(const AttentionShape& shape, std::int64_t tokens, std::int64_t gap = 0)
      : out(tokens, shape.num_heads * shape.head_dim, gap),
        lse(tokens, shape.num_heads, gap),
        dq(tokens, shape.num_heads * shape.head_dim, gap),
        dk(tokens, shape.num_kv_heads * shape.head_dim, gap),
        dv(tokens, shape.num_kv_heads * shape.head_dim, gap) {}
};

/// Computes the gradients in `result` for segments that are whole sequences, each as one window.
/// Overwrites the segments' rows of dq, dk and dv.
inline void attention_backward(Ops& ops, const AttentionShape& shape,
                               std::span<const AttentionSegment> segments, const Rows& q,
                               KvLayer cache, const Rows& dout, AttentionRows& result) {
  std::vector<KvGradient> gradients;
  for (const AttentionSegment& segment : segments) {
    const Matrix dk = result.dk.view().slice_rows(segment.first_row, segment.num_tokens);
    const Matrix dv = result.dv.view().slice_rows(segment.first_row, segment.num_tokens);
    for (std::int64_t row = 0; row < segment.num_tokens; ++row) {
      std::fill_n(dk.row(row), dk.cols, 0.0F);
      std::fill_n(dv.row(row), dv.cols, 0.0F);
    }
    gradients.push_back({dk, dv});
  }
  ops.attention_backward_windows(shape, segments, gradients, q.view(), cache, result.out.view(),
                                 result.lse.view(), dout.view(), result.dq.view());
}

/// Runs one sequence alone, as one segment, forward and backward.
inline AttentionRows run_alone(Ops& ops, const AttentionShape& shape, const Sequence& in,
                               RandomStream& random) {
  const std::int64_t tokens = in.q.rows();
  AttentionRows result(shape, tokens, 1);
  TestCache cache(ops, shape, std::span(&tokens, 1), random);
  const AttentionSegment segment{0, tokens, 0, cache.pages(0)};
  const std::span segments(&segment, 1);
  ops.kv_append(shape, segments, in.k.view(), in.v.view(), {}, cache.layer());
  ops.attention(shape, segments, in.q.view(), cache.layer(), result.out.view(), result.lse.view());
  attention_backward(ops, shape, segments, in.q, cache.layer(), in.dout, result);
  return result;
}

/// Does what `run_alone` does, but computes gradients window after window, from the last to the
/// first. `cuts` are the ends of the windows in ascending order.
inline AttentionRows run_in_windows(Ops& ops, const AttentionShape& shape, const Sequence& in,
                                    std::span<const std::int64_t> cuts, RandomStream& random) {
  const std::int64_t tokens = in.q.rows();
  AttentionRows result(shape, tokens, 1);
  TestCache cache(ops, shape, std::span(&tokens, 1), random);
  const AttentionSegment whole{0, tokens, 0, cache.pages(0)};
  ops.kv_append(shape, std::span(&whole, 1), in.k.view(), in.v.view(), {}, cache.layer());
  ops.attention(shape, std::span(&whole, 1), in.q.view(), cache.layer(), result.out.view(),
                result.lse.view());
  const KvGradient gradient{result.dk.view(), result.dv.view()};
  for (std::size_t i = cuts.size(); i-- > 0;) {
    const std::int64_t first = i == 0 ? 0 : cuts[i - 1];
    const AttentionSegment window{first, cuts[i] - first, first, cache.pages(0)};
    ops.attention_backward_windows(shape, std::span(&window, 1), std::span(&gradient, 1),
                                   in.q.view(), cache.layer(), result.out.view(), result.lse.view(),
                                   in.dout.view(), result.dq.view());
  }
  return result;
}

/// Returns an attention shape with the usual scale.
inline AttentionShape attention_shape(std::int64_t heads, std::int64_t kv_heads,
                                      std::int64_t head_dim, std::int64_t window,
                                      std::int64_t page_tokens, DType dtype) {
  return {heads,  kv_heads,    head_dim, 1.0F / std::sqrt(static_cast<float>(head_dim)),
          window, page_tokens, dtype};
}

}  // namespace tidemill::engines::ops_test
