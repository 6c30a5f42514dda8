// SPDX-License-Identifier: Apache-2.0
// The CPU backend: vector kernels for AVX2 and AVX-512, oneDNN's products where they are better.
#pragma once

#include <cstdint>
#include <memory>

#include "base/result.hpp"
#include "engines/executor/workers.hpp"
#include "engines/ops/ops.hpp"

namespace tidemill::engines {

/// Who multiplies matrices in linear layers.
enum class MatmulChoice : std::uint8_t {
  kAuto,     // oneDNN where it is faster and row-independent, the built-in kernels elsewhere
  kBuiltin,  // the built-in kernels
  kOneDnn,   // oneDNN wherever it can compute the product; row independence is then not promised
};

/// Which instruction set the built-in kernels use.
enum class KernelChoice : std::uint8_t { kAuto, kBaseline, kAvx2, kAvx512 };

struct CpuOptions {
  MatmulChoice matmul = MatmulChoice::kAuto;
  KernelChoice kernels = KernelChoice::kAuto;
};

/// Makes the CPU backend on the threads of `workers`, which must outlive it.
///
/// Bits: results of the built-in kernels are the same on every processor with FMA. oneDNN's
/// products, used on AVX-512 (f32) and AVX-512 BF16 (bf16) alone, have other bits than the built-in
/// ones, and keep rules R1 to R3; a self-check at start proves it on the machine at hand, or the
/// built-in kernels take over. `description()` says what is used and why.
///
/// Errors: `kUnimplemented` if `options.kernels` names instructions that this processor lacks.
[[nodiscard]] Result<std::unique_ptr<Ops>> make_cpu_ops(Workers& workers,
                                                        const CpuOptions& options = {});

}  // namespace tidemill::engines
