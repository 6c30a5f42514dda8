// SPDX-License-Identifier: Apache-2.0
// How many threads a process can keep busy, given its affinity mask and its control groups.
#pragma once

#include <string>

#include "base/control_groups.hpp"

namespace tidemill::engines {

/// A number of cores, and where it comes from, for messages.
struct CoreLimit {
  int cores = 1;
  std::string source;
};

/// Returns the smallest processor quota of the process's own control groups and their ancestors,
/// rounded up to whole cores. Returns 0 cores if no quota is set or can be read.
///
/// Version 2 stores the quota in `cpu.max`, version 1 in `cpu.cfs_quota_us` and `cpu.cfs_period_us`
/// of the controller `cpu`.
/// Source: cgroup-v2.rst and sched-bwc.rst of the Linux kernel.
[[nodiscard]] CoreLimit group_quota(const ControlGroupFiles& files);

/// Returns how many threads this process can keep busy: the smaller of the number of cores in its
/// affinity mask and `group_quota`.
[[nodiscard]] CoreLimit usable_cores(const ControlGroupFiles& files = {});

/// Returns a one-line warning if `threads` exceeds `usable.cores`, otherwise "".
[[nodiscard]] std::string too_many_threads(int threads, const CoreLimit& usable);

}  // namespace tidemill::engines
