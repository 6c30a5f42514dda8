// SPDX-License-Identifier: Apache-2.0
// One device, one executor: it alone steps the views of a device's model, so that rollout and
// training interleave instead of fighting for cores.
#pragma once

#include <cstdint>
#include <limits>

#include "base/result.hpp"
#include "engines/rollout_engine.hpp"
#include "engines/step.hpp"
#include "engines/train_engine.hpp"

namespace tidemill::engines {

/// How a device's time is shared out.
struct ExecutorOptions {
  /// The most tokens of one rollout iteration and of one training iteration.
  std::int64_t rollout_tokens = 2048;
  std::int64_t train_tokens = 4096;
  /// Of the former, the most in prefill chunks.
  std::int64_t prefill_tokens = std::numeric_limits<std::int64_t>::max();
  /// Tokens of training done for each token of rollout while both have work.
  double train_share = 1.0;
};

/// Steps up to two views of one device in turn.
///
/// When only one view has work it gets all iterations. When both do, the one that is behind its
/// share of tokens runs. Neither can starve: every iteration moves the debt by what it did.
/// Threads: one call at a time.
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
  RolloutEngine* rollout_;
  TrainEngine* train_;
  ExecutorOptions options_;
  double train_debt_ = 0.0;  // training tokens owed (positive) for rollout tokens done
};

}  // namespace tidemill::engines
