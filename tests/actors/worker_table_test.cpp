// SPDX-License-Identifier: Apache-2.0
// Tests the states of actors/supervisor/worker_table.hpp, and each failure policy.
#include "actors/supervisor/worker_table.hpp"

#include <chrono>
#include <string>

#include <gtest/gtest.h>

namespace tidemill::test {
namespace {

using actors::FailurePolicy;
using actors::WorkerEnd;
using actors::WorkerState;
using actors::WorkerTable;
using namespace std::chrono_literals;
using Action = WorkerEnd::Action;

const Status kBroken{Errc::kInternal, "broken"};

class WorkerTableTest : public ::testing::Test {
protected:
  WorkerEnd end(const std::string& name, const Status& why = kBroken) {
    return table_.ended(name, why, now_);
  }
  void add(const std::string& name, const std::string& kind,
           FailurePolicy policy = FailurePolicy::kRestart) {
    table_.add(name, kind, policy, now_);
  }
  WorkerState state_of(const std::string& name) { return table_.find(name)->state; }

  TimePoint now_ = TimePoint{} + 1h;
  WorkerTable table_{{.max_restarts = 2, .delay = 200ms, .stable_after = 1min}};
};

TEST_F(WorkerTableTest, AWorkerIsRestartedAfterADelayThatDoubles) {
  add("rollout-0", "rollout");
  const WorkerEnd first = end("rollout-0");
  EXPECT_EQ(first.action, Action::kRestart);
  EXPECT_EQ(first.delay, 200ms);
  EXPECT_EQ(first.note, "rollout-0 died and will be restarted: broken");
  EXPECT_EQ(state_of("rollout-0"), WorkerState::kWaiting);
  table_.restarted("rollout-0", now_);
  EXPECT_EQ(state_of("rollout-0"), WorkerState::kRunning);
  EXPECT_EQ(end("rollout-0").delay, 400ms);
  EXPECT_EQ(table_.find("rollout-0")->deaths, 2U);
  table_.restarted("rollout-0", now_);
  const WorkerEnd last = end("rollout-0");
  EXPECT_EQ(last.action, Action::kFailRun);
  EXPECT_EQ(last.failure.message(), "rollout-0 died 3 times in a row: broken");
}

TEST_F(WorkerTableTest, AStableWorkerStartsItsCountAgain) {
  add("rollout-0", "rollout");
  for (int i = 0; i < 10; ++i) {
    now_ += 1min;
    EXPECT_EQ(end("rollout-0").delay, 200ms);
    table_.restarted("rollout-0", now_);
  }
}

TEST_F(WorkerTableTest, AFailureThatWouldRepeatFailsTheRun) {
  add("reward-0", "reward");
  const WorkerEnd last = end("reward-0", invalid_argument("no reward"));
  EXPECT_EQ(last.action, Action::kFailRun);
  EXPECT_EQ(last.failure.code(), Errc::kInvalidArgument);
  EXPECT_EQ(last.failure.message(), "reward-0: no reward");
}

TEST_F(WorkerTableTest, APolicyFailsTheRunAtTheFirstEnd) {
  add("rollout-0", "rollout", FailurePolicy::kFailRun);
  add("rollout-1", "rollout");
  const WorkerEnd last = end("rollout-0", Status());
  EXPECT_EQ(last.action, Action::kFailRun);
  EXPECT_EQ(last.failure.message(), "rollout-0: it ended before the run did");
}

TEST_F(WorkerTableTest, APolicyDropsAWorkerUnlessItIsTheLastOfItsRole) {
  add("rollout-0", "rollout", FailurePolicy::kDrop);
  add("rollout-1", "rollout", FailurePolicy::kDrop);
  add("reward-0", "reward");
  const WorkerEnd dropped = end("rollout-0", invalid_argument("bad"));
  EXPECT_EQ(dropped.action, Action::kNone);
  EXPECT_EQ(dropped.note, "rollout-0 died and is dropped: bad");
  EXPECT_EQ(table_.find("rollout-0"), nullptr);
  const WorkerEnd last = end("rollout-1");
  EXPECT_EQ(last.action, Action::kFailRun);
  EXPECT_EQ(last.failure.message(), "rollout-1, the last worker of its kind: broken");
}

TEST_F(WorkerTableTest, ADrainedWorkerIsNotRestarted) {
  add("rollout-0", "rollout");
  add("rollout-1", "rollout");
  EXPECT_TRUE(table_.drain("rollout-0").ok());
  EXPECT_EQ(state_of("rollout-0"), WorkerState::kDraining);
  EXPECT_EQ(table_.drain("rollout-0").code(), Errc::kUnavailable) << "it is draining already";
  EXPECT_EQ(table_.drain("rollout-1").code(), Errc::kInvalidArgument) << "it is the last one";
  const WorkerEnd done = end("rollout-0", Status());
  EXPECT_EQ(done.action, Action::kNone);
  EXPECT_EQ(done.note, "rollout-0 was drained");
  EXPECT_EQ(table_.find("rollout-0"), nullptr);
}

TEST_F(WorkerTableTest, AWorkerThatDiesWhileItIsDrainedIsGone) {
  add("rollout-0", "rollout");
  add("rollout-1", "rollout");
  ASSERT_TRUE(table_.drain("rollout-1").ok());
  EXPECT_EQ(end("rollout-1").note, "rollout-1 died while it was drained: broken");
  EXPECT_EQ(table_.workers().size(), 1U);
}

TEST_F(WorkerTableTest, ARemovedWorkerIsForgottenWhateverItsState) {
  add("rollout-0", "rollout");
  add("rollout-1", "rollout");
  add("rollout-2", "rollout");
  end("rollout-1");  // waits for its restart
  EXPECT_TRUE(table_.remove("rollout-1").ok());
  EXPECT_TRUE(table_.remove("rollout-0").ok());
  const WorkerEnd done = end("rollout-0");  // its actor ends later
  EXPECT_EQ(done.action, Action::kNone);
  EXPECT_EQ(done.note, "");
  EXPECT_EQ(table_.remove("rollout-2").message(),
            "rollout-2 is the last worker of its kind: add another one first");
  EXPECT_EQ(table_.remove("rollout-9").code(), Errc::kNotFound);
  EXPECT_EQ(table_.workers().size(), 1U);
}

}  // namespace
}  // namespace tidemill::test
