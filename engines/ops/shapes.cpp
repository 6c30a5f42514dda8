// SPDX-License-Identifier: Apache-2.0
// Shape checks. A failed check aborts the program, since only model code calls the operations.
#include "engines/ops/shapes.hpp"

#include <cstddef>

#include "base/check.hpp"

namespace tidemill::engines {
namespace {

void check_matrix(host::ConstMatrix m) {
  TIDEMILL_CHECK(m.rows >= 0 && m.cols >= 0 && (m.rows <= 1 || m.stride >= m.cols))
      << m.rows << " x " << m.cols << " stride " << m.stride;
  TIDEMILL_CHECK(m.rows == 0 || m.cols == 0 || m.data != nullptr) << m.rows << " x " << m.cols;
}

void check_shape(host::ConstMatrix m, std::int64_t rows, std::int64_t cols) {
  check_matrix(m);
  TIDEMILL_CHECK(m.rows == rows && m.cols == cols)
      << m.rows << " x " << m.cols << ", expected " << rows << " x " << cols;
}

template <class T>
void check_size(std::span<T> values, std::int64_t size) {
  TIDEMILL_CHECK(std::ssize(values) == size) << values.size() << ", expected " << size;
}

template <class T>
void check_size_or_empty(std::span<T> values, std::int64_t size) {
  TIDEMILL_CHECK(values.empty() || std::ssize(values) == size)
      << values.size() << ", expected 0 or " << size;
}

// Checks that [first, first + count) may be a part of `all` features.
void check_features(std::int64_t first, std::int64_t count, std::int64_t all) {
  const std::int64_t end = first + count;
  TIDEMILL_CHECK(first >= 0 && first % kFeatureStep == 0 && count > 0 && end <= all &&
                 (end == all || end % kFeatureStep == 0))
      << "features " << first << " + " << count << " of " << all;
}

}  // namespace

void check_weight(const WeightView& weight) {
  TIDEMILL_CHECK(weight.out_features > 0 && weight.in_features > 0 && weight.data != nullptr)
      << weight.out_features << " x " << weight.in_features;
  const auto block = static_cast<std::int64_t>(dtype_block_elements(weight.dtype));
  TIDEMILL_CHECK(weight.in_features % block == 0)
      << dtype_name(weight.dtype) << " x " << weight.in_features;
}

void check_weight_rows(WeightRows rows, std::int64_t all) {
  check_features(rows.first, rows.count, all);
}

void check_linear(host::ConstMatrix x, const PreparedWeight& weight, const host::LinearTerm& term) {
  check_shape(x, term.y.rows, weight.in_features());
  check_matrix(term.y);
  check_features(term.first_output, term.y.cols, weight.out_features());
  check_size_or_empty(term.bias, term.y.cols);
}

void check_linear_backward_input(host::ConstMatrix dy, const PreparedWeight& weight,
                                 std::int64_t first_input, host::ConstMatrix dx) {
  check_shape(dy, dx.rows, weight.out_features());
  check_matrix(dx);
  check_features(first_input, dx.cols, weight.in_features());
}

void check_linear_backward_weight(host::ConstMatrix dy, host::ConstMatrix x, host::ConstMatrix dw) {
  check_shape(dy, x.rows, dw.rows);
  check_shape(x, x.rows, dw.cols);
  check_matrix(dw);
}

void check_add_low_rank(host::ConstMatrix x, std::span<const host::LowRankTerm> terms,
                        host::ConstMatrix y) {
  check_shape(x, y.rows, x.cols);
  check_matrix(y);
  std::int64_t done = 0;
  for (const host::LowRankTerm& term : terms) {
    TIDEMILL_CHECK(term.num_rows > 0 && term.first_row >= done &&
                   term.first_row + term.num_rows <= y.rows)
        << "rows " << term.first_row << " + " << term.num_rows << " of " << y.rows;
    done = term.first_row + term.num_rows;
    TIDEMILL_CHECK(term.a->in_features() == x.cols && term.b->out_features() == y.cols &&
                   term.a->out_features() == term.b->in_features())
        << "rank " << term.a->out_features() << " on " << x.cols << " -> " << y.cols;
    check_size_or_empty(term.scaled_c, y.cols);
  }
}

void check_bias_backward(host::ConstMatrix dy, std::span<const float> dbias) {
  check_matrix(dy);
  check_size(dbias, dy.cols);
}

void check_embed(std::span<const std::int32_t> ids, std::int64_t vocabulary, std::int64_t width,
                 host::ConstMatrix rows) {
  check_shape(rows, std::ssize(ids), width);
  for (const std::int32_t id : ids) {
    TIDEMILL_CHECK(id >= 0 && id < vocabulary) << "id " << id << " of " << vocabulary;
  }
}

void check_rms_norm(host::ConstMatrix x, std::span<const float> gain, host::ConstMatrix out,
                    std::span<const float> rstd) {
  check_matrix(x);
  check_shape(out, x.rows, x.cols);
  TIDEMILL_CHECK(x.cols > 0) << x.cols;
  check_size(gain, x.cols);
  check_size_or_empty(rstd, x.rows);
}

void check_rms_norm_backward(host::ConstMatrix dout, host::ConstMatrix x,
                             std::span<const float> gain, std::span<const float> rstd,
                             host::ConstMatrix dx, std::span<const float> dgain) {
  check_rms_norm(x, gain, dx, rstd);
  check_shape(dout, x.rows, x.cols);
  check_size(rstd, x.rows);
  check_size_or_empty(dgain, x.cols);
}

void check_rope(host::ConstMatrix x, std::int64_t head_dim, std::span<const std::int32_t> positions,
                const host::RopeTables& tables) {
  check_matrix(x);
  TIDEMILL_CHECK(head_dim > 0 && head_dim % 2 == 0 && x.cols % head_dim == 0)
      << x.cols << " / " << head_dim;
  check_size(positions, x.rows);
  check_matrix(tables.cosine);
  check_shape(tables.sine, tables.cosine.rows, head_dim / 2);
  TIDEMILL_CHECK(tables.cosine.cols == head_dim / 2) << tables.cosine.cols;
  for (const std::int32_t position : positions) {
    TIDEMILL_CHECK(position >= 0 && position < tables.cosine.rows) << position;
  }
}

void check_same_shape(host::ConstMatrix a, host::ConstMatrix b) {
  check_matrix(a);
  check_shape(b, a.rows, a.cols);
}

void check_halves(host::ConstMatrix wide, std::span<const std::uint16_t> narrow) {
  check_matrix(wide);
  TIDEMILL_CHECK(std::ssize(narrow) == wide.rows * wide.cols) << narrow.size();
}

void check_scale_columns(host::ConstMatrix x, std::span<const float> factors,
                         std::span<const float> bias, host::ConstMatrix out) {
  check_same_shape(x, out);
  TIDEMILL_CHECK(static_cast<std::int64_t>(factors.size()) == x.cols)
      << factors.size() << " factors of " << x.cols << " columns";
  TIDEMILL_CHECK(bias.empty() || bias.size() == factors.size())
      << bias.size() << " biases of " << x.cols << " columns";
}

void check_scale_columns_backward(host::ConstMatrix dout, host::ConstMatrix x,
                                  std::span<const float> dfactors) {
  check_scale_columns(dout, dfactors, {}, x);
}

void check_attention_shape(const AttentionShape& shape) {
  TIDEMILL_CHECK(shape.num_kv_heads > 0 && shape.num_heads > 0 &&
                 shape.num_heads % shape.num_kv_heads == 0)
      << shape.num_heads << " heads, " << shape.num_kv_heads << " kv heads";
  TIDEMILL_CHECK(shape.head_dim > 0 && shape.page_tokens > 0 && shape.window >= 0)
      << shape.head_dim << " " << shape.page_tokens << " " << shape.window;
  TIDEMILL_CHECK(shape.kv_dtype == DType::kF32 || shape.kv_dtype == DType::kBF16)
      << dtype_name(shape.kv_dtype);
}

void check_segments(const AttentionShape& shape, std::span<const AttentionSegment> segments,
                    std::int64_t rows) {
  for (const AttentionSegment& segment : segments) {
    TIDEMILL_CHECK(segment.first_row >= 0 && segment.num_tokens >= 0 &&
                   segment.first_row + segment.num_tokens <= rows)
        << segment.first_row << " + " << segment.num_tokens << " of " << rows;
    TIDEMILL_CHECK(segment.first_position >= 0) << segment.first_position;
    TIDEMILL_CHECK(std::ssize(segment.pages) * shape.page_tokens >=
                   segment.first_position + segment.num_tokens)
        << segment.pages.size() << " pages of " << shape.page_tokens << " for "
        << segment.first_position << " + " << segment.num_tokens;
  }
}

void check_kv_append(const AttentionShape& shape, std::span<const AttentionSegment> segments,
                     host::ConstMatrix k, host::ConstMatrix v, const host::RopeTables& rotation) {
  check_attention_shape(shape);
  check_shape(k, v.rows, shape.num_kv_heads * shape.head_dim);
  check_shape(v, v.rows, shape.num_kv_heads * shape.head_dim);
  check_segments(shape, segments, k.rows);
  if (rotation.cosine.data == nullptr) {
    return;
  }
  check_shape(rotation.cosine, rotation.sine.rows, shape.head_dim / 2);
  check_shape(rotation.sine, rotation.cosine.rows, shape.head_dim / 2);
  for (const AttentionSegment& segment : segments) {
    const std::int64_t end = segment.first_position + segment.num_tokens;
    TIDEMILL_CHECK(end <= rotation.cosine.rows) << end;
  }
}

void check_attention(const AttentionShape& shape, std::span<const AttentionSegment> segments,
                     host::ConstMatrix q, host::ConstMatrix out, host::ConstMatrix lse) {
  check_attention_shape(shape);
  check_shape(q, out.rows, shape.num_heads * shape.head_dim);
  check_shape(out, out.rows, shape.num_heads * shape.head_dim);
  if (lse.data != nullptr) {
    check_shape(lse, out.rows, shape.num_heads);
  }
  check_segments(shape, segments, q.rows);
}

void check_attention_backward(const AttentionShape& shape,
                              std::span<const AttentionSegment> segments,
                              std::span<const host::KvGradient> gradients, host::ConstMatrix q,
                              host::ConstMatrix out, host::ConstMatrix lse, host::ConstMatrix dout,
                              host::ConstMatrix dq) {
  TIDEMILL_CHECK(lse.data != nullptr) << "attention was computed without lse";
  check_attention(shape, segments, q, out, lse);
  check_same_shape(q, dout);
  check_same_shape(q, dq);
  TIDEMILL_CHECK(gradients.size() == segments.size())
      << gradients.size() << " gradients of keys and values for " << segments.size() << " segments";
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const std::int64_t positions = segments[i].first_position + segments[i].num_tokens;
    for (const host::Matrix& gradient : {gradients[i].dk, gradients[i].dv}) {
      TIDEMILL_CHECK(gradient.rows >= positions) << gradient.rows << " rows for " << positions;
      check_shape(gradient, gradient.rows, shape.num_kv_heads * shape.head_dim);
    }
  }
}

void check_log_softmax_gather(host::ConstMatrix logits, std::span<const std::int32_t> targets,
                              std::span<const float> logprobs, std::span<const float> entropies) {
  check_matrix(logits);
  check_size(targets, logits.rows);
  check_size(logprobs, logits.rows);
  check_size_or_empty(entropies, logits.rows);
  for (const std::int32_t target : targets) {
    TIDEMILL_CHECK(target >= -1 && target < logits.cols) << target << " of " << logits.cols;
  }
}

}  // namespace tidemill::engines
