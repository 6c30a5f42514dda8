// SPDX-License-Identifier: Apache-2.0
// How many threads a process may keep busy: what its affinity mask and its control groups leave it.
#pragma once

#include <filesystem>
#include <string>

namespace tidemill::engines {

/// Where the limits of control groups are read.
struct ControlGroupFiles {
  std::filesystem::path own_groups = "/proc/self/cgroup";
  std::filesystem::path root = "/sys/fs/cgroup";
};

/// A number of cores, and what it comes from, for people.
struct CoreLimit {
  int cores = 1;
  std::string source;
};

/// Returns the least processor quota of the process's own control groups and those above them,
/// rounded up to whole cores; 0 cores where none is set or can be read.
///
/// Version 2 says it in `cpu.max`, version 1 in `cpu.cfs_quota_us` and `cpu.cfs_period_us` of the
/// controller `cpu`. In a container the group that the process is told may not exist under `root`:
/// the folders above it are then looked at alone. Source: cgroup-v2.rst and sched-bwc.rst of the
/// Linux kernel.
[[nodiscard]] CoreLimit group_quota(const ControlGroupFiles& files);

/// Returns how many threads this process can keep busy: the lesser of the cores in its affinity
/// mask and `group_quota`.
[[nodiscard]] CoreLimit usable_cores(const ControlGroupFiles& files = {});

/// Returns one line about `threads` being more than `usable`, or "" where they are not.
[[nodiscard]] std::string too_many_threads(int threads, const CoreLimit& usable);

}  // namespace tidemill::engines
