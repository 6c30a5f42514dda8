// SPDX-License-Identifier: Apache-2.0
// Finds and kills the processes that a reward program has started. Private to this folder.
//
// A process group does not contain all of them, because a process can leave it with `setsid`. They
// are therefore also found by their chain of parents, and by an environment entry that they inherit
// from the program. A process escapes only if all three fail: it has left the group, its parent has
// exited, and it has replaced or overwritten its environment. If this process is killed, only the
// program itself ends with it, unless there is a guard (program_guard.cpp).
#pragma once

#include <filesystem>
#include <string>
#include <sys/types.h>
#include <vector>

#include "base/clock.hpp"

namespace tidemill::engines {

/// Returns an environment entry, "NAME=VALUE", that no other process on this machine has.
/// Threads: safe to use concurrently.
[[nodiscard]] std::string make_process_mark();

/// Returns the live processes, other than `root`, that descend from `root` or whose environment has
/// the entry `mark`. `proc` is the mount point of procfs. Processes that cannot be read are left
/// out.
[[nodiscard]] std::vector<pid_t> find_process_tree(const std::filesystem::path& proc, pid_t root,
                                                   const std::string& mark);

/// Kills the process group `root`, and all processes that `find_process_tree` returns, until it
/// returns none. Starts no round later than half a second after the call. `root` must be an
/// unreaped child.
void kill_process_tree(pid_t root, const std::string& mark, const std::filesystem::path& proc,
                       const Clock& clock);

/// Kills all processes whose environment has a mark that the process `maker`, which has ended, has
/// made, until there are none. Starts no round later than two seconds after the call.
void kill_marked_by(pid_t maker, const std::filesystem::path& proc, const Clock& clock);

}  // namespace tidemill::engines
