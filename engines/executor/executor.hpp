// SPDX-License-Identifier: Apache-2.0
// Chooses what the next iteration of a device runs: rollout, training or both. They take turns on
// one set of threads instead of competing for cores.
#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "engines/executor/executor_options.hpp"
#include "engines/executor/iteration_times.hpp"
#include "engines/executor/job_queue.hpp"
#include "engines/executor/prediction_errors.hpp"
#include "engines/executor/time_shares.hpp"
#include "engines/executor/unit_times.hpp"
#include "engines/rollout_engine.hpp"
#include "engines/step.hpp"
#include "engines/training_job.hpp"

namespace tidemill::engines {

/// A training job whose work has failed.
struct JobFailure {
  TrainingJob* job = nullptr;
  Status status;  // with context
};

/// What one iteration of a device did.
struct Iteration {
  StepReport report;        // of rollout and training together
  bool rolled_out = false;  // a rollout step succeeded; `report` has queue lengths only then
  Status rollout_status;    // the error of the rollout step, if it failed
  std::optional<JobFailure> failed_job;
  Duration rollout_time{0};  // measured; 0 without a clock
  Duration train_time{0};
};

/// Divides the iterations of one device between rollout and training.
///
/// If only one of them has work, it gets all iterations. If both have work and there is no latency
/// goal, `ExecutorOptions::precedence` decides. With `kShares`, each token that one side computes
/// adds to what the other side is owed, so neither starves. With the other two settings, one side
/// waits until the other has no work. The caller must ensure that this happens: in a reinforcement
/// run, rollout stops at the staleness bound, and training at the end of its batch.
///
/// With a latency goal, an iteration is a rollout step, if there is one to run, and then units of
/// training for as long as `TimeShares` allows, chosen so that they are predicted to end in time.
/// If the time that is left is too short for the next unit, it is carried over to later iterations,
/// up to the predicted time of one unit. An individual iteration may therefore exceed the goal by
/// up to one unit. The mean stays within the goal if rollout alone does, apart from the units that
/// `kMaxPause` forces.
///
/// Training jobs share the time of training by weight (`JobQueue`).
/// Threads: one call at a time.
class Executor {
public:
  /// Borrows `rollout`, which may be null, and `clock`, which measures times. A null clock measures
  /// nothing. Requires a clock if `options` has a latency goal.
  Executor(RolloutEngine* rollout, const ExecutorOptions& options, const Clock* clock = nullptr);

  /// Adds a training job, which is borrowed until `remove`. Requires `weight` > 0.
  void add(TrainingJob& job, double weight = 1.0) { jobs_.add(job, weight); }
  /// Removes a job. Ignores jobs that were not added.
  void remove(const TrainingJob& job) { jobs_.remove(job); }

  [[nodiscard]] bool has_work() const;

  /// Runs one iteration. Requires `has_work()`. If the options have a latency goal, training stops
  /// after the current unit once `*interrupt` is true; without a goal, `interrupt` is ignored. A
  /// null `interrupt` never interrupts. `Iteration` reports errors: at most one error of a rollout
  /// step and one of a job. The failed job remains added, with its work cancelled.
  [[nodiscard]] Iteration iterate(const std::atomic<bool>* interrupt = nullptr);

  /// Returns how far predicted times of rollout steps (of units) were from the measured ones.
  [[nodiscard]] const PredictionErrors& rollout_prediction_errors() const noexcept {
    return rollout_prediction_errors_;
  }
  [[nodiscard]] const PredictionErrors& unit_prediction_errors() const noexcept {
    return unit_prediction_errors_;
  }

  /// With a latency goal, the time that an iteration that only trains may take, besides time
  /// carried over. Training stops before a unit that is predicted to exceed it, but runs at least
  /// one.
  static constexpr Duration kTrainingQuantum = std::chrono::milliseconds(20);
  /// If no unit has run for this long, the next iteration that also runs a rollout step gives
  /// training at least `kForcedTraining` and runs at least one unit, even if that exceeds the goal.
  /// A unit that must wait for pages of the cache does not count as run.
  static constexpr Duration kMaxPause = std::chrono::seconds(1);
  static constexpr Duration kForcedTraining = std::chrono::milliseconds(10);
  /// If no unit has run for longer than this when a job has work again, what training is owed is
  /// forgotten. Shorter times without work occur between two steps of a job; they change nothing.
  static constexpr Duration kMaxGap = std::chrono::seconds(2);

private:
  [[nodiscard]] TimePoint now() const { return clock_ != nullptr ? clock_->now() : TimePoint(); }
  [[nodiscard]] bool training_goes_first() const noexcept;
  [[nodiscard]] StepBudget rollout_budget() const;
  void iterate_by_tokens(Iteration& iteration);
  void iterate_by_time(Iteration& iteration, const std::atomic<bool>* interrupt);
  [[nodiscard]] bool train(TrainingJob& job, const StepBudget& budget, Iteration& iteration);
  void train_units(Duration quota, Iteration& iteration, const std::atomic<bool>* interrupt);
  void roll_out(Iteration& iteration);

  RolloutEngine* rollout_;
  ExecutorOptions options_;
  const Clock* clock_;
  JobQueue jobs_;
  double owed_tokens_ = 0.0;  // training tokens owed for rollout tokens computed
  std::optional<TimeShares> shares_;
  IterationTimes iteration_times_;
  UnitTimes unit_times_;
  PredictionErrors rollout_prediction_errors_;
  PredictionErrors unit_prediction_errors_;
  std::int64_t num_decoding_ = 0;      // sequences that the last rollout step decoded
  std::int64_t read_tokens_ = 0;       // `StepReport::read_tokens` of the last rollout step
  std::optional<TimePoint> last_end_;  // of the last iteration, if that had training to do
  TimePoint last_unit_;  // the end of the last unit, or when a job had work again if that is later
  Duration carried_over_{0};  // by iterations that had too little time for a unit
};

}  // namespace tidemill::engines
