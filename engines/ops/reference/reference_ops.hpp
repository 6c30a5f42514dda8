// SPDX-License-Identifier: Apache-2.0
// The reference implementation of every operation.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "engines/ops/host/host_ops.hpp"

namespace tidemill::engines::host {

/// Holds a weight as plain floats, O x I. The values are already rounded or quantized to the
/// compute type.
class ReferenceWeight final : public PreparedWeight {
public:
  ReferenceWeight(const WeightView& view, DType compute, WeightUse use);

  [[nodiscard]] std::int64_t out_features() const noexcept override { return out_features_; }
  [[nodiscard]] std::int64_t in_features() const noexcept override { return in_features_; }
  [[nodiscard]] std::int64_t size_bytes() const noexcept override {
    return std::ssize(values_) * static_cast<std::int64_t>(sizeof(float));
  }
  [[nodiscard]] DType compute() const noexcept { return compute_; }
  [[nodiscard]] WeightUse use() const noexcept { return use_; }
  [[nodiscard]] float at(std::int64_t out, std::int64_t in) const {
    return values_[static_cast<std::size_t>(out * in_features_ + in)];
  }

private:
  std::int64_t out_features_;
  std::int64_t in_features_;
  DType compute_;
  WeightUse use_;
  std::vector<float> values_;
};

/// Implements the operations as plain loops. A page of the cache holds keys, then values, each as
/// [K][page_tokens][C].
class ReferenceOps final : public Ops {
public:
  [[nodiscard]] std::string_view description() const noexcept override {
    return "reference (plain loops, one thread)";
  }
  void parallel_for(std::int64_t count, std::int64_t /*item_cost*/, const LoopBody& body) override {
    if (count > 0) {
      body(0, 0, count);
    }
  }
  [[nodiscard]] std::int64_t max_parts() const noexcept override { return 1; }
  [[nodiscard]] Result<std::unique_ptr<PreparedWeight>> prepare_weight(const WeightView& weight,
                                                                       DType compute,
                                                                       WeightUse use) override;
  void linear_group(ConstMatrix x, std::span<const LinearTerm> terms, Store store) override;
  void linear_backward_input(ConstMatrix dy, const PreparedWeight& weight, std::int64_t first_input,
                             Store store, Matrix dx) override;
  void add_low_rank(ConstMatrix x, std::span<const LowRankTerm> terms, Matrix y) override;
  void linear_backward_weight(ConstMatrix dy, ConstMatrix x, Matrix dw) override;
  void bias_backward(ConstMatrix dy, std::span<float> dbias) override;
  void embed(std::span<const std::int32_t> ids, const WeightView& table, Matrix out) override;
  void embed_tied(std::span<const std::int32_t> ids, const PreparedWeight& weight,
                  Matrix out) override;
  void embed_backward(std::span<const std::int32_t> ids, ConstMatrix dout, Matrix dtable) override;
  void rms_norm(ConstMatrix x, std::span<const float> gain, float eps, Matrix out,
                std::span<float> rstd) override;
  void rms_norm_backward(ConstMatrix dout, ConstMatrix x, std::span<const float> gain,
                         std::span<const float> rstd, Store store, Matrix dx,
                         std::span<float> dgain) override;
  void rope(Matrix x, std::int64_t head_dim, std::span<const std::int32_t> positions,
            const RopeTables& tables, RopeDirection direction) override;
  void swiglu(ConstMatrix gate, ConstMatrix up, Matrix out) override;
  void swiglu_backward(ConstMatrix dout, ConstMatrix gate, ConstMatrix up, Matrix dgate,
                       Matrix dup) override;
  void add_scaled(ConstMatrix x, float factor, Matrix y) override;
  void scale(float factor, Matrix x) override;
  void scale_columns(ConstMatrix x, std::span<const float> factors, std::span<const float> bias,
                     Store store, Matrix out) override;
  void scale_columns_backward(ConstMatrix dout, ConstMatrix x, std::span<float> dfactors) override;
  void narrow(ConstMatrix x, std::span<std::uint16_t> out) override;
  void widen(std::span<const std::uint16_t> x, Matrix out) override;
  void adamw(const AdamWFactors<float>& factors, const AdamWTensor<float>& tensor) override;
  [[nodiscard]] std::int64_t kv_page_bytes(const AttentionShape& shape) const noexcept override;
  void kv_append(const AttentionShape& shape, std::span<const AttentionSegment> segments,
                 ConstMatrix k, ConstMatrix v, const RopeTables& rotation, KvLayer cache) override;
  void attention(const AttentionShape& shape, std::span<const AttentionSegment> segments,
                 ConstMatrix q, KvLayer cache, Matrix out, Matrix lse) override;
  void attention_backward_windows(const AttentionShape& shape,
                                  std::span<const AttentionSegment> segments,
                                  std::span<const KvGradient> gradients, ConstMatrix q,
                                  KvLayer cache, ConstMatrix out, ConstMatrix lse, ConstMatrix dout,
                                  Matrix dq) override;
  void log_softmax_gather(ConstMatrix logits, std::span<const std::int32_t> targets,
                          float inv_temperature, std::span<float> logprobs,
                          std::span<float> entropies) override;
  void log_softmax_backward(Matrix logits, std::span<const std::int32_t> targets,
                            float inv_temperature, std::span<const float> dlogprobs,
                            std::span<const float> dentropies) override;
};

}  // namespace tidemill::engines::host
