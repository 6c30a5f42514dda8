// SPDX-License-Identifier: Apache-2.0
// The workers of a run, as their supervisor sees them, and how to start one in another process.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tidemill::actors {

/// What the supervisor does when a worker ends before the run does.
enum class FailurePolicy : std::uint8_t {
  /// Starts it again, after a delay that doubles with each end in a row. Too many ends in a row, or
  /// a failure that would repeat, fail the run.
  kRestart,
  /// Treats it like a part of the core: the run returns to its last commit, or fails.
  kFailRun,
  /// Goes on without it. If it was the last worker of its kind, the run cannot go on, and the
  /// policy is `kFailRun`.
  kDrop,
};

/// Whether a worker runs.
enum class WorkerState : std::uint8_t {
  kRunning,
  kWaiting,   // it has ended and will start again
  kDraining,  // it finishes what it holds, and then ends for good
};

/// A worker of a run.
struct WorkerStatus {
  std::string name;  // also its consumer name at the stream
  std::string kind;  // "rollout", "reward" or "advantage"
  WorkerState state = WorkerState::kRunning;
  std::uint32_t deaths = 0;  // in a row
};

/// The workers of a run, by name.
struct WorkerList {
  std::vector<WorkerStatus> workers;
};

/// Has a process start a worker.
struct StartWorker {
  std::string name;
  std::string kind;  // as in `WorkerStatus`
  std::uint32_t number = 0;
  /// The number of this start among all starts of workers in the process. A worker that was started
  /// again has the same name, and messages about the one before may still be on their way.
  std::uint64_t start = 0;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, WorkerStatus& x) {
  return f(x.name, x.kind, x.state, x.deaths);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, WorkerList& x) {
  return f(x.workers);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, StartWorker& x) {
  return f(x.name, x.kind, x.number, x.start);
}

}  // namespace tidemill::actors
