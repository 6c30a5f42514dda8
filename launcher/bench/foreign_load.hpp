// SPDX-License-Identifier: Apache-2.0
// Whether somebody else used the cores while something was timed.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace tidemill::launcher {

/// Processor time of some cores, in seconds, since the machine started.
struct CoreTimes {
  double busy = 0.0;   // of all processes, and what the hypervisor gave to others
  double total = 0.0;  // idle time included
};

/// Adds up the lines "cpuN ..." of a /proc/stat text for the cores named.
[[nodiscard]] CoreTimes core_times(std::string_view proc_stat, const std::vector<int>& cores);

/// Watches the cores that this process may run on, from its making on.
/// Threads: one at a time.
class ForeignLoad {
public:
  ForeignLoad();
  /// Returns the share of those cores' time that was neither idle nor this process's own (or its
  /// ended children's), since the watch began; 0 where the machine does not say.
  [[nodiscard]] double share() const;

private:
  std::vector<int> cores_;
  CoreTimes start_;
  double own_start_ = 0.0;
};

}  // namespace tidemill::launcher
