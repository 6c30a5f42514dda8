// SPDX-License-Identifier: Apache-2.0
// Chooses whether the next iteration of a device is one of rollout or of training, and runs it. The
// two alternate on one set of threads instead of competing for cores.
#pragma once

#include "base/result.hpp"
#include "engines/executor/executor_options.hpp"
#include "engines/rollout_engine.hpp"
#include "engines/step.hpp"
#include "engines/training_job.hpp"

namespace tidemill::engines {

/// Divides the iterations of one device between rollout and training.
///
/// If only one of them has work, it gets all iterations. If both have work, `precedence` decides.
/// With `kShares`, each token that one side computes then adds to what the other side is owed, so
/// neither starves. With the other two settings, one side waits until the other has no work. That
/// wait ends: rollout runs out of work at the staleness bound, and training at the end of its
/// batch.
/// Threads: one call at a time.
class Executor {
public:
  /// Borrows `rollout` and `train`. Each may be null.
  Executor(RolloutEngine* rollout, TrainingJob* train, const ExecutorOptions& options)
      : rollout_(rollout), train_(train), options_(options) {}

  [[nodiscard]] bool has_work() const;

  /// Runs one iteration of rollout or of training. If training has to wait for pages of the cache,
  /// runs one of rollout as well. Requires `has_work()`.
  /// Errors: those of `RolloutEngine::step` and `TrainingJob::advance`, with context.
  [[nodiscard]] Result<StepReport> iterate();
  /// Returns whether `iterate` last ran training, successfully or not.
  [[nodiscard]] bool trained() const noexcept { return trained_; }

private:
  [[nodiscard]] bool training_goes_first() const noexcept;
  [[nodiscard]] Result<StepReport> train();
  [[nodiscard]] Result<StepReport> generate();

  RolloutEngine* rollout_;
  TrainingJob* train_;
  ExecutorOptions options_;
  bool trained_ = false;
  double train_debt_ = 0.0;  // training tokens owed for rollout tokens computed
};

}  // namespace tidemill::engines
