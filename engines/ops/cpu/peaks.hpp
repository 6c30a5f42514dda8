// SPDX-License-Identifier: Apache-2.0
// Measures the peak rates of this machine, the limits that benchmark figures are compared with.
#pragma once

#include "base/result.hpp"
#include "engines/executor/workers.hpp"
#include "engines/ops/cpu/factory.hpp"

namespace tidemill::engines {

/// Peak rates of all workers together.
struct MachinePeaks {
  double f32_flops = 0.0;       // per second, in registers; a multiply-add counts as two
  double bf16_flops = 0.0;      // dot products of pairs if the processor has them, else as float32
  double bytes_per_second = 0;  // reads of a block far larger than the caches
};

/// Measures for about `seconds`. Each figure is the best of several tries.
/// Errors: as `make_cpu_ops`.
/// Threads: runs on the threads of `workers`.
[[nodiscard]] Result<MachinePeaks> measure_peaks(Workers& workers, double seconds,
                                                 IsaLevel isa = IsaLevel::kAuto);

}  // namespace tidemill::engines
