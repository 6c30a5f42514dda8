// SPDX-License-Identifier: Apache-2.0
// A backend whose device memory the host cannot read: a test of all code that uses devices.
#pragma once

#include <cstdint>
#include <memory>

#include "base/result.hpp"
#include "engines/ops/host/host_backend.hpp"

namespace tidemill::engines {

/// Returns a backend that runs `ops` on guarded memory: an access through a device address ends the
/// process with SIGSEGV, and the content of a new block begins with NaN. With `kDeferred`,
/// operations also run as late as the interface allows. `limit_bytes` bounds the memory. Only
/// touched pages count toward the memory of the process. Errors: `kResourceExhausted` if the system
/// refuses the memory.
[[nodiscard]] Result<std::unique_ptr<Ops>> make_guarded_ops(
    std::unique_ptr<host::Ops> ops, host::Execution execution,
    std::int64_t limit_bytes = std::int64_t{8} << 30U);

}  // namespace tidemill::engines
