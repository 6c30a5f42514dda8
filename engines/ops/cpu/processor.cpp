// SPDX-License-Identifier: Apache-2.0
// Run-time choice of the instruction set.
#include "engines/ops/cpu/processor.hpp"

namespace tidemill::engines::cpu {

ProcessorFeatures processor_features() noexcept {
  ProcessorFeatures features;
#if defined(__x86_64__)
  __builtin_cpu_init();
  features.avx2_fma = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  features.avx512 = features.avx2_fma && __builtin_cpu_supports("avx512f") != 0 &&
                    __builtin_cpu_supports("avx512bw") != 0 &&
                    __builtin_cpu_supports("avx512dq") != 0 &&
                    __builtin_cpu_supports("avx512vl") != 0;
  features.avx512_bf16 = features.avx512 && __builtin_cpu_supports("avx512bf16") != 0;
#endif
  return features;
}

Result<const KernelTable*> choose_kernels(KernelChoice choice) {
#if defined(TIDEMILL_X86_KERNELS)
  const ProcessorFeatures features = processor_features();
  if (choice == KernelChoice::kAvx512 || (choice == KernelChoice::kAuto && features.avx512)) {
    if (!features.avx512) {
      return Status(Errc::kUnimplemented, "this processor has no AVX-512");
    }
    return &isa_avx512::kernels();
  }
  if (choice == KernelChoice::kAvx2 || (choice == KernelChoice::kAuto && features.avx2_fma)) {
    if (!features.avx2_fma) {
      return Status(Errc::kUnimplemented, "this processor has no AVX2 with FMA");
    }
    return &isa_avx2::kernels();
  }
#else
  if (choice == KernelChoice::kAvx512 || choice == KernelChoice::kAvx2) {
    return Status(Errc::kUnimplemented, "this build has no x86 kernels");
  }
#endif
  return &isa_baseline::kernels();
}

}  // namespace tidemill::engines::cpu
