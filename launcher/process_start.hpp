// SPDX-License-Identifier: Apache-2.0
// Prepares the process of the program, before it does anything else.
#pragma once

#include "base/status.hpp"

namespace tidemill::launcher {

/// The smallest stack that the program runs with. Units: KiB.
inline constexpr int kLeastStackKib = 1024;

/// Opens the standard streams that are closed, so that no other file gets their numbers. Reading
/// from or writing to such a stream still fails.
void open_standard_streams();

/// Makes a failure to get memory or a thread, in any thread of the process, end it with one line on
/// standard error and exit code 1. Commits stay valid, because they are atomic.
void end_on_exhaustion();

/// Checks and adjusts what depends on the limits of the process.
/// Errors: `kResourceExhausted` if the stack is smaller than `kLeastStackKib`.
[[nodiscard]] Status apply_limits();

}  // namespace tidemill::launcher
