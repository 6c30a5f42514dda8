// SPDX-License-Identifier: Apache-2.0
// The requests that a training job of a device works on. Private to the device.
#pragma once

#include <memory>

#include "actors/device/messages.hpp"
#include "actors/device/outcomes.hpp"
#include "actors/device/train_run.hpp"

namespace tidemill::actors {

/// Drives a training job through one request. Each successful call of `advance` leaves the job with
/// work, or the request finished.
///
/// Threads: one call at a time, at the port.
class JobWork {
public:
  JobWork() = default;
  JobWork(const JobWork&) = delete;
  JobWork& operator=(const JobWork&) = delete;
  virtual ~JobWork() = default;

  /// Reads the results of finished work and starts the next work. Called while the job has no work.
  /// Errors: those of the job. The work is then over.
  [[nodiscard]] virtual Status advance() = 0;
  [[nodiscard]] virtual bool finished() const = 0;
  /// Adds the outcome of the request: what it asked for, or `failure` if that is not OK.
  virtual void settle(Ticket ticket, const Status& failure, Outcomes& outcomes) = 0;
};

/// Return the work of a request. `job` is borrowed.
[[nodiscard]] std::unique_ptr<JobWork> make_train_work(engines::TrainingJob& job,
                                                       LossFactory make_loss, TrainRequest request);
[[nodiscard]] std::unique_ptr<JobWork> make_pass_work(engines::TrainingJob& job,
                                                      std::shared_ptr<const PassRequest> request);
[[nodiscard]] std::unique_ptr<JobWork> make_step_work(
    engines::TrainingJob& job, std::shared_ptr<const engines::OptimStep> step);
[[nodiscard]] std::unique_ptr<JobWork> make_save_work(engines::TrainingJob& job,
                                                      PolicyVersion version);
[[nodiscard]] std::unique_ptr<JobWork> make_capture_work(engines::TrainingJob& job);

}  // namespace tidemill::actors
