// SPDX-License-Identifier: Apache-2.0
// When a run warns that its rewards teach nothing.
#include "workflows/rl/reward_signal.hpp"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tidemill::workflows {
namespace {

using ::testing::HasSubstr;

class RewardSignalTest : public ::testing::Test {
protected:
  void train(double groups, double without_signal) {
    observer_({"train",
               ++step_,
               {{"groups", groups},
                {"groups_without_signal", without_signal},
                {"reward_mean", 0.25},
                {"truncated_share", 0.999}},
               {}});
  }

  std::uint64_t step_ = 0;
  std::vector<std::string> warnings_;
  std::vector<std::string> passed_;
  actors::RecordObserver observer_ = warn_without_signal(
      [this](const actors::StepRecord& record) { passed_.push_back(record.kind); },
      [this](const std::string& line) { warnings_.push_back(line); });
};

TEST_F(RewardSignalTest, FiveStepsInARowWithoutASignalCauseOneWarning) {
  for (int step = 0; step < 4; ++step) {
    train(8, 8);
  }
  observer_({"eval", 4, {{"eval_mean_at_k", 0.0}}, {}});
  EXPECT_TRUE(warnings_.empty());
  train(8, 8);
  ASSERT_EQ(warnings_.size(), 1U);
  EXPECT_THAT(warnings_[0], HasSubstr("no signal for 5 steps"));
  EXPECT_THAT(warnings_[0], HasSubstr("(mean 0.25)"));
  EXPECT_THAT(warnings_[0], HasSubstr("rollout.max_new_tokens"));
  EXPECT_THAT(warnings_[0], HasSubstr("(100% of the responses were cut off)"));
  for (int step = 0; step < 20; ++step) {
    train(8, 8);
  }
  EXPECT_EQ(warnings_.size(), 1U);
  EXPECT_EQ(passed_.size(), 26U);
}

TEST_F(RewardSignalTest, AStepWithASignalStartsTheCountAgain) {
  for (int step = 0; step < 40; ++step) {
    train(8, step % 5 == 4 ? 7 : 8);
  }
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(RewardSignalTest, StepsWithoutGroupsDoNotCount) {
  for (int step = 0; step < 10; ++step) {
    train(0, 0);
  }
  EXPECT_TRUE(warnings_.empty());
}

}  // namespace
}  // namespace tidemill::workflows
