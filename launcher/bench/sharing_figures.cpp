// SPDX-License-Identifier: Apache-2.0
// The figure of sharing: what rollout and training reach together on one device.
#include "launcher/bench/figure_spec.hpp"

namespace tidemill::launcher {
namespace {

Result<double> together(BenchModel& bench) {
  return bench.share();
}

// Run in turn, each for its part of the time, the two reach 1.
Result<double> in_turn(BenchModel& /*bench*/, const engines::MachinePeaks& /*peaks*/,
                       const FigureSpec& /*spec*/) {
  return 1.0;
}

}  // namespace

std::vector<FigureSpec> sharing_figures() {
  const BenchModelOptions model{DType::kBF16, Training::kAdapter, 16};
  return {{"coserve_sum", model, "of alone", "in turn", together, in_turn}};
}

}  // namespace tidemill::launcher
