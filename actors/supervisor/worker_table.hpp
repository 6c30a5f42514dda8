// SPDX-License-Identifier: Apache-2.0
// The workers that a supervisor keeps, and what to do when one of them ends. Without CAF. Private
// to the supervisor.
//
//   running  -> waiting   it has ended, and shall start again after a delay
//   waiting  -> running   it has started again
//   running  -> draining  it shall finish what it holds and end
//   draining -> gone      it has ended
//   running, waiting, draining -> gone  it was removed, or dropped by its policy
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "actors/supervisor/messages.hpp"
#include "base/clock.hpp"
#include "base/result.hpp"

namespace tidemill::actors {

/// Limits of restarts.
struct RestartLimits {
  /// How many times in a row a worker may end within `stable_after` of its start before that fails
  /// the run.
  std::uint32_t max_restarts = 3;
  Duration delay = std::chrono::milliseconds(200);  // before the first restart; doubled each time
  Duration stable_after = std::chrono::minutes(1);
};

/// What the end of a worker means for the run.
struct WorkerEnd {
  enum class Action : std::uint8_t {
    kRestart,  // after `delay`
    kFailRun,  // with `failure`
    kNone,     // the worker is gone
  };
  Action action = Action::kNone;
  Duration delay{0};
  Status failure;
  std::string note;     // a line for the log; empty: nothing to say
  bool wanted = false;  // it was drained, so the line is no warning
};

/// The workers of a run, by name. A value.
class WorkerTable {
public:
  WorkerTable() = default;
  explicit WorkerTable(RestartLimits limits) : limits_(limits) {}

  /// Adds a worker that is running since `now`. Requires that its name is new.
  void add(const std::string& name, const std::string& kind, FailurePolicy policy, TimePoint now);

  /// Returns the worker of this name, or null.
  [[nodiscard]] const WorkerStatus* find(const std::string& name) const;

  /// A waiting worker has started again.
  void restarted(const std::string& name, TimePoint now);

  /// Begins to drain a worker.
  /// Errors: `kNotFound`; `kInvalidArgument` if no other worker of its kind would be left;
  /// `kUnavailable` if it is not running.
  [[nodiscard]] Status drain(const std::string& name);

  /// Removes a worker, whatever its state.
  /// Errors: `kNotFound`; `kInvalidArgument` if no other worker of its kind would be left.
  [[nodiscard]] Status remove(const std::string& name);

  /// A running or draining worker has ended because of `why`. Returns what to do.
  [[nodiscard]] WorkerEnd ended(const std::string& name, const Status& why, TimePoint now);

  /// Returns all workers, by name.
  [[nodiscard]] std::vector<WorkerStatus> workers() const;

private:
  struct Worker {
    WorkerStatus status;
    FailurePolicy policy = FailurePolicy::kRestart;
    TimePoint started_at;
  };

  [[nodiscard]] bool is_last_of_kind(const WorkerStatus& worker) const;
  [[nodiscard]] Status check_not_last(const std::string& name) const;
  [[nodiscard]] WorkerEnd restart(Worker& worker, const Status& why, TimePoint now) const;

  RestartLimits limits_;
  std::map<std::string, Worker> workers_;
};

/// Returns whether another start would fail in the same way as `failure`.
[[nodiscard]] bool would_repeat(const Status& failure);

}  // namespace tidemill::actors
