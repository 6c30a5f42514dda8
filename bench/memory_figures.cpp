// SPDX-License-Identifier: Apache-2.0
// The figures of memory.
#include "bench/figure_spec.hpp"
#include "bench/peak_memory.hpp"

namespace tidemill::bench {
namespace {

// Returns the peak memory of the process since the model was opened. Only meaningful if the process
// measures nothing else. Random weights count fully, weights in files only if they are used.
Result<double> peak_memory(BenchModel& bench) {
  TIDEMILL_RETURN_IF_ERROR(bench.train().status());
  return peak_memory_bytes();
}

Result<double> estimate(BenchModel& bench, const engines::MachinePeaks& /*peaks*/,
                        const FigureSpec& /*spec*/) {
  return bench.expected_bytes();
}

FigureSpec peak(const char* name, const BenchModelOptions& how) {
  return {name, how, "bytes", "estimate", peak_memory, estimate};
}

BenchModelOptions lora(DType compute, std::int64_t batch,
                       engines::Recompute recompute = engines::Recompute::kNone) {
  return {compute, Training::kAdapter, batch, true, "197m", recompute};
}

}  // namespace

std::vector<FigureSpec> memory_figures() {
  return {
      peak("lora_peak_bytes_f32_b1", lora(DType::kF32, 1)),
      peak("lora_peak_bytes_bf16_b1", lora(DType::kBF16, 1)),
      peak("lora_peak_bytes_bf16_b4", lora(DType::kBF16, 4)),
      peak("lora_peak_bytes_bf16_b4_cheap", lora(DType::kBF16, 4, engines::Recompute::kCheap)),
      peak("lora_peak_bytes_bf16_b4_layer", lora(DType::kBF16, 4, engines::Recompute::kLayer)),
      peak("full_peak_bytes_f32_b1", {DType::kF32, Training::kAll, 1, true, "15m"}),
  };
}

}  // namespace tidemill::bench
