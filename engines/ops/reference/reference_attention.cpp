// SPDX-License-Identifier: Apache-2.0
// Attention of the reference backend.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <vector>

#include "engines/ops/reference/reference_ops.hpp"
#include "engines/ops/shapes.hpp"

namespace tidemill::engines::host {
namespace {

enum class KvPart : std::uint8_t { kKeys, kValues };

// Elements of one layer's cache, addressed by sequence position.
class PagedKv {
public:
  PagedKv(const AttentionShape& shape, std::int64_t page_bytes, KvLayer cache)
      : shape_(shape), page_bytes_(page_bytes), cache_(cache) {}

  void store(const AttentionSegment& segment, KvPart part, std::int64_t position,
             std::int64_t kv_head, const float* values) const {
    std::byte* to = at(segment, part, position, kv_head);
    for (std::int64_t c = 0; c < shape_.head_dim; ++c) {
      if (shape_.kv_dtype == DType::kBF16) {
        reinterpret_cast<std::uint16_t*>(to)[c] = float_to_bf16(values[c]);
      } else {
        reinterpret_cast<float*>(to)[c] = values[c];
      }
    }
  }

  [[nodiscard]] double load(const AttentionSegment& segment, KvPart part, std::int64_t position,
                            std::int64_t kv_head, std::int64_t c) const {
    const std::byte* from = at(segment, part, position, kv_head);
    return shape_.kv_dtype == DType::kBF16
               ? bf16_to_float(reinterpret_cast<const std::uint16_t*>(from)[c])
               : reinterpret_cast<const float*>(from)[c];
  }

private:
  [[nodiscard]] std::byte* at(const AttentionSegment& segment, KvPart part, std::int64_t position,
                              std::int64_t kv_head) const {
    const auto page = static_cast<std::size_t>(position / shape_.page_tokens);
    const std::int64_t heads_before = kv_head + (part == KvPart::kValues ? shape_.num_kv_heads : 0);
    const std::int64_t index =
        (heads_before * shape_.page_tokens + position % shape_.page_tokens) * shape_.head_dim;
    return cache_.data + segment.pages[page] * page_bytes_ +
           index * static_cast<std::int64_t>(dtype_bytes(shape_.kv_dtype));
  }

  const AttentionShape& shape_;
  std::int64_t page_bytes_;
  KvLayer cache_;
};

// Rounds an operand of a product as attention over keys and values of type `kv_dtype` does.
double operand(const AttentionShape& shape, double value) {
  const auto single = static_cast<float>(value);
  return shape.kv_dtype == DType::kBF16 ? bf16_to_float(float_to_bf16(single)) : value;
}

// The keys one query sees: [first, last] of its sequence.
struct Visible {
  std::int64_t first;
  std::int64_t last;
  Visible(const AttentionShape& shape, std::int64_t position)
      : first(shape.window == 0 ? 0 : std::max<std::int64_t>(0, position - shape.window + 1)),
        last(position) {}
};

}  // namespace

std::int64_t ReferenceOps::kv_page_bytes(const AttentionShape& shape) const noexcept {
  return 2 * shape.num_kv_heads * shape.page_tokens * shape.head_dim *
         static_cast<std::int64_t>(dtype_bytes(shape.kv_dtype));
}

void ReferenceOps::kv_append(const AttentionShape& shape,
                             std::span<const AttentionSegment> segments, ConstMatrix k,
                             ConstMatrix v, const RopeTables& rotation, KvLayer cache) {
  check_kv_append(shape, segments, k, v, rotation);
  const PagedKv kv(shape, kv_page_bytes(shape), cache);
  std::vector<float> key(static_cast<std::size_t>(k.cols));
  for (const AttentionSegment& segment : segments) {
    for (std::int64_t i = 0; i < segment.num_tokens; ++i) {
      const std::int64_t position = segment.first_position + i;
      std::copy_n(k.row(segment.first_row + i), k.cols, key.data());
      if (rotation.cosine.data != nullptr) {
        const auto at = static_cast<std::int32_t>(position);
        rope({key.data(), 1, k.cols, k.cols}, shape.head_dim, {&at, 1}, rotation,
             RopeDirection::kForward);
      }
      for (std::int64_t head = 0; head < shape.num_kv_heads; ++head) {
        const std::int64_t column = head * shape.head_dim;
        kv.store(segment, KvPart::kKeys, position, head, key.data() + column);
        kv.store(segment, KvPart::kValues, position, head, v.row(segment.first_row + i) + column);
      }
    }
  }
}

void ReferenceOps::attention(const AttentionShape& shape,
                             std::span<const AttentionSegment> segments, ConstMatrix q,
                             KvLayer cache, Matrix out, Matrix lse) {
  check_attention(shape, segments, q, out, lse);
  const PagedKv kv(shape, kv_page_bytes(shape), cache);
  const std::int64_t ratio = shape.num_heads / shape.num_kv_heads;
  std::vector<double> weights;
  for (const AttentionSegment& segment : segments) {
    for (std::int64_t i = 0; i < segment.num_tokens; ++i) {
      const Visible seen(shape, segment.first_position + i);
      const std::int64_t row = segment.first_row + i;
      for (std::int64_t head = 0; head < shape.num_heads; ++head) {
        const float* query = q.row(row) + head * shape.head_dim;
        weights.clear();
        double top = -std::numeric_limits<double>::infinity();
        for (std::int64_t j = seen.first; j <= seen.last; ++j) {
          double score = 0.0;
          for (std::int64_t c = 0; c < shape.head_dim; ++c) {
            score += operand(shape, query[c]) * kv.load(segment, KvPart::kKeys, j, head / ratio, c);
          }
          weights.push_back(score * double{shape.scale});
          top = std::max(top, weights.back());
        }
        double sum = 0.0;
        for (double& weight : weights) {
          weight = std::exp(weight - top);
          sum += weight;
          weight = operand(shape, weight);
        }
        for (std::int64_t c = 0; c < shape.head_dim; ++c) {
          double value = 0.0;
          for (std::int64_t j = seen.first; j <= seen.last; ++j) {
            value += weights[static_cast<std::size_t>(j - seen.first)] *
                     kv.load(segment, KvPart::kValues, j, head / ratio, c);
          }
          out.row(row)[head * shape.head_dim + c] = static_cast<float>(value / sum);
        }
        if (lse.data != nullptr) {
          lse.row(row)[head] = static_cast<float>(top + std::log(sum));
        }
      }
    }
  }
}

void ReferenceOps::attention_backward_windows(const AttentionShape& shape,
                                              std::span<const AttentionSegment> segments,
                                              std::span<const KvGradient> gradients, ConstMatrix q,
                                              KvLayer cache, ConstMatrix out, ConstMatrix lse,
                                              ConstMatrix dout, Matrix dq) {
  check_attention_backward(shape, segments, gradients, q, out, lse, dout, dq);
  const PagedKv kv(shape, kv_page_bytes(shape), cache);
  const std::int64_t ratio = shape.num_heads / shape.num_kv_heads;
  for (std::size_t s = 0; s < segments.size(); ++s) {
    const AttentionSegment& segment = segments[s];
    for (std::int64_t i = 0; i < segment.num_tokens; ++i) {
      const Visible seen(shape, segment.first_position + i);
      const std::int64_t row = segment.first_row + i;
      std::fill_n(dq.row(row), dq.cols, 0.0F);
      for (std::int64_t head = 0; head < shape.num_heads; ++head) {
        const std::int64_t column = head * shape.head_dim;
        const std::int64_t kv_column = head / ratio * shape.head_dim;
        const float* query = q.row(row) + column;
        const float* gradient = dout.row(row) + column;
        double mean = 0.0;  // of the gradient of the weights, under the weights
        for (std::int64_t c = 0; c < shape.head_dim; ++c) {
          mean += double{gradient[c]} * double{out.row(row)[column + c]};
        }
        for (std::int64_t j = seen.first; j <= seen.last; ++j) {
          double score = 0.0;
          double dweight = 0.0;
          for (std::int64_t c = 0; c < shape.head_dim; ++c) {
            score += operand(shape, query[c]) * kv.load(segment, KvPart::kKeys, j, head / ratio, c);
            dweight +=
                operand(shape, gradient[c]) * kv.load(segment, KvPart::kValues, j, head / ratio, c);
          }
          const double weight = std::exp(score * double{shape.scale} - lse.row(row)[head]);
          const double dscore = operand(shape, weight * (dweight - mean) * double{shape.scale});
          for (std::int64_t c = 0; c < shape.head_dim; ++c) {
            const double key = kv.load(segment, KvPart::kKeys, j, head / ratio, c);
            dq.row(row)[column + c] += static_cast<float>(dscore * key);
            gradients[s].dk.row(j)[kv_column + c] +=
                static_cast<float>(dscore * operand(shape, query[c]));
            gradients[s].dv.row(j)[kv_column + c] +=
                static_cast<float>(operand(shape, weight) * operand(shape, gradient[c]));
          }
        }
      }
    }
  }
}

}  // namespace tidemill::engines::host
