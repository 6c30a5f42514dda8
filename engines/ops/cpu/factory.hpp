// SPDX-License-Identifier: Apache-2.0
// The CPU backend: vector kernels for AVX2, AVX-512 and AVX-512 BF16.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "base/dtype.hpp"
#include "base/result.hpp"
#include "engines/executor/workers.hpp"
#include "engines/ops/ops.hpp"

namespace tidemill::engines {

/// Which instruction set the kernels use; `kAuto` is the best that the processor has.
enum class IsaLevel : std::uint8_t { kAuto, kBaseline, kAvx2, kAvx512, kAvx512Bf16 };

/// Returns "baseline", "avx2", "avx512", "avx512_bf16" or "auto".
[[nodiscard]] std::string_view isa_level_name(IsaLevel level) noexcept;
/// Returns the level of that name, or nothing.
[[nodiscard]] std::optional<IsaLevel> isa_level(std::string_view name) noexcept;

struct CpuOptions {
  IsaLevel isa = IsaLevel::kAuto;
};

/// Makes the CPU backend on the threads of `workers`, which must outlive it.
///
/// The environment variable `TIDEMILL_ISA` names the level that `kAuto` stands for, so that any
/// program can be made to run as on a lesser processor.
///
/// Bits: float32 results are the same on every processor with FMA; those of bfloat16 weights too,
/// but for AVX-512 BF16, whose dot products of pairs flush denormals and round in their own way.
/// `description()` says what is used.
///
/// Errors: `kUnimplemented` if the level needs instructions that this processor lacks,
/// `kInvalidArgument` if `TIDEMILL_ISA` names none.
[[nodiscard]] Result<std::unique_ptr<Ops>> make_cpu_ops(Workers& workers,
                                                        const CpuOptions& options = {});

/// A matrix (O, I) that is prepared in element type `dtype`.
struct WeightSize {
  std::int64_t out_features = 0;
  std::int64_t in_features = 0;
  DType dtype = DType::kF32;
};

/// Weights that are prepared once and stay, and weights that are prepared again and again after
/// them, of which so many sets exist at a time.
struct PreparedWeights {
  std::vector<WeightSize> once;
  std::vector<WeightSize> again;
  int sets = 0;  // of `again`, while the latest of them exists
};

/// Returns the most memory that this backend takes for weights, which it prepares one after the
/// other: padding, the rounding to large pages, and what is kept by others in the same block once a
/// set has gone. Units: bytes.
[[nodiscard]] std::int64_t cpu_weight_bytes(const PreparedWeights& weights);

/// Rows of a weight's input and of its gradient that are packed at a time for their product.
inline constexpr std::int64_t kCpuOuterRows = 512;

/// Returns the memory that this backend takes, while a product with weights of type `dtype` goes
/// on, for a row of `cols` elements rounded as it is multiplied; `kAuto` kernels. Units: bytes.
[[nodiscard]] std::int64_t cpu_rounded_row_bytes(DType dtype, std::int64_t cols);

}  // namespace tidemill::engines
