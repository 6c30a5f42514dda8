// SPDX-License-Identifier: Apache-2.0
// The CPU implementation of every operation: it checks arguments, divides the work among workers
// and calls kernels.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engines/ops/cpu/kernels.hpp"
#include "engines/ops/cpu/panels.hpp"
#include "engines/ops/cpu/team.hpp"
#include "engines/ops/host/host_ops.hpp"

namespace tidemill::engines::cpu {

/// The operations of the CPU backend.
class CpuOps final : public host::Ops {
public:
  CpuOps(Workers& workers, const KernelTable& kernels, std::string description)
      : team_(workers), kernels_(kernels), description_(std::move(description)) {}

  [[nodiscard]] std::string_view description() const noexcept override { return description_; }
  void parallel_for(std::int64_t count, std::int64_t item_cost, const LoopBody& body) override {
    team_.parallel_for(count, item_cost, body);
  }
  [[nodiscard]] std::int64_t max_parts() const noexcept override { return team_.size(); }
  [[nodiscard]] Result<std::unique_ptr<PreparedWeight>> prepare_weight(const WeightView& weight,
                                                                       DType compute,
                                                                       WeightUse use) override;
  using host::Ops::replace_weight;
  [[nodiscard]] Result<std::unique_ptr<PreparedWeight>> replace_weight(
      std::unique_ptr<PreparedWeight> old, const WeightView& weight, WeightRows rows, DType compute,
      WeightUse use) override;
  void linear_group(ConstMatrix x, std::span<const LinearTerm> terms, Store store) override;
  void linear_backward_input(ConstMatrix dy, const PreparedWeight& weight, std::int64_t first_input,
                             Store store, Matrix dx) override;
  void linear_backward_weight(ConstMatrix dy, ConstMatrix x, Matrix dw) override;
  void bias_backward(ConstMatrix dy, std::span<float> dbias) override;
  void add_low_rank(ConstMatrix x, std::span<const LowRankTerm> terms, Matrix y) override;
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
  [[nodiscard]] const MassKernels& mass_kernels() const noexcept override {
    return kernels_.masses;
  }

  /// Returns the allocator of prepared weights, for tests of memory estimates.
  [[nodiscard]] const WeightMemory& weight_memory() const noexcept { return weight_memory_; }

private:
  // The rows of x as the product kernels read them: x itself, or a copy in `rounded_`.
  struct ProductRows {
    const void* x = nullptr;
    std::int64_t stride = 0;  // as `ProductJob::x_stride`
  };

  // Copies or rounds x if kernels for weights of type `dtype` need that. `out_features` is that of
  // the largest weight.
  [[nodiscard]] ProductRows product_rows(ConstMatrix x, DType dtype, std::int64_t out_features);
  // Returns a job for all rows of x and y without its panels.
  [[nodiscard]] static ProductJob product_of(const ProductRows& rows, std::int64_t depth,
                                             std::span<const float> bias, Store store, Matrix y);
  // Multiplies all rows of `whole` by the panels of the weight from `first_panel` on, as many as
  // `whole` has columns for.
  void multiply(const ProductJob& whole, const PanelWeight& weight, std::int64_t first_panel);
  // `multiply` and `linear_backward_input` for weights in NF4; see cpu_nf4.cpp.
  void multiply_nf4(const ProductJob& whole, const PanelWeight& weight, std::int64_t first_panel);
  void linear_backward_input_nf4(ConstMatrix dy, const PanelWeight& weight,
                                 std::int64_t first_input, Store store, Matrix dx);
  // Computes the log-probability of `target` in the only row of `logits`, and the row's entropy.
  void log_softmax_row(ConstMatrix logits, std::int32_t target, float inv_temperature,
                       float& logprob, float& entropy);
  // Adds the product of one term to all rows of y.
  void add_one_low_rank(ConstMatrix x, const LowRankTerm& term, Matrix y);
  // Computes out (a.cols, b.cols) += a^T b, where `a` has few columns.
  void low_rank_backward_weight(ConstMatrix a, ConstMatrix b, Matrix out);

  Team team_;
  const KernelTable& kernels_;
  std::string description_;
  Scratch rounded_;  // rows of x, rounded or copied for products
  Scratch packed_;
  std::vector<std::int64_t> costs_;
  std::vector<LowRankJob> low_rank_jobs_;
  Scratch low_rank_rows_;
  WeightMemory weight_memory_;
};

}  // namespace tidemill::engines::cpu
