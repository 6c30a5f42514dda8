// SPDX-License-Identifier: Apache-2.0
// Linear layers of the reference backend.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/check.hpp"
#include "engines/ops/host/host_backend.hpp"
#include "engines/ops/reference/factory.hpp"
#include "engines/ops/reference/reference_ops.hpp"
#include "engines/ops/shapes.hpp"
#include "engines/ops/weight_elements.hpp"

namespace tidemill::engines::host {
namespace {

const ReferenceWeight& own(const PreparedWeight& weight) {
  const auto* mine = dynamic_cast<const ReferenceWeight*>(&weight);
  TIDEMILL_CHECK(mine != nullptr) << "the weight belongs to another backend";
  return *mine;
}

float as_operand(float x, DType compute) {
  return compute == DType::kBF16 ? bf16_to_float(float_to_bf16(x)) : x;
}

// Rounds a row as products with weights of type `compute` do. For block int8, each block of the row
// has the scale max|x| / 127.
std::vector<float> row_operand(const float* row, std::int64_t size, DType compute) {
  std::vector<float> operand(row, row + size);
  for (float& x : operand) {
    x = as_operand(x, compute);
  }
  constexpr std::size_t kBlock = BlockI8::kElements;
  for (std::size_t first = 0; compute == DType::kBlockI8 && first < operand.size();
       first += kBlock) {
    const auto block = std::span(operand).subspan(first, kBlock);
    float max_abs = 0.0F;
    for (const float x : block) {
      max_abs = std::max(max_abs, std::abs(x));
    }
    const float scale = max_abs / 127.0F;
    const float inverse = std::isfinite(1.0F / scale) ? 1.0F / scale : 0.0F;
    for (float& x : block) {
      x = std::nearbyint(x * inverse) * scale;
    }
  }
  return operand;
}

// Returns the type that gradients are rounded to before products with weights of type `compute`.
DType gradient_operand(DType compute) {
  return compute == DType::kBlockI8 ? DType::kF32 : compute;
}

}  // namespace

ReferenceWeight::ReferenceWeight(const WeightView& view, DType compute, WeightUse use)
    : out_features_(view.out_features),
      in_features_(view.in_features),
      // NF4 represents a bfloat16 weight.
      compute_(compute == DType::kNf4 ? DType::kBF16 : compute),
      use_(use),
      values_(static_cast<std::size_t>(view.out_features * view.in_features)) {
  if (compute == DType::kNf4) {
    const Buffer quantized = nf4_weight(view);
    widen_nf4(nf4_parts(quantized.bytes().data(), std::ssize(values_)), 0, values_);
    for (float& value : values_) {
      value = as_operand(value, DType::kBF16);
    }
    return;
  }
  for (std::size_t i = 0; i < values_.size(); ++i) {
    values_[i] = as_operand(weight_element(view, static_cast<std::int64_t>(i)), compute);
  }
  constexpr std::size_t kBlock = BlockI8::kElements;
  const bool to_blocks = compute == DType::kBlockI8 && view.dtype != DType::kBlockI8;
  for (std::size_t first = 0; to_blocks && first < values_.size(); first += kBlock) {
    const auto values = std::span(values_).subspan(first).first<kBlock>();
    const BlockI8 block = quantize_block(values);
    for (std::size_t i = 0; i < kBlock; ++i) {
      values[i] = block_element(&block, static_cast<std::int64_t>(i));
    }
  }
}

Result<std::unique_ptr<PreparedWeight>> ReferenceOps::prepare_weight(const WeightView& weight,
                                                                     DType compute, WeightUse use) {
  check_weight(weight);
  TIDEMILL_RETURN_IF_ERROR(check_preparable(weight, compute));
  return std::unique_ptr<PreparedWeight>(std::make_unique<ReferenceWeight>(weight, compute, use));
}

void ReferenceOps::linear_group(ConstMatrix x, std::span<const LinearTerm> terms, Store store) {
  for (const LinearTerm& term : terms) {
    const ReferenceWeight& w = own(*term.weight);
    check_linear(x, w, term);
    for (std::int64_t t = 0; t < term.y.rows; ++t) {
      const std::vector<float> row = row_operand(x.row(t), x.cols, w.compute());
      for (std::int64_t o = 0; o < term.y.cols; ++o) {
        double sum = 0.0;
        for (std::int64_t i = 0; i < x.cols; ++i) {
          sum += double{row[static_cast<std::size_t>(i)]} * double{w.at(term.first_output + o, i)};
        }
        const double total = term.bias.empty() ? sum : sum + term.bias[static_cast<std::size_t>(o)];
        float& out = term.y.row(t)[o];
        out = static_cast<float>(store == Store::kAdd ? out + total : total);
      }
    }
  }
}

void ReferenceOps::add_low_rank(ConstMatrix x, std::span<const LowRankTerm> terms, Matrix y) {
  check_add_low_rank(x, terms, y);
  for (const LowRankTerm& term : terms) {
    const std::int64_t rank = term.a->out_features();
    std::vector<float> products(static_cast<std::size_t>(term.num_rows * rank));
    const Matrix u{products.data(), term.num_rows, rank, rank};
    linear(x.slice_rows(term.first_row, term.num_rows), *term.a, {}, Store::kOverwrite, u);
    scale(term.scale, u);
    linear(u, *term.b, term.scaled_c, Store::kAdd, y.slice_rows(term.first_row, term.num_rows));
  }
}

void ReferenceOps::linear_backward_input(ConstMatrix dy, const PreparedWeight& weight,
                                         std::int64_t first_input, Store store, Matrix dx) {
  const ReferenceWeight& w = own(weight);
  TIDEMILL_CHECK(w.use() == WeightUse::kForwardAndBackward) << "weight prepared for forward only";
  check_linear_backward_input(dy, w, first_input, dx);
  for (std::int64_t t = 0; t < dx.rows; ++t) {
    const std::vector<float> row = row_operand(dy.row(t), dy.cols, gradient_operand(w.compute()));
    for (std::int64_t i = 0; i < dx.cols; ++i) {
      double sum = 0.0;
      for (std::int64_t o = 0; o < dy.cols; ++o) {
        sum += double{row[static_cast<std::size_t>(o)]} * double{w.at(o, first_input + i)};
      }
      float& out = dx.row(t)[i];
      out = static_cast<float>(store == Store::kAdd ? out + sum : sum);
    }
  }
}

void ReferenceOps::linear_backward_weight(ConstMatrix dy, ConstMatrix x, Matrix dw) {
  check_linear_backward_weight(dy, x, dw);
  // Rounded after every row, so that a later call continues exactly where an earlier one ended
  // (R2).
  for (std::int64_t t = 0; t < x.rows; ++t) {
    for (std::int64_t o = 0; o < dw.rows; ++o) {
      for (std::int64_t i = 0; i < dw.cols; ++i) {
        dw.row(o)[i] += dy.row(t)[o] * x.row(t)[i];
      }
    }
  }
}

void ReferenceOps::bias_backward(ConstMatrix dy, std::span<float> dbias) {
  check_bias_backward(dy, dbias);
  for (std::int64_t t = 0; t < dy.rows; ++t) {
    for (std::int64_t o = 0; o < dy.cols; ++o) {
      dbias[static_cast<std::size_t>(o)] += dy.row(t)[o];
    }
  }
}

}  // namespace tidemill::engines::host

namespace tidemill::engines {
namespace {

std::int64_t floats_in(const std::vector<WeightSize>& weights) {
  std::int64_t floats = 0;
  for (const WeightSize& weight : weights) {
    floats += weight.out_features * weight.in_features;
  }
  return floats;
}

// It holds every weight as floats, and rounds rows one at a time.
class ReferenceBackend final : public BackendFactory {
public:
  std::string_view name() const noexcept override { return "reference"; }
  BackendTraits traits() const noexcept override { return {}; }
  Result<std::unique_ptr<Ops>> open(Workers& /*workers*/,
                                    const DeviceMemoryLimits& limits) const override {
    return host::make_backend(make_reference_host_ops(), limits);
  }
  std::int64_t weight_bytes(const WeightSizes& weights) const override {
    return (floats_in(weights.permanent) + weights.live_sets * floats_in(weights.replaced)) *
           std::int64_t{sizeof(float)};
  }
  std::int64_t kv_page_bytes(const AttentionShape& shape) const override {
    return host::ReferenceOps().kv_page_bytes(shape);
  }
  std::int64_t rounded_row_bytes(DType /*dtype*/, std::int64_t /*cols*/) const override {
    return 0;
  }
  std::int64_t weight_gradient_bytes(std::int64_t /*rows*/, std::int64_t /*cols*/) const override {
    return 0;
  }
};

}  // namespace

const BackendFactory& reference_backend() {
  static const ReferenceBackend backend;
  return backend;
}

std::unique_ptr<host::Ops> make_reference_host_ops() {
  return std::make_unique<host::ReferenceOps>();
}

std::unique_ptr<Ops> make_reference_ops() {
  return host::make_backend(make_reference_host_ops());
}

}  // namespace tidemill::engines
