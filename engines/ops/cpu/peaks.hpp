// SPDX-License-Identifier: Apache-2.0
// What this machine can do at best, measured: the limits that figures are compared with.
#pragma once

#include "base/result.hpp"
#include "engines/executor/workers.hpp"
#include "engines/ops/cpu/factory.hpp"

namespace tidemill::engines {

/// Rates of all workers together.
struct MachinePeaks {
  double f32_flops = 0.0;       // multiply-adds on registers, counted twice, per second
  double bf16_flops = 0.0;      // of pairs where the processor has them, else those of float32
  double bytes_per_second = 0;  // read from memory, far more than the caches hold
};

/// Measures for about `seconds`; each figure is the best of several tries.
/// Errors: as `make_cpu_ops`. Threads: uses those of `workers`.
[[nodiscard]] Result<MachinePeaks> measure_peaks(Workers& workers, double seconds,
                                                 IsaLevel isa = IsaLevel::kAuto);

}  // namespace tidemill::engines
