// SPDX-License-Identifier: Apache-2.0
// The figures of generating with many adapters in one batch.
#include <algorithm>
#include <vector>

#include "bench/figure_spec.hpp"

namespace tidemill::bench {
namespace {

constexpr std::int64_t kAdapters = 16;
constexpr std::int64_t kBatch = 64;
constexpr std::int64_t kDecodeSteps = 12;

// Measures once without and once with adapters, back to back, so that both see the same load.
Result<double> decode_with_adapters(BenchModel& bench) {
  const StepProfile before = bench.profile();
  TIDEMILL_ASSIGN_OR_RETURN(const double base_only, bench.decode(kDecodeSteps));
  bench.profile() = before;
  bench.peer_values().push_back(base_only);
  return bench.decode(kDecodeSteps, kAdapters);
}

// Returns the median without adapters. The first of several measurements was a warm-up.
Result<double> decode_without(BenchModel& bench, const engines::MachinePeaks& /*peaks*/,
                              const FigureSpec& /*spec*/) {
  const std::vector<double>& all = bench.peer_values();
  std::vector<double> values(all.begin() + (all.size() > 1 ? 1 : 0), all.end());
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace

std::vector<FigureSpec> adapter_figures() {
  BenchModelOptions model{DType::kBF16, Training::kNone, kBatch};
  model.num_adapters = kAdapters;
  return {{"multi_lora_16", model, kTokensPerSecond, "without adapters", decode_with_adapters,
           decode_without}};
}

}  // namespace tidemill::bench
