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

}  // namespace tidemill::engines
