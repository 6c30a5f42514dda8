// SPDX-License-Identifier: Apache-2.0
// Steps the views of one device in turn. Only the executor calls their `step`, so rollout and
// training interleave instead of competing for cores.
#pragma once

#include "base/result.hpp"
#include "engines/executor/executor_options.hpp"
#include "engines/rollout_engine.hpp"
#include "engines/step.hpp"
#include "engines/training_job.hpp"

namespace tidemill::engines {

/// Steps up to two views of one device in turn.
///
/// If only one view has work, it gets all iterations. If both do, `precedence` decides. With
/// shares, every token that one view computes adds to what the other is owed, so neither view can
/// starve. With the other two settings, one view waits until the other has no work. That wait ends:
/// rollout runs out of work at the bound of staleness, and training at the end of its batch.
/// Threads: one call at a time.
class Executor {
public:
  /// Borrows the views, which may be null.
  Executor(RolloutEngine* rollout, TrainingJob* train, const ExecutorOptions& options)
      : rollout_(rollout), train_(train), options_(options) {}

  [[nodiscard]] bool has_work() const;

  /// Runs one iteration of one view or, if that view has to wait for the other, of both. Requires
  /// `has_work()`.
  /// Errors: those of the view, with its name as context.
  [[nodiscard]] Result<StepReport> iterate();
  /// Returns whether the last iteration, or its failure, was one of training.
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
