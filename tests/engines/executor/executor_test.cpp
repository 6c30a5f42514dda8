// SPDX-License-Identifier: Apache-2.0
#include "engines/executor/executor.hpp"

#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/idle_job.hpp"

namespace tidemill::engines {
namespace {

constexpr std::int64_t kRolloutTokens = 64;  // per iteration: one per sequence
constexpr std::int64_t kTrainTokens = 1024;  // per micro-batch

// Views that have work for a given number of iterations and record the order of their steps.
class CountingRollout final : public RolloutEngine {
public:
  CountingRollout(std::string& order, std::int64_t iterations) : work(iterations), order_(order) {}
  Status submit(RolloutRequest /*request*/, RolloutSink& /*sink*/) override { return {}; }
  void cancel(SampleId /*id*/) override {}
  Status load(Snapshot /*snapshot*/, WeightArrival /*arrival*/) override { return {}; }
  PolicyVersion serving_version() const override { return {}; }
  bool has_work() const override { return work > 0; }
  Result<StepReport> step(const StepBudget& /*budget*/) override {
    --work;
    order_ += 'r';
    StepReport report;
    report.decode_tokens = kRolloutTokens;
    return report;
  }
  std::int64_t work;

private:
  std::string& order_;
};

class CountingTrain : public test::IdleJob {
public:
  CountingTrain(std::string& order, std::int64_t iterations) : work(iterations), order_(order) {}
  bool has_work() const override { return work > 0; }
  Result<StepReport> advance(const StepBudget& budget) override {
    --work;
    order_ += 't';
    StepReport report;
    report.train_tokens = std::min(budget.tokens, kTrainTokens);
    return report;
  }
  void cancel() override { work = 0; }
  std::int64_t work;

private:
  std::string& order_;
};

bool succeeds(const Iteration& iteration) {
  return iteration.rollout_status.ok() && !iteration.failed_job.has_value();
}

// Runs up to `iterations` iterations and returns their order as 'r' and 't'.
std::string order_of(const ExecutorOptions& options, std::int64_t rollout, std::int64_t train,
                     int iterations) {
  std::string order;
  CountingRollout rollout_engine(order, rollout);
  CountingTrain train_engine(order, train);
  Executor executor(&rollout_engine, options);
  executor.add(train_engine);
  for (int i = 0; i < iterations && executor.has_work(); ++i) {
    EXPECT_TRUE(succeeds(executor.iterate()));
  }
  return order;
}

// Returns the number of rollout tokens per training token.
double token_ratio(const std::string& order) {
  const auto of = [&](char view) { return static_cast<double>(std::ranges::count(order, view)); };
  return of('r') * kRolloutTokens / (of('t') * kTrainTokens);
}

TEST(Executor, TheOnlyViewWithWorkGetsAllIterations) {
  EXPECT_EQ(order_of({}, 3, 0, 9), "rrr");
  EXPECT_EQ(order_of({}, 0, 3, 9), "ttt");
}

TEST(Executor, WeightsAreSharesOfTokensWhileBothHaveWork) {
  constexpr std::int64_t kPlenty = 1'000'000;
  for (const auto& [rollout, train] :
       {std::pair{1.0, 1.0}, {3.0, 1.0}, {1.0, 4.0}, {0.5, 0.25}, {1e6, 1e5}}) {
    ExecutorOptions options;
    options.rollout_weight = rollout;
    options.train_weight = train;
    const std::string order = order_of(options, kPlenty, kPlenty, 20000);
    EXPECT_NEAR(token_ratio(order) / (rollout / train), 1.0, 0.01) << rollout << " : " << train;
  }
}

TEST(Executor, SharesInterleaveInsteadOfTakingLongTurns) {
  const std::string order = order_of({}, 1000, 1000, 500);
  EXPECT_EQ(order.find("tt"), std::string::npos);
  EXPECT_EQ(order.find(std::string(17, 'r')), std::string::npos);  // 16 * 64 tokens are 1,024
}

// Prompt tokens are work like sampled ones: both count against the share of rollout.
TEST(Executor, PromptTokensCountAsWork) {
  class Prefilling final : public RolloutEngine {
  public:
    explicit Prefilling(std::string& order) : order_(order) {}
    Status submit(RolloutRequest /*request*/, RolloutSink& /*sink*/) override { return {}; }
    void cancel(SampleId /*id*/) override {}
    Status load(Snapshot /*snapshot*/, WeightArrival /*arrival*/) override { return {}; }
    PolicyVersion serving_version() const override { return {}; }
    bool has_work() const override { return true; }
    Result<StepReport> step(const StepBudget& /*budget*/) override {
      order_ += 'r';
      StepReport report;
      report.prefill_tokens = kRolloutTokens / 2;
      report.decode_tokens = kRolloutTokens / 2;
      report.cached_tokens = 1000;  // not computed
      return report;
    }

  private:
    std::string& order_;
  };
  std::string order;
  Prefilling rollout_engine(order);
  CountingTrain train_engine(order, 1'000'000);
  Executor executor(&rollout_engine, {});
  executor.add(train_engine);
  for (int i = 0; i < 20000; ++i) {
    ASSERT_TRUE(succeeds(executor.iterate()));
  }
  EXPECT_EQ(order.front(), 't') << "training goes first if nothing is owed";
  EXPECT_NEAR(token_ratio(order), 1.0, 0.01);
}

TEST(Executor, PrecedenceRunsOneViewUntilItHasNoWork) {
  ExecutorOptions options;
  options.precedence = Precedence::kRollout;
  EXPECT_EQ(order_of(options, 40, 2, 100), std::string(40, 'r') + "tt");
  options.precedence = Precedence::kTrain;
  EXPECT_EQ(order_of(options, 2, 40, 100), std::string(40, 't') + "rr");
}

// Training that waits for pages lets the other view run, which may free them.
TEST(Executor, TrainingThatWaitsDoesNotStopGeneration) {
  class Waiting final : public CountingTrain {
  public:
    using CountingTrain::CountingTrain;
    Result<StepReport> advance(const StepBudget& /*budget*/) override {
      StepReport report;
      report.waits_for_pages = true;
      report.more = true;
      return report;
    }
  };
  std::string order;
  CountingRollout rollout_engine(order, 40);
  Waiting train_engine(order, 1);
  Executor executor(&rollout_engine, {});
  executor.add(train_engine);
  for (int i = 0; i < 40; ++i) {
    ASSERT_TRUE(succeeds(executor.iterate()));
  }
  EXPECT_EQ(order, std::string(40, 'r'));
}

TEST(Executor, WhatAViewDoesAloneAddsNoDebt) {
  std::string order;
  CountingRollout rollout_engine(order, 1000);
  CountingTrain train_engine(order, 0);
  Executor executor(&rollout_engine, {});
  executor.add(train_engine);
  for (int i = 0; i < 500; ++i) {
    ASSERT_TRUE(succeeds(executor.iterate()));
  }
  train_engine.work = 100;
  order.clear();
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(succeeds(executor.iterate()));
  }
  EXPECT_LE(std::ranges::count(order, 't'), 7) << order;
}

}  // namespace
}  // namespace tidemill::engines
