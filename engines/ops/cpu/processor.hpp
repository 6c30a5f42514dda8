// SPDX-License-Identifier: Apache-2.0
// What this processor can execute, and the kernels that suit it.
#pragma once

#include "base/result.hpp"
#include "engines/ops/cpu/factory.hpp"
#include "engines/ops/cpu/kernels.hpp"

namespace tidemill::engines::cpu {

/// Instruction sets that matter here, of processor and operating system together.
struct ProcessorFeatures {
  bool avx2_fma = false;
  bool avx512 = false;       // F, BW, DQ, VL
  bool avx512_bf16 = false;  // and dot products of bfloat16 pairs and of bytes
};

/// Asks the processor. Threads: pure function.
[[nodiscard]] ProcessorFeatures processor_features() noexcept;

/// Returns the kernels of `level`, those of `TIDEMILL_ISA` or the fastest for `kAuto`.
/// Errors: as `make_cpu_ops`.
[[nodiscard]] Result<const KernelTable*> choose_kernels(IsaLevel level);

}  // namespace tidemill::engines::cpu
