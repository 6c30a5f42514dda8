// SPDX-License-Identifier: Apache-2.0
// Detection of instruction sets, and the choice of kernels.
#pragma once

#include "base/result.hpp"
#include "engines/ops/cpu/factory.hpp"
#include "engines/ops/cpu/kernels.hpp"

namespace tidemill::engines::cpu {

/// Instruction sets that the kernels use, if both processor and operating system support them.
struct ProcessorFeatures {
  bool avx2_fma = false;
  bool avx512 = false;       // F, BW, DQ, VL
  bool avx512_bf16 = false;  // also dot products of bfloat16 pairs and of bytes (VNNI)
  bool amx = false;          // also tile registers, for products of bfloat16
};

/// Queries the processor. The first call asks the operating system for the use of tile registers,
/// which a process does not have unless it asks. Threads: safe to use concurrently.
[[nodiscard]] ProcessorFeatures processor_features() noexcept;

/// Returns the kernels of `level`. For `kAuto`, returns those that `TIDEMILL_ISA` names, or else
/// the fastest. Errors: as `make_cpu_ops`.
[[nodiscard]] Result<const KernelTable*> choose_kernels(IsaLevel level);

}  // namespace tidemill::engines::cpu
