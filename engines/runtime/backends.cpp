// SPDX-License-Identifier: Apache-2.0
#include "engines/runtime/backends.hpp"

#include <string>
#include <utility>

#include "engines/ops/cpu/factory.hpp"
#include "engines/ops/guarded/factory.hpp"
#include "engines/ops/reference/factory.hpp"

namespace tidemill::engines {
namespace {

// The kernels of the CPU backend on memory that the host cannot read. Operations run as late as
// their interface allows.
class GuardedBackend final : public BackendFactory {
public:
  std::string_view name() const noexcept override { return "guarded"; }
  BackendTraits traits() const noexcept override { return cpu_backend().traits(); }
  Result<std::unique_ptr<Ops>> open(Workers& workers,
                                    const DeviceMemoryLimits& limits) const override {
    TIDEMILL_ASSIGN_OR_RETURN(std::unique_ptr<host::Ops> ops, make_cpu_host_ops(workers));
    return limits.limit > 0
               ? make_guarded_ops(std::move(ops), host::Execution::kDeferred, limits.limit)
               : make_guarded_ops(std::move(ops), host::Execution::kDeferred);
  }
  std::int64_t weight_bytes(const WeightSizes& weights) const override {
    return cpu_backend().weight_bytes(weights);
  }
  std::int64_t kv_page_bytes(const AttentionShape& shape) const override {
    return cpu_backend().kv_page_bytes(shape);
  }
  std::int64_t rounded_row_bytes(DType dtype, std::int64_t cols) const override {
    return cpu_backend().rounded_row_bytes(dtype, cols);
  }
  std::int64_t weight_gradient_bytes(std::int64_t rows, std::int64_t cols) const override {
    return cpu_backend().weight_gradient_bytes(rows, cols);
  }
};

}  // namespace

const BackendFactory& backend_factory(Backend backend) {
  static const GuardedBackend guarded;
  switch (backend) {
    case Backend::kReference: return reference_backend();
    case Backend::kGuarded: return guarded;
    case Backend::kCpu: break;
  }
  return cpu_backend();
}

const BackendFactory& backend_factory(const RuntimeOptions& options) {
  return options.factory != nullptr ? *options.factory : backend_factory(options.backend);
}

// Windows are cut from the first row of a sequence, and every sequence starts sums of its own, so
// the size of a window is all that counts.
Status check_cuts(const BackendFactory& backend, const RuntimeOptions& options) {
  const std::int64_t step = backend.traits().row_sum_step;
  if (options.window_tokens % step != 0) {
    return invalid_argument("window_tokens: " + std::to_string(options.window_tokens) +
                            " is not a multiple of " + std::to_string(step) +
                            ", the rows that backend " + std::string(backend.name()) +
                            " sums at a time");
  }
  return {};
}

}  // namespace tidemill::engines
