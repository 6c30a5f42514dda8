// SPDX-License-Identifier: Apache-2.0
// One device, one executor: it alone steps the views of a device's model, so that rollout and
// training interleave instead of fighting for cores.
#pragma once

#include "base/result.hpp"
#include "engines/executor/executor_options.hpp"
#include "engines/rollout_engine.hpp"
#include "engines/step.hpp"
#include "engines/train_engine.hpp"

namespace tidemill::engines {

/// Steps up to two views of one device in turn.
///
/// When only one view has work it gets all iterations. When both do, `precedence` decides. With
/// shares neither can starve: every iteration moves the debt by what it did. Where one view goes
/// first, the other waits for it to run dry, as both do: rollout at the bound of staleness,
/// training at the end of its batch. Threads: one call at a time.
class Executor {
public:
  /// Borrows the views, which may be null.
  Executor(RolloutEngine* rollout, TrainEngine* train, const ExecutorOptions& options)
      : rollout_(rollout), train_(train), options_(options) {}

  [[nodiscard]] bool has_work() const;

  /// Runs one iteration of one view. Requires `has_work()`.
  /// Errors: those of the view, saying which.
  [[nodiscard]] Result<StepReport> iterate();

private:
  [[nodiscard]] bool training_goes_first() const noexcept;

  RolloutEngine* rollout_;
  TrainEngine* train_;
  ExecutorOptions options_;
  double train_debt_ = 0.0;  // training tokens owed (positive) for rollout tokens done; in shares
};

}  // namespace tidemill::engines
