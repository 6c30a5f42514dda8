// SPDX-License-Identifier: Apache-2.0
// The runs that carry out fine-tuning jobs, as the actor that starts them sees them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "base/result.hpp"
#include "storage/jobs/job_record.hpp"

namespace tidemill::actors {

/// A run has read its files and begins to train.
struct RunBegan {
  storage::JobHyperparameters resolved;
  std::uint64_t steps = 0;        // of the whole job
  std::int64_t memory_bytes = 0;  // upper bound of the run's memory
  std::string step;               // what a step trains on, such as "32 sequences"
};

/// A run is within a step that takes long.
struct StepNote {
  std::string message;
  std::optional<double> seconds_left;  // estimated; absent: as before
};

/// A run has taken a step.
struct RunProgress {
  std::uint64_t step = 0;
  std::uint64_t steps = 0;          // of the whole job
  std::int64_t trained_tokens = 0;  // of the job until now
  double seconds_left = 0.0;        // estimated
  std::string message;
  std::string data;  // JSON text: an object of numbers
};

/// A run has a warning. `message` is one line and names no path of the server.
struct RunWarning {
  std::string message;
};

/// A run has ended without a failure.
struct RunEnded {
  bool stopped = false;  // true after `request_stop` or `cancel`; the job can be started again
  std::string adapter;   // the directory of the adapter, in PEFT's layout; unless stopped
  std::uint64_t steps = 0;
  std::string metrics;  // JSON text: an object of the last metrics
};

/// What a run reports. The last report is `RunEnded`, or the failure.
using RunReport = std::variant<RunBegan, StepNote, RunProgress, RunWarning, Result<RunEnded>>;

/// A run that has been started. The destructor cancels it and waits for its end.
class TuningRun {
public:
  TuningRun() = default;
  TuningRun(const TuningRun&) = delete;
  TuningRun& operator=(const TuningRun&) = delete;
  virtual ~TuningRun() = default;

  /// Makes the run commit and end after the current step. May be called more than once.
  virtual void request_stop() = 0;
  /// Makes the run end at once. What it did since its last commit is lost. It then reports that it
  /// was stopped, unless it had ended before. May be called more than once.
  virtual void cancel() = 0;
};

/// Starts the run of a job, or continues it from its last commit. Does not block. The run calls
/// `report` from threads of its own.
using StartTuningRun = std::function<std::unique_ptr<TuningRun>(
    const storage::JobRecord& job, std::function<void(RunReport)> report)>;

}  // namespace tidemill::actors
