// SPDX-License-Identifier: Apache-2.0
// Stores keys and values in the paged cache of the CPU backend.
#include <algorithm>
#include <cstring>
#include <optional>

#include "engines/ops/cpu/cpu_ops.hpp"
#include "engines/ops/cpu/factory.hpp"
#include "engines/ops/shapes.hpp"

namespace tidemill::engines::cpu {
namespace {

// Stores the key and the value of one head for the token at index `index` of a page.
void store_floats(const PageLayout& layout, std::byte* head, std::int64_t index, const float* k,
                  const float* v) {
  float* keys = reinterpret_cast<float*>(head);
  float* values = keys + layout.key_units();
  for (std::int64_t c = 0; c < layout.head_dim; ++c) {
    keys[c * layout.page_tokens + index] = k[c];
    values[index * layout.head_dim + c] = v[c];
  }
}

// Returns the offset, from the start of a head in a page, of the pairs of values that contain the
// token at `position`. Units: units of the cache.
std::int64_t value_pair(const PageLayout& layout, std::int64_t position) {
  const std::int64_t index = position % layout.page_tokens;
  const std::int64_t pair = position / 2 - (position - index) / 2;
  return layout.key_units() + pair * layout.head_dim;
}

// Stores the rounded key and value of one head for the token at `position`: its halves of pairs.
void store_pairs(const PageLayout& layout, std::byte* head, std::int64_t position,
                 const std::uint16_t* k, const std::uint16_t* v) {
  auto* keys = reinterpret_cast<std::uint16_t*>(head) + 2 * (position % layout.page_tokens);
  auto* values =
      reinterpret_cast<std::uint16_t*>(head) + 2 * value_pair(layout, position) + position % 2;
  for (std::int64_t c = 0; c + 1 < layout.head_dim; c += 2) {
    std::memcpy(keys + c * layout.page_tokens, k + c, 2 * sizeof(*k));
  }
  if (layout.head_dim % 2 != 0) {
    keys[(layout.head_dim - 1) * layout.page_tokens] = k[layout.head_dim - 1];
    keys[(layout.head_dim - 1) * layout.page_tokens + 1] = 0;
  }
  for (std::int64_t c = 0; c < layout.head_dim; ++c) {
    values[2 * c] = v[c];
  }
}

// Prefetches the cache lines that a token's keys and values are stored to, one for each unit of
// features. They are far apart, and without this each store would wait for its line.
void prefetch_token(const PageLayout& layout, std::int64_t num_heads, std::byte* page,
                    std::int64_t position) {
  const std::int64_t features =
      layout.dtype == DType::kBF16 ? (layout.head_dim + 1) / 2 : layout.head_dim;
  const std::int64_t values =
      layout.dtype == DType::kBF16
          ? value_pair(layout, position)
          : layout.key_units() + position % layout.page_tokens * layout.head_dim;
  for (std::int64_t i = 0; i < num_heads; ++i) {
    std::byte* head = page + i * layout.head_units() * 4;
    for (std::int64_t c = 0; c < features; ++c) {
      __builtin_prefetch(head + (c * layout.page_tokens + position % layout.page_tokens) * 4, 1, 3);
    }
    for (std::int64_t c = 0; c < layout.head_dim; c += kPanel) {
      __builtin_prefetch(head + (values + c) * 4, 1, 3);
    }
  }
}

// A token to store in the cache.
struct StoredToken {
  std::byte* page;
  std::int64_t position;
  std::int64_t row;
};

// Rotates, rounds and stores tokens of k and v. Each token is stored after the cache lines of the
// next one have been prefetched.
class TokenWriter {
public:
  TokenWriter(const KernelTable& kernels, const AttentionShape& shape, ConstMatrix k, ConstMatrix v,
              const RopeTables& rotation, std::byte* scratch)
      : kernels_(kernels),
        layout_(shape),
        num_heads_(shape.num_kv_heads),
        k_(k),
        v_(v),
        rotation_(rotation),
        rotated_{reinterpret_cast<float*>(scratch), 1, k.cols, k.cols},
        halves_(reinterpret_cast<std::uint16_t*>(rotated_.data + k.cols)) {}

  // Returns the scratch memory needed for tokens of `cols` floats. Units: bytes.
  static std::int64_t scratch_bytes(std::int64_t cols) noexcept { return (4 + 2 * 2) * cols + 64; }

  void write(const StoredToken& token) {
    prefetch_token(layout_, num_heads_, token.page, token.position);
    finish();
    fetched_ = token;
  }
  void finish() {
    if (fetched_.has_value()) {
      store(*fetched_);
      fetched_.reset();
    }
  }

private:
  ConstMatrix key(const StoredToken& token) {
    const ConstMatrix row = k_.slice_rows(token.row, 1);
    if (rotation_.cosine.data == nullptr) {
      return row;
    }
    std::copy_n(row.data, row.cols, rotated_.data);
    const auto position = static_cast<std::int32_t>(token.position);
    kernels_.rope(rotated_, layout_.head_dim, &position, rotation_, RopeDirection::kForward,
                  {0, 1});
    return rotated_;
  }

  void store(const StoredToken& token) {
    const ConstMatrix keys = key(token);
    const ConstMatrix values = v_.slice_rows(token.row, 1);
    const bool pairs = layout_.dtype == DType::kBF16;
    if (pairs) {
      kernels_.narrow(keys, {0, 1}, halves_);
      kernels_.narrow(values, {0, 1}, halves_ + k_.cols);
    }
    for (std::int64_t i = 0; i < num_heads_; ++i) {
      std::byte* head = token.page + i * layout_.head_units() * 4;
      const std::int64_t first = i * layout_.head_dim;
      if (pairs) {
        store_pairs(layout_, head, token.position, halves_ + first, halves_ + k_.cols + first);
      } else {
        store_floats(layout_, head, token.position % layout_.page_tokens, keys.data + first,
                     values.data + first);
      }
    }
  }

  const KernelTable& kernels_;
  PageLayout layout_;
  std::int64_t num_heads_;
  ConstMatrix k_;
  ConstMatrix v_;
  const RopeTables& rotation_;
  Matrix rotated_;
  std::uint16_t* halves_;
  std::optional<StoredToken> fetched_;
};

}  // namespace

std::int64_t CpuOps::kv_page_bytes(const AttentionShape& shape) const noexcept {
  return PageLayout(shape).page_bytes;
}

void CpuOps::kv_append(const AttentionShape& shape, std::span<const AttentionSegment> segments,
                       ConstMatrix k, ConstMatrix v, const RopeTables& rotation, KvLayer cache) {
  check_kv_append(shape, segments, k, v, rotation);
  const std::int64_t bytes = kv_page_bytes(shape);
  // Parts divide the tokens of all segments, numbered consecutively. Each part finds the segments
  // that contain its tokens.
  std::int64_t tokens = 0;
  for (const AttentionSegment& segment : segments) {
    tokens += segment.num_tokens;
  }
  team_.parallel_for(
      tokens, 4 * k.cols, [&](std::int64_t part, std::int64_t begin, std::int64_t end) {
        TokenWriter writer(kernels_, shape, k, v, rotation,
                           team_.scratch(part).bytes(TokenWriter::scratch_bytes(k.cols)));
        std::int64_t before = 0;
        for (const AttentionSegment& segment : segments) {
          const std::int64_t first = std::max(begin, before) - before;
          const std::int64_t last = std::min(end, before + segment.num_tokens) - before;
          for (std::int64_t i = first; i < last; ++i) {
            const std::int64_t position = segment.first_position + i;
            const auto page = static_cast<std::size_t>(position / shape.page_tokens);
            writer.write(
                {cache.data + segment.pages[page] * bytes, position, segment.first_row + i});
          }
          before += segment.num_tokens;
        }
        writer.finish();
      });
}

}  // namespace tidemill::engines::cpu
