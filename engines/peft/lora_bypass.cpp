// SPDX-License-Identifier: Apache-2.0
#include "engines/peft/lora_bypass.hpp"

#include <utility>
#include <vector>

#include "base/check.hpp"

namespace tidemill::engines {
namespace {

// The rank-wide intermediates of one call; small, so allocated per call. Starts as zeros.
class Narrow {
public:
  Narrow(std::int64_t rows, std::int64_t rank)
      : values_(static_cast<std::size_t>(rows * rank)), rows_(rows), rank_(rank) {}
  [[nodiscard]] Matrix view() { return {values_.data(), rows_, rank_, rank_}; }

private:
  std::vector<float> values_;
  std::int64_t rows_;
  std::int64_t rank_;
};

Result<std::unique_ptr<PreparedWeight>> prepare(const TensorMap& tensors, const std::string& name,
                                                WeightUse use, Ops& ops) {
  const auto found = tensors.find(name);
  TIDEMILL_CHECK(found != tensors.end() && found->second.shape.size() == 2) << name;
  const Tensor& tensor = found->second;
  return ops.prepare_weight(
      {tensor.data.bytes().data(), tensor.dtype, tensor.shape[0], tensor.shape[1]}, DType::kF32,
      use);
}

}  // namespace

Result<LoraBypass> LoraBypass::create(const LoraModule& module, const TensorMap& tensors,
                                      WeightUse use, Ops& ops) {
  LoraBypass bypass;
  bypass.rank_ = module.rank;
  bypass.scale_ = module.scale;
  TIDEMILL_ASSIGN_OR_RETURN(bypass.a_, prepare(tensors, lora_a_name(module.path), use, ops));
  TIDEMILL_ASSIGN_OR_RETURN(bypass.b_, prepare(tensors, lora_b_name(module.path), use, ops));
  return bypass;
}

void LoraBypass::forward(ConstMatrix x, Matrix y, Ops& ops) const {
  Narrow u(x.rows, rank_);
  Narrow scaled_u(x.rows, rank_);
  ops.linear(x, *a_, {}, Store::kOverwrite, u.view());
  ops.add_scaled(u.view(), scale_, scaled_u.view());
  ops.linear(scaled_u.view(), *b_, {}, Store::kAdd, y);
}

void LoraBypass::backward(ConstMatrix dy, ConstMatrix x, LoraGradient gradient, const Matrix* dx,
                          Ops& ops) const {
  Narrow u(x.rows, rank_);
  Narrow scaled_u(x.rows, rank_);
  ops.linear(x, *a_, {}, Store::kOverwrite, u.view());
  ops.add_scaled(u.view(), scale_, scaled_u.view());
  ops.linear_backward_weight(dy, scaled_u.view(), gradient.b);

  Narrow dscaled_u(x.rows, rank_);
  Narrow du(x.rows, rank_);
  ops.linear_backward_input(dy, *b_, Store::kOverwrite, dscaled_u.view());
  ops.add_scaled(dscaled_u.view(), scale_, du.view());
  ops.linear_backward_weight(du.view(), x, gradient.a);
  if (dx != nullptr) {
    ops.linear_backward_input(du.view(), *a_, Store::kAdd, *dx);
  }
}

std::int64_t LoraBypass::size_bytes() const noexcept {
  return a_->size_bytes() + b_->size_bytes();
}

}  // namespace tidemill::engines
