// SPDX-License-Identifier: Apache-2.0
// Which cores the processes of a run compute on.
#pragma once

#include <sched.h>
#include <span>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace tidemill::workflows {

/// Numbers of cores, in ascending order. Empty: the process may use all cores of the run.
using CoreList = std::vector<int>;

/// The cores of each process of a run.
struct CorePlan {
  CoreList owner;
  std::vector<CoreList> rollout;  // by process
  std::vector<CoreList> reward;   // by process
};

/// Divides `cores` among the process of a run and its other processes. Each reward process gets one
/// core. The process of the run and the rollout processes get equal parts of the others, and the
/// process of the run the rest. With too few cores for that, reward processes share the cores of
/// the process of the run. With too few cores for that, too, all processes share all cores.
[[nodiscard]] CorePlan divide_cores(const CoreList& cores, int rollout_processes,
                                    int reward_processes);

/// Returns the plan in one line, such as "process of the run: 0-3; rollout process 0: 4-5".
[[nodiscard]] std::string to_text(const CorePlan& plan);
/// Returns "0-3,6".
[[nodiscard]] std::string to_text(const CoreList& cores);
/// Reads what `to_text` writes. Errors: `kInvalidArgument`.
[[nodiscard]] Result<CoreList> parse_cores(const std::string& text);

/// Returns the cores that the calling thread may use, at most as many as its control groups allow.
[[nodiscard]] CoreList usable_core_list();

/// Lets the calling thread, and threads that it starts, use only `cores`. Errors: `kUnavailable`.
[[nodiscard]] Status use_cores(const CoreList& cores);

/// Lets the calling thread use only some cores, until it is destroyed by that thread.
class CoreScope {
public:
  /// Changes nothing if `cores` is empty, or if the system refuses it.
  explicit CoreScope(const CoreList& cores);
  CoreScope(const CoreScope&) = delete;
  CoreScope& operator=(const CoreScope&) = delete;
  ~CoreScope();

private:
  bool changed_ = false;
  cpu_set_t before_{};
};

}  // namespace tidemill::workflows
