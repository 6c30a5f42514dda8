// SPDX-License-Identifier: Apache-2.0
// Creates the CPU backend and estimates the memory that it takes.
#include "engines/ops/cpu/factory.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "engines/ops/cpu/cpu_ops.hpp"
#include "engines/ops/cpu/panels.hpp"
#include "engines/ops/cpu/processor.hpp"
#include "engines/ops/cpu/product_cuts.hpp"
#include "engines/ops/cpu/weight_memory.hpp"
#include "engines/ops/host/host_backend.hpp"

namespace tidemill::engines {
namespace {

// Sets that the estimate simulates. Each set starts at another offset within a block, since the
// size of a set is rarely a multiple of the block size. After this many sets the worst offset has
// occurred.
constexpr int kRounds = 64;

std::int64_t bytes_of(const WeightSize& weight) {
  return cpu::PanelShape{weight.in_features, weight.out_features, weight.dtype}.size_bytes();
}

class CpuBackend final : public BackendFactory {
public:
  std::string_view name() const noexcept override { return "cpu"; }
  BackendTraits traits() const noexcept override { return {}; }

  Result<std::unique_ptr<Ops>> open(Workers& workers,
                                    const DeviceMemoryLimits& limits) const override {
    TIDEMILL_ASSIGN_OR_RETURN(std::unique_ptr<host::Ops> ops, make_cpu_host_ops(workers));
    return host::make_backend(std::move(ops), limits);
  }

  std::int64_t weight_bytes(const WeightSizes& weights) const override {
    cpu::WeightSets sets;
    for (const WeightSize& weight : weights.permanent) {
      sets.add(bytes_of(weight));
    }
    std::int64_t peak = sets.bytes();
    for (int round = 0; round < kRounds && !weights.replaced.empty() && weights.live_sets > 0;
         ++round) {
      sets.begin_set(weights.live_sets);
      for (const WeightSize& weight : weights.replaced) {
        sets.add(bytes_of(weight));
      }
      peak = std::max(peak, sets.bytes());
    }
    return peak;
  }

  std::int64_t kv_page_bytes(const AttentionShape& shape) const override {
    return cpu::PageLayout(shape).page_bytes;
  }

  std::int64_t rounded_row_bytes(DType dtype, std::int64_t cols) const override {
    switch (dtype) {
      case DType::kF32: return 0;
      case DType::kBlockI8: return cols + cols / 32 * 8;
      default: break;
    }
    const auto kernels = cpu::choose_kernels(IsaLevel::kAuto);
    if (!kernels.ok()) {
      return 0;  // opening a device will fail with this error
    }
    const std::int64_t bytes = kernels.value()->rounded_bytes;
    return cpu::spread_stride(cols, bytes) * bytes;
  }

  std::int64_t weight_gradient_bytes(std::int64_t rows, std::int64_t cols) const override {
    return std::min(rows, kCpuWeightGradientRows) * cols * std::int64_t{sizeof(float)};
  }
};

}  // namespace

Result<std::unique_ptr<Ops>> make_cpu_ops(Workers& workers, const CpuOptions& options) {
  TIDEMILL_ASSIGN_OR_RETURN(std::unique_ptr<host::Ops> ops, make_cpu_host_ops(workers, options));
  return host::make_backend(std::move(ops));
}

Result<std::unique_ptr<host::Ops>> make_cpu_host_ops(Workers& workers, const CpuOptions& options) {
  TIDEMILL_ASSIGN_OR_RETURN(const cpu::KernelTable* kernels, cpu::choose_kernels(options.isa));
  return std::unique_ptr<host::Ops>(
      std::make_unique<cpu::CpuOps>(workers, *kernels, "cpu (" + std::string(kernels->isa) + ")"));
}

const BackendFactory& cpu_backend() {
  static const CpuBackend backend;
  return backend;
}

}  // namespace tidemill::engines
