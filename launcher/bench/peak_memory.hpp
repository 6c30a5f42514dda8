// SPDX-License-Identifier: Apache-2.0
// The most memory a process has had.
#pragma once

#include <sys/types.h>

namespace tidemill::launcher {

/// Lets the peak begin anew with what is resident now, where the system allows it.
void reset_peak_memory();

/// Returns `workflows::peak_bytes` of this process, or of `pid`, as a figure: 0 where the system
/// does not tell.
[[nodiscard]] double peak_memory_bytes();
[[nodiscard]] double peak_memory_bytes(pid_t pid);

}  // namespace tidemill::launcher
