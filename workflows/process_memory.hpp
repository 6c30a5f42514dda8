// SPDX-License-Identifier: Apache-2.0
// What the process holds, as the system counts it.
#pragma once

#include <cstdint>
#include <optional>
#include <sys/types.h>

namespace tidemill::workflows {

/// Returns the memory of the process that no file stands behind, and the code of the program and
/// its libraries, all of it: pages of code come as they run, and most do. Nothing where the system
/// does not tell. Units: bytes.
[[nodiscard]] std::optional<std::int64_t> program_bytes();

/// Returns the most memory that this process, or `pid`, has held since it was started as its
/// program or its peak was reset. Nothing where it has ended or the system does not tell. Units:
/// bytes.
[[nodiscard]] std::optional<std::int64_t> peak_bytes();
[[nodiscard]] std::optional<std::int64_t> peak_bytes(pid_t pid);

}  // namespace tidemill::workflows
