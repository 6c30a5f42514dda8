// SPDX-License-Identifier: Apache-2.0
// Finds the child processes of a process, for tests that disturb them.
#pragma once

#include <sys/types.h>
#include <vector>

namespace tidemill::test {

/// Returns the processes whose parent is `parent`, in ascending order. A process that has ended and
/// was not waited for is none.
[[nodiscard]] std::vector<pid_t> children_of(pid_t parent);

/// Returns whether the process runs or is stopped.
[[nodiscard]] bool is_alive(pid_t process);

}  // namespace tidemill::test
