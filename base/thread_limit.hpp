// SPDX-License-Identifier: Apache-2.0
// The limit on the number of threads and processes.
#pragma once

#include <string>

#include "base/control_groups.hpp"
#include "base/status.hpp"

namespace tidemill {

/// Returns the smallest limit on the threads of this process, such as "ulimit -u 30" or
/// "pids.max 64 in /sys/fs/cgroup/job", or an empty string if there is none. Control groups count
/// processes and threads.
///
/// Source: cgroup-v2.rst and cgroup-v1/pids.rst of the Linux kernel.
[[nodiscard]] std::string thread_limit_text(const ControlGroupFiles& files = {});

/// Starts `threads` threads at once and ends them, to find out whether this process can have them.
/// Errors: `kResourceExhausted`, with the number of those that could be started.
[[nodiscard]] Status try_threads(int threads);

}  // namespace tidemill
