// SPDX-License-Identifier: Apache-2.0
#include "bench/memory_notes.hpp"

#include <algorithm>
#include <iterator>

#include "engines/runtime/memory_estimate.hpp"

namespace tidemill::bench {
namespace {

// Without tensors, the estimate is that of a mapped file, whose pages do not count.
double base_bytes(const engines::ModelConfig& config, DType compute) {
  engines::ModelFiles mapped;
  mapped.config = config;
  mapped.config.dtype = engines::cache_type(compute);
  engines::RuntimeOptions runtime;
  runtime.compute = compute;
  engines::MemoryLoad load;
  load.publishes = false;
  load.snapshots = 0;
  return static_cast<double>(engines::estimate_memory(mapped, runtime, load).weights_bytes);
}

}  // namespace

std::vector<FigureNote> peak_notes(double peak_bytes, double plan_bytes) {
  return {{"peak_bytes", peak_bytes},
          {"plan_bytes", plan_bytes},
          {"peak_of_plan", plan_bytes > 0.0 ? peak_bytes / plan_bytes : 0.0}};
}

Status note_peak(BenchModel& bench, const Figure& /*figure*/, const FigureSpec& /*spec*/) {
  std::ranges::move(peak_notes(bench.peak_bytes(), bench.expected_bytes()),
                    std::back_inserter(bench.notes()));
  return {};
}

std::vector<FigureNote> base_notes(const engines::ModelConfig& config, DType compute) {
  const double bytes = base_bytes(config, compute);
  return {{"base_bytes", bytes}, {"base_of_bf16", bytes / base_bytes(config, DType::kBF16)}};
}

}  // namespace tidemill::bench
