// SPDX-License-Identifier: Apache-2.0
#include "engines/peft/embedding_bypass.hpp"

#include <utility>

#include "base/tensor/float_tensor.hpp"
#include "engines/peft/scratch_rows.hpp"

namespace tidemill::engines {
namespace {

// Returns the transpose (V, R) of A (R, V).
Tensor transposed(const Tensor& a) {
  const std::vector<float> values = float_values(a);
  const auto rank = static_cast<std::size_t>(a.shape[0]);
  const auto vocabulary = static_cast<std::size_t>(a.shape[1]);
  std::vector<float> rows(values.size());
  for (std::size_t r = 0; r < rank; ++r) {
    for (std::size_t v = 0; v < vocabulary; ++v) {
      rows[v * rank + r] = values[r * vocabulary + v];
    }
  }
  return {DType::kF32, {a.shape[1], a.shape[0]}, Buffer::adopt(std::move(rows), DType::kF32)};
}

}  // namespace

Result<EmbeddingBypass> EmbeddingBypass::create(const AdaptedModule& module,
                                                const TensorMap& tensors, WeightUse use, Ops& ops) {
  EmbeddingBypass bypass;
  if (!module.weight.empty()) {
    TIDEMILL_ASSIGN_OR_RETURN(bypass.table_, ops.prepare_table(tensors.at(module.weight)));
    return bypass;
  }
  bypass.rank_ = module.rank;
  bypass.scale_ = module.scale;
  TIDEMILL_ASSIGN_OR_RETURN(bypass.transposed_a_,
                            ops.prepare_table(transposed(tensors.at(module.a))));
  TIDEMILL_ASSIGN_OR_RETURN(
      bypass.b_, ops.prepare_weight(weight_view(tensors.at(module.b)), DType::kF32, use));
  return bypass;
}

void EmbeddingBypass::add(IndexList ids, Matrix out, Ops& ops) const {
  ScratchRows scaled_u(out.rows, rank_, ops);
  ops.embed(ids, *transposed_a_, scaled_u.view());
  ops.scale(scale_, scaled_u.view());
  ops.linear(scaled_u.view(), *b_, {}, Store::kAdd, out);
}

void EmbeddingBypass::forward(IndexList ids, Matrix out, Ops& ops) const {
  ops.embed(ids, *table_, out);
}

void EmbeddingBypass::backward(IndexList ids, ConstMatrix dout, const EmbeddingGradient& gradient,
                               Ops& ops) const {
  if (b_ == nullptr) {
    ops.embed_backward(ids, dout, gradient.table);
    return;
  }
  ScratchRows scaled_u(dout.rows, rank_, ops);
  ops.embed(ids, *transposed_a_, scaled_u.view());
  ops.scale(scale_, scaled_u.view());
  ops.linear_backward_weight(dout, scaled_u.view(), gradient.b);
  ScratchRows du(dout.rows, rank_, ops);
  ops.linear_backward_input(dout, *b_, Store::kOverwrite, du.view());
  ops.scale(scale_, du.view());
  ops.embed_backward(ids, du.view(), gradient.transposed_a);
}

std::int64_t EmbeddingBypass::size_bytes() const noexcept {
  return (table_ != nullptr ? table_->size_bytes() : 0) +
         (transposed_a_ != nullptr ? transposed_a_->size_bytes() : 0) +
         (b_ != nullptr ? b_->size_bytes() : 0);
}

}  // namespace tidemill::engines
