// SPDX-License-Identifier: Apache-2.0
#include "engines/peft/embedding_bypass.hpp"

#include <utility>

#include "base/tensor/float_tensor.hpp"
#include "engines/peft/scratch_rows.hpp"

namespace tidemill::engines {
namespace {

// Returns the transpose (V, R) of A (R, V).
std::vector<float> transposed(const Tensor& a) {
  const std::vector<float> values = float_values(a);
  const auto rank = static_cast<std::size_t>(a.shape[0]);
  const auto vocabulary = static_cast<std::size_t>(a.shape[1]);
  std::vector<float> rows(values.size());
  for (std::size_t r = 0; r < rank; ++r) {
    for (std::size_t v = 0; v < vocabulary; ++v) {
      rows[v * rank + r] = values[r * vocabulary + v];
    }
  }
  return rows;
}

}  // namespace

Result<EmbeddingBypass> EmbeddingBypass::create(const AdaptedModule& module,
                                                const TensorMap& tensors, WeightUse use, Ops& ops) {
  EmbeddingBypass bypass;
  if (!module.weight.empty()) {
    bypass.table_ = tensors.at(module.weight);
    return bypass;
  }
  bypass.vocabulary_ = module.in_features;
  bypass.rank_ = module.rank;
  bypass.scale_ = module.scale;
  bypass.transposed_a_ = transposed(tensors.at(module.a));
  TIDEMILL_ASSIGN_OR_RETURN(
      bypass.b_, ops.prepare_weight(weight_view(tensors.at(module.b)), DType::kF32, use));
  return bypass;
}

WeightView EmbeddingBypass::transposed_a() const noexcept {
  return {transposed_a_.data(), DType::kF32, vocabulary_, rank_};
}

void EmbeddingBypass::add(std::span<const std::int32_t> ids, Matrix out, Ops& ops) const {
  ScratchRows scaled_u(out.rows, rank_);
  ops.embed(ids, transposed_a(), scaled_u.view());
  ops.scale(scale_, scaled_u.view());
  ops.linear(scaled_u.view(), *b_, {}, Store::kAdd, out);
}

void EmbeddingBypass::forward(std::span<const std::int32_t> ids, Matrix out, Ops& ops) const {
  ops.embed(ids, {table_.data.bytes().data(), table_.dtype, table_.shape[0], table_.shape[1]}, out);
}

void EmbeddingBypass::backward(std::span<const std::int32_t> ids, ConstMatrix dout,
                               const EmbeddingGradient& gradient, Ops& ops) const {
  if (b_ == nullptr) {
    ops.embed_backward(ids, dout, gradient.table);
    return;
  }
  ScratchRows scaled_u(dout.rows, rank_);
  ops.embed(ids, transposed_a(), scaled_u.view());
  ops.scale(scale_, scaled_u.view());
  ops.linear_backward_weight(dout, scaled_u.view(), gradient.b);
  ScratchRows du(dout.rows, rank_);
  ops.linear_backward_input(dout, *b_, Store::kOverwrite, du.view());
  ops.scale(scale_, du.view());
  ops.embed_backward(ids, du.view(), gradient.transposed_a);
}

std::int64_t EmbeddingBypass::size_bytes() const noexcept {
  return static_cast<std::int64_t>(table_.data.size_bytes()) +
         static_cast<std::int64_t>(transposed_a_.size() * sizeof(float)) +
         (b_ != nullptr ? b_->size_bytes() : 0);
}

}  // namespace tidemill::engines
