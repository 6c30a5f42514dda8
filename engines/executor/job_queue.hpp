// SPDX-License-Identifier: Apache-2.0
// Divides the training time of a device fairly between its jobs.
#pragma once

#include <span>
#include <vector>

#include "base/clock.hpp"
#include "engines/training_job.hpp"

namespace tidemill::engines {

/// The training jobs of a device. Each gets time in proportion to its weight while it has work.
///
/// Source of the method: start-time fair queueing, Goyal, Vin and Cheng 1997. Each job has a
/// virtual time, which advances by the time that the job used, divided by its weight. The job with
/// the earliest virtual time is next. A job that had no work resumes at the virtual time of the
/// others, so it is owed nothing for the time it did not use.
/// Threads: one call at a time.
class JobQueue {
public:
  /// Adds a job, which is borrowed until `remove`. Requires `weight` > 0.
  void add(TrainingJob& job, double weight);
  /// Removes a job. Ignores jobs that are not in the queue.
  void remove(const TrainingJob& job);

  [[nodiscard]] bool has_work() const;
  /// Returns the job that runs next among those that have work and are not in `excluded`; null
  /// if there is none. The last job goes on until its virtual time is ahead of another's by
  /// `kQuantum`.
  [[nodiscard]] TrainingJob* next(std::span<TrainingJob* const> excluded = {});
  /// Adds `spent` (device time) to the virtual time of `job`, divided by its weight. Requires that
  /// `job` was added.
  void charge(const TrainingJob& job, Duration spent);

  /// The virtual time that a job may be ahead before another takes over, so that its data stays in
  /// the caches: 20 ms of the device's time if its weight is 1.
  static constexpr Duration kQuantum = std::chrono::milliseconds(20);

private:
  struct Entry {
    TrainingJob* job = nullptr;
    double weight = 1.0;
    double virtual_time = 0.0;  // seconds
    bool had_work = false;      // when `next` was last called
  };

  std::vector<Entry> entries_;  // in the order of `add`
  double now_ = 0.0;            // the virtual time of the last job that was chosen
  const TrainingJob* last_ = nullptr;
};

}  // namespace tidemill::engines
