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
  bool avx512_bf16 = false;  // dot products of bfloat16 pairs
};

/// Asks the processor. Threads: pure function.
[[nodiscard]] ProcessorFeatures processor_features() noexcept;

/// Returns the kernels that `choice` names, the fastest for `kAuto`.
/// Errors: `kUnimplemented` if this processor or this build lacks them.
[[nodiscard]] Result<const KernelTable*> choose_kernels(KernelChoice choice);

}  // namespace tidemill::engines::cpu
