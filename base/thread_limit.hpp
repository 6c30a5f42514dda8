// SPDX-License-Identifier: Apache-2.0
// The limit on the number of threads and processes, for messages.
#pragma once

#include <string>

#include "base/control_groups.hpp"

namespace tidemill {

/// Returns the smallest limit on the threads of this process, such as "ulimit -u 30" or
/// "pids.max 64 in /sys/fs/cgroup/job", or an empty string if there is none. Control groups count
/// processes and threads.
///
/// Source: cgroup-v2.rst and cgroup-v1/pids.rst of the Linux kernel.
[[nodiscard]] std::string thread_limit_text(const ControlGroupFiles& files = {});

}  // namespace tidemill
