// SPDX-License-Identifier: Apache-2.0
// Tests the models of times, the queue of jobs, and iterations under a latency goal.
#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"
#include "engines/executor/executor.hpp"
#include "tests/support/idle_job.hpp"

namespace tidemill::engines {
namespace {

using namespace std::chrono_literals;

Duration milliseconds(double count) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double, std::milli>(count));
}

// A device whose iterations take 4 ms, 0.2 ms for each decoded and 1 ms for each prefilled token,
// and 10 us for each cached position.
double iteration_ms(const IterationLoad& load) {
  return 4.0 + 0.2 * static_cast<double>(load.decode_tokens) +
         1.0 * static_cast<double>(load.prefill_tokens) +
         0.01 * static_cast<double>(load.read_tokens);
}

TEST(IterationTimes, FitsTheTimeOfEachKindOfWork) {
  IterationTimes times;
  EXPECT_EQ(times.predict({1, 2, 3}), Duration::zero());
  for (std::int64_t i = 0; i < 200; ++i) {
    const IterationLoad load{1 + i % 17, i % 3 == 0 ? 64 + i : 0, 100 * (i % 7)};
    times.add(load, milliseconds(iteration_ms(load)));
  }
  for (const IterationLoad& load :
       {IterationLoad{16, 0, 2000}, IterationLoad{1, 512, 0}, IterationLoad{0, 0, 0}}) {
    EXPECT_NEAR(std::chrono::duration<double>(times.predict(load)).count(),
                1e-3 * iteration_ms(load), 1e-4);
  }
  // 4 + 0.2 * 10 = 6 ms without a prompt: 100 ms leave 94 tokens.
  EXPECT_EQ(times.prefill_within({10, 0, 0}, 100ms, 2048), 94);
  EXPECT_EQ(times.prefill_within({10, 0, 0}, 10ms, 2048), IterationTimes::kMinPrefill);
  EXPECT_EQ(times.prefill_within({10, 0, 0}, 100s, 2048), 2048);
  EXPECT_EQ(times.prefill_within({10, 0, 0}, 10ms, 5), 5);
}

TEST(IterationTimes, APrefillIsEfficientIfItTakesManyTimesAsLongAsTheConstantPart) {
  const auto efficient = [](double constant_ms, double token_ms) {
    IterationTimes times;
    EXPECT_EQ(times.efficient_prefill(), IterationTimes::kFirstPrefill);
    for (std::int64_t i = 0; i < 200; ++i) {
      const std::int64_t tokens = i % 3 == 0 ? 64 + i : 0;
      times.add({1 + i % 17, tokens, 0},
                milliseconds(constant_ms + token_ms * static_cast<double>(tokens)));
    }
    return static_cast<double>(times.efficient_prefill());
  };
  EXPECT_NEAR(efficient(10.0, 0.8), 100.0, 1.0);
  EXPECT_NEAR(efficient(30.0, 0.8), 300.0, 1.0);
  EXPECT_EQ(efficient(1.0, 0.8), IterationTimes::kMinPrefill);
  EXPECT_EQ(efficient(1000.0, 0.8), IterationTimes::kMaxEfficient);
  EXPECT_EQ(efficient(1.0, 0.0), IterationTimes::kMaxEfficient);
}

TEST(IterationTimes, NeverPredictsThatMoreWorkTakesLessTime) {
  IterationTimes times;
  RandomStream random(7);
  for (int i = 0; i < 300; ++i) {
    const IterationLoad load{static_cast<std::int64_t>(random.below(20)),
                             static_cast<std::int64_t>(random.below(100)), 0};
    times.add(load, milliseconds(100.0 * random.uniform()));
    EXPECT_LE(times.predict({0, 0, 0}), times.predict({5, 0, 0}));
    EXPECT_LE(times.predict({5, 0, 0}), times.predict({5, 50, 0}));
    EXPECT_GE(times.predict({0, 0, 0}), Duration::zero());
  }
}

TEST(IterationTimes, FollowsADeviceThatBecomesSlower) {
  IterationTimes times;
  for (int i = 0; i < 500; ++i) {
    times.add({4, 0, 0}, 10ms);
  }
  for (int i = 0; i < 200; ++i) {
    times.add({4, 0, 0}, 20ms);
  }
  EXPECT_GT(times.predict({4, 0, 0}), 19ms);
}

TEST(UnitTimes, LearnsByKindAndScalesByRows) {
  UnitTimes times;
  const UnitKind forward{UnitStage::kForward, 1, 64, 0};
  const UnitKind backward{UnitStage::kBackward, 1, 64, 0};
  EXPECT_EQ(times.predict(forward).bound, Duration::zero());
  for (int i = 0; i < 50; ++i) {
    times.add(forward, 2ms);
    times.add(backward, 4ms);
  }
  EXPECT_EQ(times.predict(forward).bound, 2ms);
  EXPECT_EQ(times.predict(backward).bound, 4ms);
  EXPECT_EQ(times.predict({UnitStage::kForward, 1, 32, 0}).bound, 1ms);
  EXPECT_EQ(times.predict({UnitStage::kOptimizer, 0, 0, 0}).bound, 4ms) << "unknown: the longest";
  // Spans that round up to the same power of two are one kind.
  times.add({UnitStage::kForward, 2, 64, 900}, 3ms);
  EXPECT_EQ(times.predict({UnitStage::kForward, 2, 64, 1000}).bound, 3ms);
}

TEST(UnitTimes, AddsAMarginForTimesThatVary) {
  UnitTimes times;
  for (int i = 0; i < 200; ++i) {
    times.add({}, i % 2 == 0 ? 2ms : 4ms);
  }
  EXPECT_NEAR(std::chrono::duration<double>(times.predict({}).expected).count(), 3e-3, 2e-4);
  EXPECT_GT(times.predict({}).bound, 4ms);
  EXPECT_LT(times.predict({}).bound, 6ms);
}

TEST(PredictionErrors, KeepsTheLastErrors) {
  PredictionErrors errors;
  EXPECT_EQ(errors.quantile(0.5), 0.0);
  for (int i = 0; i < 100; ++i) {
    errors.add(15ms, 10ms);
  }
  EXPECT_NEAR(errors.quantile(0.5), 0.5, 1e-6);
  for (std::size_t i = 0; i < PredictionErrors::kKept - 5; ++i) {
    errors.add(10ms, 10ms);
  }
  EXPECT_NEAR(errors.quantile(0.5), 0.0, 1e-6);
  EXPECT_NEAR(errors.quantile(1.0), 0.5, 1e-6);
}

TEST(PredictionErrors, CountInProportionToTheMeasuredTime) {
  PredictionErrors errors;
  for (int i = 0; i < 10; ++i) {
    errors.add(100us, 10us);
    errors.add(11ms, 10ms);
  }
  EXPECT_NEAR(errors.quantile(0.99), 0.1, 1e-6);
  EXPECT_NEAR(errors.quantile(1.0), 9.0, 1e-6);
}

// A job that has units of a given time to run, on a manual clock.
class TimedJob final : public test::IdleJob {
public:
  TimedJob(ManualClock& clock, Duration unit, std::int64_t units)
      : units_left(units), clock_(clock), unit_(unit) {}
  bool has_work() const override { return units_left > 0; }
  Result<StepReport> advance(const StepBudget& budget) override {
    StepReport report;
    report.waits_for_pages = waits;
    while (!waits && units_left > 0 && report.train_units < budget.units) {
      clock_.advance(unit_);
      --units_left;
      ++units_done;
      ++report.train_units;
    }
    if (fails_at == units_done) {
      return Status(Errc::kInternal, "not finite");
    }
    return report;
  }

  std::int64_t units_left;
  std::int64_t units_done = 0;
  std::int64_t fails_at = -1;
  bool waits = false;

private:
  ManualClock& clock_;
  Duration unit_;
};

// Generates for `sequences` sequences as long as `work` is positive, in iterations of a given time.
class TimedRollout final : public RolloutEngine {
public:
  TimedRollout(ManualClock& clock, Duration iteration) : clock_(clock), iteration_(iteration) {}
  Status submit(RolloutRequest /*request*/, RolloutSink& /*sink*/) override { return {}; }
  void cancel(SampleId /*id*/) override {}
  Status load(Snapshot /*snapshot*/, WeightArrival /*arrival*/) override { return {}; }
  PolicyVersion serving_version() const override { return {}; }
  bool has_work() const override { return work > 0; }
  Result<StepReport> step(const StepBudget& budget) override {
    --work;
    last_budget = budget;
    StepReport report;
    report.decode_tokens = prefills ? 0 : sequences;
    report.prefill_tokens = prefills ? 100 : 0;
    if (per_prefilled > Duration{0}) {
      report.prefill_tokens = std::min(budget.tokens, budget.prefill_tokens);
      report.decode_tokens = sequences;
    }
    clock_.advance(iteration_ + per_prefilled * report.prefill_tokens);
    report.running = sequences;
    return report;
  }

  std::int64_t work = 0;
  std::int64_t sequences = 4;
  bool prefills = false;
  /// If set, an iteration also decodes, and prefills as many tokens as it may, for this time each.
  Duration per_prefilled{0};
  StepBudget last_budget;

private:
  ManualClock& clock_;
  Duration iteration_;
};

constexpr std::int64_t kPlenty = 1'000'000;

ExecutorOptions goal_options(double train_share) {
  ExecutorOptions options;
  options.goal = LatencyGoal{2s, 100ms, train_share};
  return options;
}

class GoalTest : public ::testing::Test {
protected:
  // Runs iterations for `time` and returns the longest.
  Duration run(Executor& executor, Duration time) {
    Duration longest{0};
    for (const TimePoint end = clock_.now() + time; clock_.now() < end;) {
      const TimePoint start = clock_.now();
      const Iteration iteration = executor.iterate();
      EXPECT_TRUE(iteration.rollout_status.ok());
      EXPECT_FALSE(iteration.failed_job.has_value());
      longest = std::max(longest, Duration(clock_.now() - start));
    }
    return longest;
  }

  ManualClock clock_;
  TimedRollout rollout_{clock_, 20ms};
};

TEST_F(GoalTest, JobsShareTimeByWeight) {
  TimedJob one(clock_, 2ms, kPlenty);
  TimedJob two(clock_, 5ms, kPlenty);
  TimedJob three(clock_, 3ms, kPlenty);
  Executor executor(&rollout_, goal_options(0.5), &clock_);
  executor.add(one, 1.0);
  executor.add(two, 2.0);
  executor.add(three, 1.0);
  run(executor, 100s);
  EXPECT_NEAR(static_cast<double>(one.units_done) * 2.0, 25000.0, 250.0);
  EXPECT_NEAR(static_cast<double>(two.units_done) * 5.0, 50000.0, 250.0);
  EXPECT_NEAR(static_cast<double>(three.units_done) * 3.0, 25000.0, 250.0);
}

TEST_F(GoalTest, AJobThatReturnsIsOwedNothing) {
  TimedJob one(clock_, 2ms, kPlenty);
  TimedJob two(clock_, 2ms, 1);
  Executor executor(&rollout_, goal_options(0.5), &clock_);
  executor.add(one);
  executor.add(two);
  run(executor, 10s);
  two.units_left = kPlenty;
  const std::int64_t before = two.units_done;
  run(executor, 1s);
  EXPECT_NEAR(static_cast<double>(two.units_done - before) * 2.0, 500.0, 50.0);
}

TEST_F(GoalTest, IterationsStayWithinTheGoalWhileTrainingIsOwedTime) {
  TimedJob job(clock_, 3ms, kPlenty);
  rollout_.work = kPlenty;
  Executor executor(&rollout_, goal_options(0.95), &clock_);
  executor.add(job);
  run(executor, 10s);  // learns, and falls behind
  const std::int64_t before = job.units_done;
  EXPECT_LE(run(executor, 10s), 90ms);
  // 20 ms of generation leave 70 ms of training in 90 ms.
  EXPECT_GT(static_cast<double>(job.units_done - before) * 3.0, 0.73 * 10000);
}

TEST_F(GoalTest, TheGapBetweenTwoStepsKeepsWhatTrainingIsOwed) {
  TimedJob job(clock_, 3ms, 0);
  rollout_.work = kPlenty;
  Executor executor(&rollout_, goal_options(0.95), &clock_);
  executor.add(job);
  const auto run_steps = [&] {
    for (const TimePoint end = clock_.now() + 20s; clock_.now() < end;) {
      job.units_left = 300;
      while (job.has_work()) {
        EXPECT_TRUE(executor.iterate().rollout_status.ok());
      }
      run(executor, 40ms);  // the next step does not begin at once
    }
  };
  run_steps();
  const std::int64_t before = job.units_done;
  run_steps();
  // 20 ms of generation leave 70 ms of training in 90 ms.
  EXPECT_GT(static_cast<double>(job.units_done - before) * 3.0, 0.7 * 20000);
}

TEST_F(GoalTest, ALongPauseOfTheJobsEndsWhatTrainingIsOwed) {
  TimedJob job(clock_, 3ms, kPlenty);
  rollout_.work = kPlenty;
  Executor executor(&rollout_, goal_options(0.95), &clock_);
  executor.add(job);
  run(executor, 10s);  // training falls behind
  job.units_left = 0;
  run(executor, Executor::kMaxGap + 1s);
  job.units_left = kPlenty;
  EXPECT_LE(run(executor, 100ms), 30ms);
}

TEST_F(GoalTest, IterationsSaveTimeForUnitsThatAreLongerThanTheirRest) {
  for (const Duration unit : {Duration(75ms), Duration(200ms)}) {
    SCOPED_TRACE(unit.count());
    TimedJob job(clock_, unit, kPlenty);
    rollout_.work = kPlenty;
    Executor executor(&rollout_, goal_options(0.95), &clock_);
    executor.add(job);
    run(executor, 10s);
    const std::int64_t units = job.units_done;
    const std::int64_t left = rollout_.work;
    EXPECT_LE(run(executor, 10s), 20ms + unit) << "one unit at a time";
    const double trained =
        std::chrono::duration<double>((job.units_done - units) * unit).count() / 10.0;
    const double token_ms = 10000.0 / static_cast<double>(left - rollout_.work);
    EXPECT_GT(trained, 0.7);
    EXPECT_LE(token_ms, 91.0);
  }
}

TEST_F(GoalTest, TimeSavedDuringAPauseOfTrainingDoesNotGrow) {
  TimedJob job(clock_, 75ms, kPlenty);
  Executor executor(&rollout_, goal_options(0.5), &clock_);
  executor.add(job);
  run(executor, 10s);  // training is ahead
  rollout_.work = kPlenty;
  rollout_.prefills = true;
  run(executor, 900ms);
  rollout_.prefills = false;
  const std::int64_t before = job.units_done;
  run(executor, 400ms);
  EXPECT_LE(job.units_done - before, 2) << "one in kMaxPause, one for the time saved";
}

TEST_F(GoalTest, IterationsGrowByLessThanHalfIfTrainingIsAhead) {
  TimedJob job(clock_, 3ms, kPlenty);
  Executor executor(&rollout_, goal_options(0.5), &clock_);
  executor.add(job);
  run(executor, 10s);  // nothing is generated: training is ahead
  rollout_.work = 30;
  EXPECT_LE(run(executor, 600ms), 30ms);
}

TEST_F(GoalTest, TrainingPausesForABurstOfPromptsAndNotForLong) {
  TimedJob job(clock_, 3ms, kPlenty);
  Executor executor(&rollout_, goal_options(0.75), &clock_);
  executor.add(job);
  run(executor, 10s);
  rollout_.work = kPlenty;
  rollout_.prefills = true;
  std::int64_t before = job.units_done;
  run(executor, 3s);
  EXPECT_LE(job.units_done - before, 12) << "kForcedTraining in kMaxPause";
  run(executor, 10s);
  before = job.units_done;
  run(executor, 10s);
  EXPECT_GT(job.units_done - before, 100) << "the burst does not end";
}

TEST_F(GoalTest, PromptsThatFillEveryIterationLeaveTimeToTrainingThatIsOwedMuch) {
  TimedJob job(clock_, 3ms, kPlenty);
  rollout_.work = kPlenty;
  rollout_.per_prefilled = 250us;
  Executor executor(&rollout_, goal_options(0.8), &clock_);
  executor.add(job);
  run(executor, 10s);  // learns, and falls behind
  const std::int64_t before = job.units_done;
  EXPECT_LE(run(executor, 10s), 100ms);
  const double trained = static_cast<double>(job.units_done - before) * 3.0 / 10000.0;
  EXPECT_GT(trained, 0.25);
  EXPECT_LT(trained, 0.45) << "prompts come first";
}

TEST_F(GoalTest, ChunksThatTakeLongerThanAnIterationLeaveATenthToTraining) {
  TimedJob job(clock_, 3ms, kPlenty);
  rollout_.work = kPlenty;
  rollout_.per_prefilled = 4ms;  // 256 ms for the shortest chunk
  Executor executor(&rollout_, goal_options(0.8), &clock_);
  executor.add(job);
  run(executor, 10s);
  const std::int64_t before = job.units_done;
  run(executor, 10s);
  const double trained = static_cast<double>(job.units_done - before) * 3.0 / 10000.0;
  EXPECT_GT(trained, 0.07);
  EXPECT_LT(trained, 0.1);
}

TEST_F(GoalTest, TrainingThatMustRunGetsMoreThanAShortUnit) {
  TimedJob job(clock_, 100us, kPlenty);
  rollout_.work = kPlenty;
  rollout_.prefills = true;
  Executor executor(&rollout_, goal_options(0.5), &clock_);
  executor.add(job);
  run(executor, 3s);
  EXPECT_GE(job.units_done, 200) << "10 ms each second";
}

TEST_F(GoalTest, TheFirstPrefillIsShort) {
  Executor executor(&rollout_, goal_options(0.75), &clock_);
  rollout_.work = 1;
  rollout_.per_prefilled = 1ms;
  static_cast<void>(executor.iterate());
  EXPECT_EQ(rollout_.last_budget.prefill_tokens, IterationTimes::kFirstPrefill);
}

TEST_F(GoalTest, AnInterruptEndsTrainingAfterTheUnit) {
  TimedJob job(clock_, 3ms, kPlenty);
  Executor executor(&rollout_, goal_options(0.75), &clock_);
  executor.add(job);
  std::atomic<bool> interrupt = true;
  static_cast<void>(executor.iterate(&interrupt));
  EXPECT_EQ(job.units_done, 1);
  interrupt = false;
  static_cast<void>(executor.iterate(&interrupt));
  EXPECT_GE(job.units_done, 1 + Executor::kTrainingQuantum / 3ms);
}

TEST_F(GoalTest, PromptsAreCutToTheGoalBesideSequencesThatDecode) {
  Executor executor(&rollout_, goal_options(0.75), &clock_);
  rollout_.work = 200;
  rollout_.prefills = true;
  run(executor, 1s);  // 100 tokens in 20 ms
  rollout_.prefills = false;
  run(executor, 1s);
  static_cast<void>(executor.iterate());
  EXPECT_LT(rollout_.last_budget.prefill_tokens, 1000);
  EXPECT_GE(rollout_.last_budget.prefill_tokens, IterationTimes::kMinPrefill);
}

TEST_F(GoalTest, AnEfficientIterationBeginsNoFurtherPrompt) {
  Executor executor(&rollout_, goal_options(0.75), &clock_);
  rollout_.work = kPlenty;
  for (rollout_.sequences = 1; rollout_.sequences < 10; ++rollout_.sequences) {
    run(executor, 200ms);  // 20 ms for any number of sequences
  }
  rollout_.per_prefilled = 1ms;
  run(executor, 1s);
  static_cast<void>(executor.iterate());
  EXPECT_NEAR(static_cast<double>(rollout_.last_budget.prefill_target), 160.0, 1.0);
}

TEST_F(GoalTest, AFailureNamesItsJobAndLeavesTheOthersRunning) {
  TimedJob good(clock_, 2ms, kPlenty);
  TimedJob bad(clock_, 2ms, kPlenty);
  bad.fails_at = 1;
  Executor executor(&rollout_, goal_options(0.75), &clock_);
  executor.add(good);
  executor.add(bad);
  Iteration iteration;
  for (int i = 0; i < 100 && !iteration.failed_job.has_value(); ++i) {
    iteration = executor.iterate();
  }
  ASSERT_TRUE(iteration.failed_job.has_value());
  EXPECT_EQ(iteration.failed_job->job, &bad);
  executor.remove(bad);
  const std::int64_t before = good.units_done;
  run(executor, 100ms);
  EXPECT_GE(good.units_done - before, 50);
}

TEST_F(GoalTest, AJobThatWaitsForPagesLetsAnotherRun) {
  TimedJob one(clock_, 2ms, kPlenty);
  TimedJob two(clock_, 2ms, kPlenty);
  one.waits = true;
  Executor executor(&rollout_, goal_options(0.75), &clock_);
  executor.add(one);
  executor.add(two);
  run(executor, 100ms);
  EXPECT_GE(two.units_done, 50);
}

// Each unit takes longer than a turn, so that only the first of an iteration may run.
TEST_F(GoalTest, AJobThatWaitsForPagesUsesUpNoTurn) {
  TimedJob one(clock_, 50ms, kPlenty);
  TimedJob two(clock_, 50ms, kPlenty);
  one.waits = true;
  Executor executor(&rollout_, goal_options(0.75), &clock_);
  executor.add(one);
  executor.add(two);
  const std::atomic<bool> interrupt = true;
  for (int i = 0; i < 100; ++i) {
    static_cast<void>(executor.iterate(&interrupt));
  }
  EXPECT_EQ(two.units_done, 100);
  rollout_.work = kPlenty;
  run(executor, 10s);
  EXPECT_GE(two.units_done, 109);  // at least one in `kMaxPause`
}

}  // namespace
}  // namespace tidemill::engines
