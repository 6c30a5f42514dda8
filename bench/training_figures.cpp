// SPDX-License-Identifier: Apache-2.0
// The figures of training: one optimizer step.
#include "bench/figure_spec.hpp"
#include "bench/step_cost.hpp"

namespace tidemill::bench {
namespace {

Result<double> train(BenchModel& bench) {
  return bench.train();
}

// A token needs 2N FLOP forward, 2N for input gradients, and 2N for gradients of all weights if
// these are trained. Attention has two products forward and four backward.
Result<double> train_limit(BenchModel& bench, const engines::MachinePeaks& peaks,
                           const FigureSpec& spec) {
  const StepCost cost(bench.config());
  const double tokens = BenchModel::kTrainTokens;
  const double passes = spec.model.training == Training::kAll ? 3.0 : 2.0;
  const double flops =
      passes * tokens * (cost.layers() + cost.head()) + cost.attention(tokens, 6.0);
  return tokens * peak_flops(peaks, spec.model.compute) / flops;
}

Result<double> train_unit(BenchModel& bench) {
  return bench.train_unit();
}

// What another request may wait for.
Result<double> unit_limit(BenchModel& /*bench*/, const engines::MachinePeaks& /*peaks*/,
                          const FigureSpec& /*spec*/) {
  return 5.0;
}

FigureSpec step(const char* name, DType compute, Training training, std::int64_t batch,
                const char* preset = "197m") {
  return {
      name,       {compute, training, batch, true, preset}, kTokensPerSecond, kMatmulPeak, train,
      train_limit};
}

// The cost of dividing a step into units: the rate of a step in windows.
FigureSpec step_in_windows(const char* name, DType compute, std::int64_t window_tokens) {
  FigureSpec spec = step(name, compute, Training::kAdapter, 1);
  spec.model.window_tokens = window_tokens;
  return spec;
}

FigureSpec unit(const char* name, DType compute, std::int64_t window_tokens) {
  const BenchModelOptions model = step_in_windows(name, compute, window_tokens).model;
  return {name, model, "ms", "5 ms", train_unit, unit_limit};
}

}  // namespace

std::vector<FigureSpec> training_figures() {
  return {
      step("lora_step_f32_b1", DType::kF32, Training::kAdapter, 1),
      step("lora_step_f32_b4", DType::kF32, Training::kAdapter, 4),
      step("lora_step_bf16_b1", DType::kBF16, Training::kAdapter, 1),
      step("lora_step_bf16_b4", DType::kBF16, Training::kAdapter, 4),
      step_in_windows("lora_step_f32_w64", DType::kF32, 64),
      step_in_windows("lora_step_bf16_w64", DType::kBF16, 64),
      step_in_windows("lora_step_f32_w16", DType::kF32, 16),
      step_in_windows("lora_step_bf16_w16", DType::kBF16, 16),
      unit("lora_unit_f32_w64", DType::kF32, 64),
      unit("lora_unit_bf16_w64", DType::kBF16, 64),
      unit("lora_unit_f32_w16", DType::kF32, 16),
      unit("lora_unit_bf16_w16", DType::kBF16, 16),
      step("full_step_f32", DType::kF32, Training::kAll, 1, "15m"),
  };
}

}  // namespace tidemill::bench
