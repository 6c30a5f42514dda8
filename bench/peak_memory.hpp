// SPDX-License-Identifier: Apache-2.0
// The peak memory of a process.
#pragma once

#include <sys/types.h>

namespace tidemill::bench {

/// Resets the peak memory of this process to its current memory, if the system allows it.
void reset_peak_memory();

/// Returns `workflows::peak_bytes` of this process, or of `pid`, or 0 if the system does not report
/// it.
[[nodiscard]] double peak_memory_bytes();
[[nodiscard]] double peak_memory_bytes(pid_t pid);

}  // namespace tidemill::bench
