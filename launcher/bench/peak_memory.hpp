// SPDX-License-Identifier: Apache-2.0
// The most memory a process has had.
#pragma once

#include <sys/types.h>

namespace tidemill::launcher {

/// Lets the peak begin anew with what is resident now, where the system allows it.
void reset_peak_memory();

/// Returns the largest resident set of this process since its start or the last reset, in bytes; 0
/// where the system does not say.
[[nodiscard]] double peak_memory_bytes();

/// Returns the largest resident set of the process `pid` since it was started as its program, in
/// bytes; 0 where it has ended or the system does not say.
[[nodiscard]] double peak_memory_bytes(pid_t pid);

}  // namespace tidemill::launcher
