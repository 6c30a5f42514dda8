// SPDX-License-Identifier: Apache-2.0
// The most memory this process has had.
#pragma once

namespace tidemill::launcher {

/// Lets the peak begin anew with what is resident now, where the system allows it.
void reset_peak_memory();

/// Returns the largest resident set of this process since its start or the last reset, in bytes; 0
/// where the system does not say.
[[nodiscard]] double peak_memory_bytes();

}  // namespace tidemill::launcher
