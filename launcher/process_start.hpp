// SPDX-License-Identifier: Apache-2.0
// Prepares the process before the program does anything else.
#pragma once

#include "base/status.hpp"

namespace tidemill::launcher {

/// The smallest stack that the program runs with. Units: KiB.
inline constexpr int kMinStackKib = 1024;

/// Opens the standard streams that are closed, so that no other file gets their descriptors.
/// Reading from such a stream or writing to it still fails.
void open_standard_streams();

/// Makes the process end with one line on standard error and exit code 1 if one of its threads
/// cannot get memory or start a thread. Commits stay valid, because they are atomic.
void end_on_exhaustion();

/// Makes a write beyond the limit on file sizes (`ulimit -f`) fail instead of killing the process.
void ignore_file_size_signal();

/// Makes the allocator return large blocks to the system as soon as they are freed.
void return_large_blocks();

/// Checks the limit of the stack. If the address space is limited, makes the allocator reserve less
/// of it.
/// Errors: `kResourceExhausted` if the stack is smaller than `kMinStackKib`.
[[nodiscard]] Status apply_limits();

}  // namespace tidemill::launcher
