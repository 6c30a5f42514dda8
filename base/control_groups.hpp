// SPDX-License-Identifier: Apache-2.0
// Finds the control groups whose limits apply to this process.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace tidemill {

/// The files that describe control groups.
struct ControlGroupFiles {
  std::filesystem::path own_groups = "/proc/self/cgroup";
  std::filesystem::path root = "/sys/fs/cgroup";
};

/// The folder of a control group. It need not exist.
struct ControlGroup {
  std::filesystem::path folder;
  int version = 2;  // of control groups: 1 or 2
};

/// Returns the process's own control groups that can limit what `controller` controls, each
/// followed by its ancestors.
///
/// Version 1 mounts a controller under its own name, or under the names of all controllers that
/// share its hierarchy. In a container, the group that `own_groups` names may not exist under
/// `root`, but its ancestors may.
/// Source: cgroup-v2.rst and cgroup-v1/cgroups.rst of the Linux kernel.
[[nodiscard]] std::vector<ControlGroup> control_groups(const ControlGroupFiles& files,
                                                       std::string_view controller);

}  // namespace tidemill
