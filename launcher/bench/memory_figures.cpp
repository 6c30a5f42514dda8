// SPDX-License-Identifier: Apache-2.0
// The figures of memory.
#include "launcher/bench/figure_spec.hpp"
#include "launcher/bench/peak_memory.hpp"
#include "launcher/bench/step_cost.hpp"

namespace tidemill::launcher {
namespace {

// The most memory of the process since the model was opened. For a process that measures nothing
// else; weights that were made up count, those of files only as far as they are computed with.
Result<double> peak_memory(BenchModel& bench) {
  TIDEMILL_RETURN_IF_ERROR(bench.train().status());
  return peak_memory_bytes();
}

Result<double> weight_bytes(BenchModel& bench, const engines::MachinePeaks& /*peaks*/,
                            const FigureSpec& spec) {
  return StepCost(bench.config()).weight_bytes(spec.model.compute);
}

FigureSpec peak(const char* name, DType compute, Training training, std::int64_t batch,
                const char* preset = "197m") {
  return {name,        {compute, training, batch, true, preset}, "bytes", "weights", peak_memory,
          weight_bytes};
}

}  // namespace

std::vector<FigureSpec> memory_figures() {
  return {
      peak("lora_peak_bytes_f32_b1", DType::kF32, Training::kAdapter, 1),
      peak("lora_peak_bytes_bf16_b1", DType::kBF16, Training::kAdapter, 1),
      peak("lora_peak_bytes_bf16_b4", DType::kBF16, Training::kAdapter, 4),
      peak("full_peak_bytes_f32_b1", DType::kF32, Training::kAll, 1, "15m"),
  };
}

}  // namespace tidemill::launcher
