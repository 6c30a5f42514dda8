// SPDX-License-Identifier: Apache-2.0
// Detects whether other processes used the cores during a measurement.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace tidemill::bench {

/// Processor time of some cores, in seconds, since the machine started.
struct CoreTimes {
  double busy = 0.0;   // of all processes, and time stolen by the hypervisor
  double total = 0.0;  // idle time included
};

/// Returns the sum of the lines "cpuN ..." of `proc_stat`, a text from /proc/stat, over `cores`.
[[nodiscard]] CoreTimes core_times(std::string_view proc_stat, const std::vector<int>& cores);

/// Watches the cores that this process may run on, from its construction on.
/// Threads: one at a time.
class ForeignLoad {
public:
  ForeignLoad();
  /// Returns the share of the cores' time that other processes used since the construction: time
  /// that was neither idle nor used by this process or its ended children. Returns 0 if the system
  /// does not report it.
  [[nodiscard]] double share() const;

private:
  std::vector<int> cores_;
  CoreTimes start_;
  double own_start_ = 0.0;
};

}  // namespace tidemill::bench
