// SPDX-License-Identifier: Apache-2.0
// The figure of sharing: the combined speed of rollout and training on one device.
#include "bench/figure_spec.hpp"

namespace tidemill::bench {
namespace {

Result<double> together(BenchModel& bench) {
  return bench.share();
}

// If the two took turns, the sum of their relative rates would be 1.
Result<double> in_turn(BenchModel& /*bench*/, const engines::MachinePeaks& /*peaks*/,
                       const FigureSpec& /*spec*/) {
  return 1.0;
}

}  // namespace

std::vector<FigureSpec> sharing_figures() {
  const BenchModelOptions model{DType::kBF16, Training::kAdapter, 16};
  return {{"coserve_sum", model, "of alone", "in turn", together, in_turn}};
}

}  // namespace tidemill::bench
