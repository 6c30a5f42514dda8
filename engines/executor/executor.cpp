// SPDX-License-Identifier: Apache-2.0
#include "engines/executor/executor.hpp"

#include <algorithm>
#include <utility>

#include "base/check.hpp"

namespace tidemill::engines {
namespace {

// What a training token counts for if times are not measured.
constexpr Duration kTokenTime = std::chrono::milliseconds(1);

// Adds what a training step did to the report of an iteration.
void add_training(const StepReport& training, StepReport& report) {
  report.train_tokens += training.train_tokens;
  report.train_units += training.train_units;
  report.waits_for_pages = report.waits_for_pages || training.waits_for_pages;
  report.virtual_duration += training.virtual_duration;
}

}  // namespace

Executor::Executor(RolloutEngine* rollout, const ExecutorOptions& options, const Clock* clock)
    : rollout_(rollout), options_(options), clock_(clock) {
  if (options.goal.has_value()) {
    TIDEMILL_CHECK(clock != nullptr) << "a latency goal needs a clock";
    shares_.emplace(*options.goal);
  }
}

bool Executor::has_work() const {
  return (rollout_ != nullptr && rollout_->has_work()) || jobs_.has_work();
}

bool Executor::training_goes_first() const noexcept {
  switch (options_.precedence) {
    case Precedence::kShares: return owed_tokens_ >= 0.0;
    case Precedence::kRollout: return false;
    case Precedence::kTrain: return true;
  }
  return false;
}

Iteration Executor::iterate(const std::atomic<bool>* interrupt) {
  TIDEMILL_CHECK(has_work()) << "iterate() called without work";
  Iteration iteration;
  if (shares_.has_value()) {
    iterate_by_time(iteration, interrupt);
  } else {
    iterate_by_tokens(iteration);
  }
  iteration.report.more = has_work();
  return iteration;
}

void Executor::iterate_by_tokens(Iteration& iteration) {
  const bool can_roll_out = rollout_ != nullptr && rollout_->has_work();
  TrainingJob* const job = jobs_.next();
  if (!can_roll_out || job == nullptr) {
    owed_tokens_ = 0.0;  // what one side does while the other is idle adds no debt
  }
  if (job != nullptr && (!can_roll_out || training_goes_first())) {
    if (train(*job, {options_.train_tokens}, iteration)) {
      owed_tokens_ -= static_cast<double>(iteration.report.train_tokens);
    }
    if (!iteration.report.waits_for_pages || !can_roll_out) {
      return;
    }
  }
  roll_out(iteration);
}

// Runs a rollout step first. Then trains for the time that is left, and at least one unit if
// training has paused for long.
void Executor::iterate_by_time(Iteration& iteration, const std::atomic<bool>* interrupt) {
  const bool can_roll_out = rollout_ != nullptr && rollout_->has_work();
  const Duration limit = shares_->iteration_limit(num_decoding_ > 0);
  if (can_roll_out) {
    roll_out(iteration);
  } else {
    num_decoding_ = 0;
  }
  if (!jobs_.has_work()) {
    last_end_.reset();
    return;
  }
  if (!last_end_.has_value()) {
    const TimePoint start = now() - iteration.rollout_time;
    if (start - last_unit_ > kMaxGap) {
      carried_over_ = Duration::zero();
      shares_->reset();
    }
    last_end_ = last_unit_ = start;
  }
  const Duration quota = can_roll_out
                             ? shares_->quota(iteration.report, iteration.rollout_time, limit)
                             : kTrainingQuantum;
  train_units(quota, iteration, interrupt);
  const TimePoint end = now();
  shares_->record(end - *last_end_, iteration.train_time);
  last_end_ = end;
}

void Executor::train_units(Duration quota, Iteration& iteration,
                           const std::atomic<bool>* interrupt) {
  const bool must_train = iteration.rolled_out && now() - last_unit_ >= kMaxPause;
  bool may_exceed = !iteration.rolled_out || must_train;
  if (!may_exceed && quota <= Duration::zero()) {
    return;  // what is carried over is for the time after a burst, too
  }
  if (must_train) {
    quota = std::max(quota, kForcedTraining);
  }
  const Duration without_carry = quota;
  quota += std::exchange(carried_over_, Duration::zero());
  std::vector<TrainingJob*> waiting;  // for pages
  while (TrainingJob* const job = jobs_.next(waiting)) {
    const UnitKind kind = job->next_unit();
    const UnitTime predicted = unit_times_.predict(kind);
    if (!may_exceed && iteration.train_time + predicted.bound > quota) {
      if (predicted.bound > without_carry) {
        carried_over_ = std::clamp(quota - iteration.train_time, Duration::zero(), predicted.bound);
      }
      return;
    }
    iteration.report.waits_for_pages = false;
    StepBudget budget{options_.train_tokens};
    budget.units = 1;
    const Duration time_before = iteration.train_time;
    const std::int64_t units_before = iteration.report.train_units;
    if (!train(*job, budget, iteration)) {
      return;
    }
    if (iteration.report.train_units > units_before) {
      const Duration spent = iteration.train_time - time_before;
      unit_prediction_errors_.add(predicted.expected, spent);
      unit_times_.add(kind, spent);
    }
    if (iteration.report.waits_for_pages) {
      waiting.push_back(job);  // it did nothing, so another job has its turn
      continue;
    }
    may_exceed = false;
    if (interrupt != nullptr && interrupt->load(std::memory_order_relaxed)) {
      return;
    }
  }
}

// Advances a job. Returns false, and sets `failed_job`, if that fails.
bool Executor::train(TrainingJob& job, const StepBudget& budget, Iteration& iteration) {
  const TimePoint start = now();
  auto report = job.advance(budget);
  const TimePoint end = now();
  // Without a clock, tokens stand for time.
  jobs_.charge(job, clock_ != nullptr || !report.ok()
                        ? end - start
                        : Duration(report.value().train_tokens * kTokenTime.count()));
  iteration.train_time += end - start;
  if (!report.ok()) {
    iteration.failed_job = JobFailure{&job, report.status().with_context("training step")};
    return false;
  }
  last_unit_ = report.value().waits_for_pages ? last_unit_ : end;
  add_training(report.value(), iteration.report);
  return true;
}

// Limits prompts to what the latency goal leaves beside sequences that are being decoded. Without
// such sequences, the goal for first tokens bounds them. An iteration that is long enough to be
// efficient begins no further prompt.
StepBudget Executor::rollout_budget() const {
  StepBudget budget{options_.rollout_tokens, options_.prefill_tokens};
  if (shares_.has_value()) {
    const Duration limit = shares_->iteration_limit(num_decoding_ > 0);
    budget.prefill_tokens = iteration_times_.prefill_within(
        {num_decoding_, 0, read_tokens_}, jobs_.has_work() ? shares_->prefill_limit(limit) : limit,
        std::min(budget.tokens, budget.prefill_tokens));
    budget.prefill_target = iteration_times_.efficient_prefill();
  }
  return budget;
}

void Executor::roll_out(Iteration& iteration) {
  const StepBudget budget = rollout_budget();
  const TimePoint start = now();
  auto report = rollout_->step(budget);
  iteration.rollout_time = now() - start;
  if (!report.ok()) {
    iteration.rollout_status = report.status().with_context("rollout step");
    return;
  }
  const StepReport training = iteration.report;
  iteration.report = std::move(report).value();
  add_training(training, iteration.report);
  iteration.rolled_out = true;
  const StepReport& done = iteration.report;
  owed_tokens_ += options_.train_weight / options_.rollout_weight *
                  static_cast<double>(done.prefill_tokens + done.decode_tokens);
  if (shares_.has_value()) {
    const IterationLoad load{done.decode_tokens, done.prefill_tokens, done.read_tokens};
    rollout_prediction_errors_.add(iteration_times_.predict(load), iteration.rollout_time);
    iteration_times_.add(load, iteration.rollout_time);
    num_decoding_ = done.decode_tokens;
    read_tokens_ = done.read_tokens;
  }
}

}  // namespace tidemill::engines
