// SPDX-License-Identifier: Apache-2.0
#include "bench/step_cost.hpp"

namespace tidemill::bench {

StepCost::StepCost(const engines::ModelConfig& config)
    : query_cols_(static_cast<double>(config.num_heads * config.head_dim)),
      num_layers_(static_cast<double>(config.num_layers)) {
  const auto d = static_cast<double>(config.hidden_size);
  const auto kv = static_cast<double>(config.num_kv_heads * config.head_dim);
  const auto f = static_cast<double>(config.intermediate_size);
  key_parameters_ = 2.0 * d * kv;
  parameters_ = num_layers_ * (2.0 * d * query_cols_ + 2.0 * d * kv + 3.0 * d * f);
  head_ = d * static_cast<double>(config.vocab_size);
}

double StepCost::attention(double tokens, double products) const noexcept {
  return 2.0 * products * query_cols_ * num_layers_ * tokens * (tokens + 1.0) / 2.0;
}

double StepCost::prompt(double tokens) const noexcept {
  const double spared = 2.0 * (parameters_ / num_layers_ - key_parameters_);
  // Positions that all tokens but the last see in the last layer.
  const double seen = tokens * (tokens + 1.0) / 2.0 - tokens;
  return tokens * layers() + head() + attention(tokens, 2.0) - (tokens - 1.0) * spared -
         4.0 * query_cols_ * seen;
}

double StepCost::weight_bytes(DType compute) const {
  return (parameters_ + head_) * static_cast<double>(dtype_block_bytes(compute)) /
         static_cast<double>(dtype_block_elements(compute));
}

double peak_flops(const engines::MachinePeaks& peaks, DType compute) noexcept {
  return compute == DType::kF32 ? peaks.f32_flops : peaks.bf16_flops;
}

}  // namespace tidemill::bench
