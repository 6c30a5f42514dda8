// SPDX-License-Identifier: Apache-2.0
// The CPU backend: kernels for AVX2, AVX-512, AVX-512 BF16 and AMX.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "base/result.hpp"
#include "base/tensor/dtype.hpp"
#include "engines/executor/workers.hpp"
#include "engines/ops/backend.hpp"
#include "engines/ops/host/host_ops.hpp"
#include "engines/ops/ops.hpp"

namespace tidemill::engines {

/// Instruction set of the kernels. `kAuto` selects the best one that the processor has.
enum class IsaLevel : std::uint8_t { kAuto, kBaseline, kAvx2, kAvx512, kAvx512Bf16, kAmx };

/// Returns "baseline", "avx2", "avx512", "avx512_bf16", "amx" or "auto".
[[nodiscard]] std::string_view isa_level_name(IsaLevel level) noexcept;
/// Returns the level called `name`, or nullopt.
[[nodiscard]] std::optional<IsaLevel> isa_level(std::string_view name) noexcept;

/// Options of the CPU backend.
struct CpuOptions {
  IsaLevel isa = IsaLevel::kAuto;
};

/// Creates the CPU backend on the threads of `workers`, which must outlive it.
///
/// The environment variable `TIDEMILL_ISA`, if set, names the level that `kAuto` selects. It makes
/// any program run as it would on a less capable processor.
///
/// Bits: float32 results are the same on every processor with FMA. So are results with bfloat16
/// weights, except at levels AVX-512 BF16 and AMX. Their instructions flush denormals, and each of
/// the two levels rounds in its own way. `description()` names the instruction set in use.
///
/// Errors: `kUnimplemented` if the level needs instructions that this processor lacks,
/// `kInvalidArgument` if `TIDEMILL_ISA` names no level.
[[nodiscard]] Result<std::unique_ptr<Ops>> make_cpu_ops(Workers& workers,
                                                        const CpuOptions& options = {});
/// Creates the operations of the CPU backend on host memory, without the backend around them.
/// Errors: those of `make_cpu_ops`.
[[nodiscard]] Result<std::unique_ptr<host::Ops>> make_cpu_host_ops(Workers& workers,
                                                                   const CpuOptions& options = {});

/// Returns the factory of the CPU backend with default options. Its `weight_bytes` includes
/// padding, the rounding to large pages, and the blocks of freed sets that other weights keep
/// alive.
[[nodiscard]] const BackendFactory& cpu_backend();

/// The number of rows that a weight-gradient kernel packs at a time, of the layer's input and of
/// the gradient of its output. The kernel reads and writes the sums once per this many rows.
inline constexpr std::int64_t kCpuWeightGradientRows = 512;

}  // namespace tidemill::engines
