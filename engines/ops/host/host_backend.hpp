// SPDX-License-Identifier: Apache-2.0
// Makes a backend of operations on host memory.
#pragma once

#include <cstdint>
#include <memory>

#include "engines/ops/host/host_memory.hpp"
#include "engines/ops/host/host_ops.hpp"
#include "engines/ops/ops.hpp"

namespace tidemill::engines::host {

/// Says when an operation runs.
enum class Execution : std::uint8_t {
  kImmediate,  // before its call returns
  kDeferred,   // at the next `read` or `synchronize`; for tests of code that assumes otherwise
};

/// Returns a backend that runs `ops` on `memory`.
[[nodiscard]] std::unique_ptr<engines::Ops> make_backend(std::unique_ptr<Ops> ops,
                                                         std::unique_ptr<HostMemory> memory,
                                                         Execution execution);
/// Returns a backend that runs `ops` at once, on an arena of that size.
/// Errors: `kResourceExhausted` if the system refuses the memory.
[[nodiscard]] Result<std::unique_ptr<engines::Ops>> make_backend(std::unique_ptr<Ops> ops,
                                                                 const DeviceMemoryLimits& limits);
/// Returns a backend that runs `ops` at once, on an arena that grows.
[[nodiscard]] std::unique_ptr<engines::Ops> make_backend(std::unique_ptr<Ops> ops);

}  // namespace tidemill::engines::host
