// SPDX-License-Identifier: Apache-2.0
// The backends that tests of operations on device memory run on.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "engines/executor/workers.hpp"
#include "engines/ops/cpu/factory.hpp"
#include "engines/ops/guarded/factory.hpp"
#include "engines/ops/reference/factory.hpp"
#include "tests/engines/ops/stepped_ops.hpp"

namespace tidemill::engines {

/// A backend under test.
struct DeviceCase {
  std::string name;
  std::function<std::unique_ptr<Ops>(Workers&)> make;
  friend std::ostream& operator<<(std::ostream& out, const DeviceCase& c) { return out << c.name; }
};

/// Returns the operations of the CPU backend on guarded memory.
inline std::unique_ptr<Ops> guarded(Workers& workers, host::Execution execution) {
  return make_guarded_ops(make_cpu_host_ops(workers).value(), execution, std::int64_t{64} << 20U)
      .value();
}

/// Returns every backend: the reference, the CPU backend, the same on guarded memory, at once and
/// deferred, and a backend whose sums can only be cut at multiples of 8 rows.
inline std::vector<DeviceCase> device_cases() {
  return {
      {"reference", [](Workers&) { return make_reference_ops(); }},
      {"cpu", [](Workers& workers) { return make_cpu_ops(workers).value(); }},
      {"guarded", [](Workers& workers) { return guarded(workers, host::Execution::kImmediate); }},
      {"deferred", [](Workers& workers) { return guarded(workers, host::Execution::kDeferred); }},
      {"stepped", [](Workers&) {
         return host::make_backend(
             std::make_unique<SteppedOps>(make_reference_host_ops(), 8, BackendTraits{8}));
       }}};
}

}  // namespace tidemill::engines
