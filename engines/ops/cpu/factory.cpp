// SPDX-License-Identifier: Apache-2.0
// Puts the CPU backend together and says of what.
#include "engines/ops/cpu/factory.hpp"

#include <string>

#include "engines/ops/cpu/cpu_ops.hpp"
#include "engines/ops/cpu/processor.hpp"

namespace tidemill::engines {

Result<std::unique_ptr<Ops>> make_cpu_ops(Workers& workers, const CpuOptions& options) {
  TIDEMILL_ASSIGN_OR_RETURN(const cpu::KernelTable* kernels, cpu::choose_kernels(options.isa));
  return std::unique_ptr<Ops>(
      std::make_unique<cpu::CpuOps>(workers, *kernels, "cpu (" + std::string(kernels->isa) + ")"));
}

std::int64_t cpu_weight_bytes(std::span<const WeightSize> weights) {
  cpu::WeightPlaces places;
  for (const WeightSize& weight : weights) {
    const cpu::PanelShape shape{weight.in_features, weight.out_features, weight.dtype};
    static_cast<void>(places.add(shape.size_bytes()));
  }
  return places.bytes();
}

std::int64_t cpu_rounded_row_bytes(DType dtype, std::int64_t cols) {
  switch (dtype) {
    case DType::kF32: return 0;
    case DType::kBlockI8: return cols + cols / 32 * 8;
    default: break;
  }
  const auto kernels = cpu::choose_kernels(IsaLevel::kAuto);  // without any, none will be opened
  return kernels.ok() ? (cols + 1) / 2 * 2 * kernels.value()->rounded_bytes : 0;
}

}  // namespace tidemill::engines
