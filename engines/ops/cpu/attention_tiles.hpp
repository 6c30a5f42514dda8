// SPDX-License-Identifier: Apache-2.0
// What the forward and the backward attention kernels share: where things lie, what a query sees.
#pragma once

#include <cstdint>

#include "engines/ops/cpu/kernels.hpp"
#include "engines/ops/cpu/tile.hpp"
#include "engines/ops/cpu/vec.hpp"

namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA {

inline std::int64_t round_down(std::int64_t x) {
  return x / kLanes * kLanes;
}
inline std::int64_t round_up(std::int64_t x) {
  return round_down(x + kLanes - 1);
}
inline std::int64_t smaller(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}
inline std::int64_t larger(std::int64_t a, std::int64_t b) {
  return a > b ? a : b;
}

/// Positions [first, last].
struct Span {
  std::int64_t first = 0;
  std::int64_t last = 0;
};

/// Returns the positions that a query at `position` sees.
inline Span visible(std::int64_t window, std::int64_t position) {
  return {window == 0 ? 0 : larger(0, position - window + 1), position};
}

/// One page's keys (head_dim x page_tokens) and values (page_tokens x head_dim) of one kv head.
template <class Element>
struct PageHead {
  const Element* keys = nullptr;
  const Element* values = nullptr;
};

template <class Element>
inline PageHead<Element> page_head(const AttentionJob& job, std::int64_t page) {
  const std::byte* start = job.cache + job.pages[page] * job.layout.page_bytes;
  const Element* keys =
      reinterpret_cast<const Element*>(start) + job.kv_head * job.layout.head_elements();
  return {keys, keys + job.layout.page_tokens * job.layout.head_dim};
}

inline void fill_zero(float* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    to[i] = 0.0F;
  }
}

/// Copies rows (token, head) of a (T, heads * head_dim) matrix, times `factor`, to dense rows of
/// `to_row` floats.
inline void gather_heads(const float* from, std::int64_t stride, std::int64_t tokens,
                         std::int64_t ratio, std::int64_t head_dim, float factor, float* to,
                         std::int64_t to_row) {
  const Vec scale = broadcast(factor);
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t h = 0; h < ratio; ++h) {
      for (std::int64_t c = 0; c < head_dim; c += kLanes) {
        const std::int64_t count = head_dim - c;
        store(to + (t * ratio + h) * to_row + c,
              load_some(from + t * stride + h * head_dim + c, count) * scale);
      }
    }
  }
}

}  // namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA
