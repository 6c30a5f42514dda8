// SPDX-License-Identifier: Apache-2.0
// What the process holds, as the system counts it.
#pragma once

#include <cstdint>
#include <optional>

namespace tidemill::workflows {

/// Returns the memory of the process that no file stands behind, and the code of the program and
/// its libraries, all of it: pages of code come as they run, and most do. Nothing where the system
/// does not tell. Units: bytes.
[[nodiscard]] std::optional<std::int64_t> program_bytes();

/// Returns the most memory that the process has held since it began. Nothing where the system does
/// not tell. Units: bytes.
[[nodiscard]] std::optional<std::int64_t> peak_bytes();

}  // namespace tidemill::workflows
