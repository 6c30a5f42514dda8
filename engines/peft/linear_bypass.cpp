// SPDX-License-Identifier: Apache-2.0
#include "engines/peft/linear_bypass.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.hpp"
#include "base/tensor/float_tensor.hpp"
#include "engines/peft/scratch_rows.hpp"

namespace tidemill::engines {
namespace {

Result<std::unique_ptr<PreparedWeight>> prepare(const Tensor& tensor, WeightUse use, Ops& ops) {
  TIDEMILL_CHECK(tensor.shape.size() == 2);
  return ops.prepare_weight(weight_view(tensor), DType::kF32, use);
}

std::vector<float> floats_of(const TensorMap& tensors, const std::string& name) {
  return name.empty() ? std::vector<float>() : float_values(tensors.at(name));
}

Status prepare(const TensorMap& tensors, const std::string& name, PreparedVector& vector,
               Ops& ops) {
  TIDEMILL_ASSIGN_OR_RETURN(vector, ops.prepare_vector(floats_of(tensors, name)));
  return {};
}

}  // namespace

Result<LowRank> LowRank::create(const Tensor& a, const Tensor& b, const Tensor* c, float scale,
                                WeightUse use, Ops& ops) {
  LowRank product;
  product.scale_ = scale;
  TIDEMILL_ASSIGN_OR_RETURN(product.a_, prepare(a, use, ops));
  TIDEMILL_ASSIGN_OR_RETURN(product.b_, prepare(b, use, ops));
  if (c != nullptr) {
    std::vector<float> scaled_c = float_values(*c);
    std::ranges::for_each(scaled_c, [scale](float& value) { value *= scale; });
    TIDEMILL_ASSIGN_OR_RETURN(product.scaled_c_, ops.prepare_vector(scaled_c));
  }
  return product;
}

void LowRank::scaled_product(ConstMatrix x, Matrix scaled_u, Ops& ops) const {
  ops.linear(x, *a_, {}, Store::kOverwrite, scaled_u);
  ops.scale(scale_, scaled_u);
}

void LowRank::forward(ConstMatrix x, Matrix scaled_u, Matrix y, Ops& ops) const {
  scaled_product(x, scaled_u, ops);
  ops.linear(scaled_u, *b_, scaled_c_, Store::kAdd, y);
}

void LowRank::backward(ConstMatrix dy, ConstMatrix x, ConstMatrix scaled_u,
                       const LinearGradient& gradient, const Matrix* dx, Ops& ops) const {
  ScratchRows recomputed;
  if (scaled_u.is_null()) {
    recomputed = ScratchRows(x.rows, rank(), ops);
    scaled_product(x, recomputed.view(), ops);
    scaled_u = recomputed.view();
  }
  ops.linear_backward_weight(dy, scaled_u, gradient.b);
  if (!scaled_c_.empty()) {
    ScratchRows scaled_dy(dy.rows, dy.cols, ops);
    ops.fill(0.0F, scaled_dy.view());
    ops.add_scaled(dy, scale_, scaled_dy.view());
    ops.bias_backward(scaled_dy.view(), gradient.c);
  }

  ScratchRows du(x.rows, rank(), ops);
  ops.linear_backward_input(dy, *b_, Store::kOverwrite, du.view());
  ops.scale(scale_, du.view());
  ops.linear_backward_weight(du.view(), x, gradient.a);
  if (dx != nullptr) {
    ops.linear_backward_input(du.view(), *a_, Store::kAdd, *dx);
  }
}

std::int64_t LowRank::size_bytes() const noexcept {
  return a_->size_bytes() + b_->size_bytes() + scaled_c_.size_bytes();
}

Result<LinearBypass> LinearBypass::create(const AdaptedModule& module, const TensorMap& tensors,
                                          const BaseWeight& base, WeightUse use, Ops& ops) {
  LinearBypass bypass;
  if (!module.weight.empty()) {
    TIDEMILL_ASSIGN_OR_RETURN(bypass.weight_, prepare(tensors.at(module.weight), use, ops));
  }
  TIDEMILL_RETURN_IF_ERROR(prepare(tensors, module.bias, bypass.bias_, ops));
  TIDEMILL_RETURN_IF_ERROR(prepare(tensors, module.input_scale, bypass.input_scale_, ops));
  TIDEMILL_RETURN_IF_ERROR(prepare(tensors, module.output_scale, bypass.output_scale_, ops));
  if (!module.a.empty()) {
    const Tensor& a = tensors.at(module.a);
    const Tensor& b = tensors.at(module.b);
    const Tensor* c = module.c.empty() ? nullptr : &tensors.at(module.c);
    TIDEMILL_ASSIGN_OR_RETURN(LowRank product, LowRank::create(a, b, c, module.scale, use, ops));
    bypass.low_rank_ = std::make_unique<LowRank>(std::move(product));
  }
  if (!module.magnitude.empty()) {
    TIDEMILL_CHECK(base.tensor != nullptr) << module.path << ": DoRA without the base's tensor";
    std::vector<float> scale = floats_of(tensors, module.magnitude);
    std::vector<float> norms =
        adapted_row_norms(module, base, tensors.at(module.a), tensors.at(module.b));
    for (std::size_t o = 0; o < scale.size(); ++o) {
      scale[o] /= norms[o];  // exactly 1 for a new adapter
      norms[o] = 1.0F / norms[o];
    }
    TIDEMILL_ASSIGN_OR_RETURN(bypass.output_scale_, ops.prepare_vector(scale));
    TIDEMILL_ASSIGN_OR_RETURN(bypass.inverse_norms_, ops.prepare_vector(norms));
  }
  return bypass;
}

bool LinearBypass::only_adds() const noexcept {
  return low_rank_ != nullptr && weight_ == nullptr && bias_.empty() && input_scale_.empty() &&
         output_scale_.empty();
}

bool LinearBypass::needs_input() const noexcept {
  return low_rank_ != nullptr || weight_ != nullptr || !input_scale_.empty() ||
         !output_scale_.empty();
}

void LinearBypass::product(const BaseLinear& base, ConstMatrix x, Store store, Matrix y,
                           Ops& ops) const {
  const bool bias_later = !inverse_norms_.empty();
  ops.linear(x, weight(base), bias_later ? ConstVector() : bias(base), store, y);
  if (low_rank_ != nullptr) {
    ScratchRows scaled_u(x.rows, low_rank_->rank(), ops);
    low_rank_->forward(x, scaled_u.view(), y, ops);
  }
}

void LinearBypass::forward(const BaseLinear& base, ConstMatrix x, Store store, Matrix y,
                           Ops& ops) const {
  ScratchRows scaled_x;
  if (!input_scale_.empty()) {
    scaled_x = ScratchRows(x.rows, x.cols, ops);
    ops.scale_columns(x, input_scale_, {}, Store::kOverwrite, scaled_x.view());
    x = scaled_x.view();
  }
  if (output_scale_.empty()) {
    product(base, x, store, y, ops);
    return;
  }
  ScratchRows unscaled(y.rows, y.cols, ops);
  product(base, x, Store::kOverwrite, unscaled.view(), ops);
  const auto unscaled_bias = inverse_norms_.empty() ? ConstVector() : bias(base);
  ops.scale_columns(unscaled.view(), output_scale_, unscaled_bias, store, y);
}

// Adds the gradient of the output scale, for which the product is computed again.
void LinearBypass::scale_backward(const BaseLinear& base, ConstMatrix dy, ConstMatrix x,
                                  const LinearGradient& gradient, Ops& ops) const {
  ScratchRows unscaled(dy.rows, dy.cols, ops);
  product(base, x, Store::kOverwrite, unscaled.view(), ops);
  if (inverse_norms_.empty()) {
    ops.scale_columns_backward(dy, unscaled.view(), gradient.output_scale);
    return;
  }
  ops.scale_columns(unscaled.view(), inverse_norms_, {}, Store::kOverwrite, unscaled.view());
  ops.scale_columns_backward(dy, unscaled.view(), gradient.magnitude);
}

void LinearBypass::backward(const BaseLinear& base, ConstMatrix dy, ConstMatrix x,
                            ConstMatrix scaled_u, Store store, const Matrix* dx,
                            const LinearGradient& gradient, Ops& ops) const {
  const ConstMatrix unscaled_x = x;
  ScratchRows scaled_x;
  ScratchRows dscaled_x;
  Matrix inner_dx;
  if (!input_scale_.empty()) {
    scaled_x = ScratchRows(x.rows, x.cols, ops);
    ops.scale_columns(x, input_scale_, {}, Store::kOverwrite, scaled_x.view());
    x = scaled_x.view();
    dscaled_x = ScratchRows(x.rows, x.cols, ops);
    inner_dx = dscaled_x.view();
  } else if (dx != nullptr) {
    inner_dx = *dx;
  }

  if (!bias_.empty()) {
    ops.bias_backward(dy, gradient.bias);
  }
  ScratchRows dproduct;
  if (!output_scale_.empty()) {
    scale_backward(base, dy, x, gradient, ops);
    dproduct = ScratchRows(dy.rows, dy.cols, ops);
    ops.scale_columns(dy, output_scale_, {}, Store::kOverwrite, dproduct.view());
    dy = dproduct.view();
  }
  if (!inner_dx.is_null()) {
    ops.linear_backward_input(dy, weight(base), input_scale_.empty() ? store : Store::kOverwrite,
                              inner_dx);
  }
  if (weight_ != nullptr) {
    ops.linear_backward_weight(dy, x, gradient.weight);
  }
  if (low_rank_ != nullptr) {
    low_rank_->backward(dy, x, scaled_u, gradient, inner_dx.is_null() ? nullptr : &inner_dx, ops);
  }
  if (!input_scale_.empty()) {
    ops.scale_columns_backward(inner_dx, unscaled_x, gradient.input_scale);
    if (dx != nullptr) {
      ops.scale_columns(inner_dx, input_scale_, {}, store, *dx);
    }
  }
}

std::int64_t LinearBypass::size_bytes() const noexcept {
  return (weight_ != nullptr ? weight_->size_bytes() : 0) +
         (low_rank_ != nullptr ? low_rank_->size_bytes() : 0) + bias_.size_bytes() +
         input_scale_.size_bytes() + output_scale_.size_bytes() + inverse_norms_.size_bytes();
}

// No call holds more than a copy of its input and of that copy's gradient, two of its output, a
// scaled output gradient, and two low-rank products.
std::int64_t scratch_bytes(const AdapterSpec& spec, const BypassRows& rows) {
  std::int64_t bytes = 0;
  for (const AdaptedModule& module : spec) {
    const std::int64_t inputs = module.input_scale.empty() ? 0 : 2;
    const std::int64_t outputs = (module.output_scale.empty() && module.magnitude.empty() ? 0 : 2) +
                                 (module.c.empty() ? 0 : 1);
    const std::int64_t count = module.path == kHeadPath ? rows.head : rows.layers;
    const auto part = [count](std::int64_t cols) {
      return ScratchStack::padded_bytes(count * cols * std::int64_t{sizeof(float)});
    };
    bytes = std::max(bytes, inputs * part(module.in_features) +
                                outputs * part(module.out_features) + 2 * part(module.rank));
  }
  return bytes;
}

}  // namespace tidemill::engines
