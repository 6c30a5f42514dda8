// SPDX-License-Identifier: Apache-2.0
// How a child process has ended, in words.
#pragma once

#include <string>

namespace tidemill {

/// Returns "exit status 3" or "killed by signal 9 (Killed)" for a status of `waitpid`, which must
/// be that of a process that has ended.
[[nodiscard]] std::string process_end_text(int wait_status);

}  // namespace tidemill
