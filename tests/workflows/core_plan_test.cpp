// SPDX-License-Identifier: Apache-2.0
#include "workflows/processes/core_plan.hpp"

#include <numeric>
#include <thread>

#include <gtest/gtest.h>

namespace tidemill::workflows {
namespace {

CoreList first_cores(int count) {
  CoreList cores(static_cast<std::size_t>(count));
  std::iota(cores.begin(), cores.end(), 0);
  return cores;
}

std::string divided(int cores, int rollout, int reward) {
  return to_text(divide_cores(first_cores(cores), rollout, reward));
}

TEST(CorePlan, EveryCoreBelongsToOneProcess) {
  EXPECT_EQ(divided(8, 2, 2),
            "process of the run: 0-1; rollout process 0: 2-3; rollout process 1: 4-5; reward "
            "process 0: 6; reward process 1: 7");
  EXPECT_EQ(divided(9, 2, 1),
            "process of the run: 0-3; rollout process 0: 4-5; rollout process 1: 6-7; reward "
            "process 0: 8");
  EXPECT_EQ(divided(4, 0, 3),
            "process of the run: 0; reward process 0: 1; reward process 1: 2; reward process 2: 3");
  EXPECT_EQ(divided(3, 2, 0), "process of the run: 0; rollout process 0: 1; rollout process 1: 2");
}

TEST(CorePlan, WithFewCoresRewardsUseThoseOfTheRun) {
  EXPECT_EQ(divided(4, 2, 2),
            "process of the run: 0-1; rollout process 0: 2; rollout process 1: 3; reward process "
            "0: 0-1; reward process 1: 0-1");
}

TEST(CorePlan, WithFewerCoresThanEnginesAllProcessesUseAll) {
  for (const int cores : {1, 2}) {
    const CorePlan plan = divide_cores(first_cores(cores), 2, 2);
    EXPECT_TRUE(plan.owner.empty());
    EXPECT_EQ(plan.rollout, std::vector<CoreList>(2));
    EXPECT_EQ(plan.reward, std::vector<CoreList>(2));
  }
}

TEST(CorePlan, AListOfCoresSurvivesItsText) {
  for (const CoreList& cores :
       {CoreList{}, CoreList{3}, CoreList{0, 1, 2}, CoreList{0, 2, 3, 7, 9, 10}}) {
    const auto read = parse_cores(to_text(cores));
    ASSERT_TRUE(read.ok()) << to_text(cores);
    EXPECT_EQ(read.value(), cores);
  }
  EXPECT_EQ(to_text(CoreList{0, 1, 3, 5, 6, 7}), "0-1,3,5-7");
}

TEST(CorePlan, WhatIsNoListIsRefused) {
  for (const char* text : {"a", "1,", ",1", "3-", "3-1", "-1", "1;2", "1-2-3", "99999", "1,,2"}) {
    const auto read = parse_cores(text);
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_EQ(read.status().message(), std::string(text) + ": no list of cores");
  }
}

TEST(CorePlan, AScopeChangesTheCoresOfItsThreadAndOfThoseThatItStarts) {
  const CoreList before = usable_core_list();
  ASSERT_FALSE(before.empty());
  {
    const CoreScope scope({before.back()});
    EXPECT_EQ(usable_core_list(), CoreList{before.back()});
    CoreList started;
    std::thread([&started] { started = usable_core_list(); }).join();
    EXPECT_EQ(started, CoreList{before.back()});
  }
  EXPECT_EQ(usable_core_list(), before);
  EXPECT_EQ(use_cores({CPU_SETSIZE - 1}).code(), Errc::kUnavailable);
  EXPECT_EQ(usable_core_list(), before);
}

}  // namespace
}  // namespace tidemill::workflows
