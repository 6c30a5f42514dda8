// SPDX-License-Identifier: Apache-2.0
// Tests the contract of actors/keeper/handles.hpp with one device, handler by handler.
#include <chrono>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/actors/keeper_fixture.hpp"

namespace tidemill::test {
namespace {

using actors::KeeperStatus;
using namespace std::chrono_literals;
using ::testing::HasSubstr;

// -- admit ----------------------------------------------------------------------------------------

TEST_F(KeeperTest, AdmitGrantsWholeGroupsUpToTheCapacity) {
  start();
  const auto first = admit(1);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(first.value().groups, 1U);
  EXPECT_EQ(first.value().first_group, 0U);
  const auto rest = admit(8);
  ASSERT_TRUE(rest.ok());
  EXPECT_EQ(rest.value().groups, 1U);  // one batch may be in flight: max_staleness is 0
  EXPECT_EQ(rest.value().first_group, 1U);
  EXPECT_EQ(status().running, 4);
  EXPECT_EQ(status().capacity, 0);
}

TEST_F(KeeperTest, AdmitNeverGrantsAPartOfAGroup) {
  options_.max_concurrent = 3;
  start();
  EXPECT_EQ(admit(8).value().groups, 1U);
  EXPECT_EQ(status().capacity, 1);
  EXPECT_FALSE(admit(8).arrived());
}

TEST_F(KeeperTest, AdmitGrantsNoneAndGivesTheReasonAfterItsWait) {
  start();
  admit(8);
  const auto reply = admit(1, 5s);
  advance(4s);
  EXPECT_FALSE(reply.arrived());
  advance(1s);
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply.value().groups, 0U);
  EXPECT_THAT(reply.value().waiting_for, HasSubstr("version 1"));
}

TEST_F(KeeperTest, AdmitGrantsMoreWithTheNextVersion) {
  start();
  admit(8);
  const auto reply = admit(8, 1h);
  record({4, 0, 0, 0});
  EXPECT_FALSE(reply.arrived());
  publish(1);
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply.value().groups, 2U);
  EXPECT_EQ(reply.value().first_group, 2U);
  EXPECT_EQ(reply.value().min_step, 1U);
}

TEST_F(KeeperTest, AdmitNeverGrantsMoreThanTheRunWillTrain) {
  options_.total_steps = 1;
  options_.max_staleness = 5;
  start();
  EXPECT_EQ(admit(8).value().groups, 2U);
  const auto reply = admit(8, 1s);
  advance(1s);
  EXPECT_THAT(reply.value().waiting_for, HasSubstr("last batches"));
}

// -- record ---------------------------------------------------------------------------------------

TEST_F(KeeperTest, RecordFreesTheSlotsOfGroupsThatLeave) {
  start();
  admit(8);
  const auto aborted = admit(8, 1h);
  record({0, 2, 0, 0});
  EXPECT_EQ(aborted.value().groups, 1U);
  const auto rejected = admit(8, 1h);
  record({0, 0, 2, 0});
  EXPECT_EQ(rejected.value().groups, 1U);
  const auto forfeited = admit(8, 1h);
  record({2, 0, 0, 0});
  EXPECT_FALSE(forfeited.arrived());  // finished rows keep their slots
  record({0, 0, 0, 2});
  EXPECT_EQ(forfeited.value().groups, 1U);
  EXPECT_EQ(forfeited.value().first_group, 4U);
}

TEST_F(KeeperTest, ARecordThatContradictsTheLedgerEndsTheKeeper) {
  start();
  admit(1);
  record({3, 0, 0, 0});  // only two are in flight
  ASSERT_TRUE(exit_->has_value());
  EXPECT_THAT((*exit_)->message(), HasSubstr("underflow"));
}

// -- publish, load --------------------------------------------------------------------------------

TEST_F(KeeperTest, PublishRaisesTheVersionAndMakesTheDeviceLoadIt) {
  start();
  const auto reply = publish(1);
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply.value(), (PolicyVersion{0, 0, 1}));
  EXPECT_EQ(status().step, 1U);
  EXPECT_EQ(status().serving_step, 0U);  // the device has not accepted it yet
  load();
  EXPECT_EQ(status().serving_step, 1U);
}

TEST_F(KeeperTest, PublishRefusesEveryStepButTheNext) {
  start();
  EXPECT_EQ(publish(2).status().code(), Errc::kStaleVersion);
  EXPECT_EQ(publish(0).status().code(), Errc::kStaleVersion);
  EXPECT_EQ(publish(1, /*incarnation=*/1).status().code(), Errc::kStaleVersion);
  EXPECT_TRUE(publish(1).ok());
  EXPECT_EQ(publish(1).status().code(), Errc::kStaleVersion);
  EXPECT_FALSE(exit_->has_value());
  EXPECT_EQ(status().step, 1U);
}

TEST_F(KeeperTest, WhileOneVersionLoadsOnlyTheNewestOfTheOthersIsKept) {
  start();
  publish(1);
  publish(2);
  publish(3);
  ASSERT_EQ(device_->loads.size(), 1U);
  EXPECT_EQ(load().step, 1U);
  EXPECT_EQ(load().step, 3U);
  EXPECT_TRUE(device_->loads.empty());
}

TEST_F(KeeperTest, WeightsThatADeviceRefusesEndTheKeeper) {
  start();
  publish(1);
  take(device_->loads).fail({Errc::kCorruptData, "digest does not match"});
  drain();
  ASSERT_TRUE(exit_->has_value());
  EXPECT_EQ((*exit_)->code(), Errc::kCorruptData);
  EXPECT_THAT((*exit_)->message(), HasSubstr("loading new weights"));
}

TEST_F(KeeperTest, ADeviceThatTerminatesOrNeverRepliesEndsTheKeeper) {
  start();
  publish(1);
  advance(6min);
  ASSERT_TRUE(exit_->has_value());
  EXPECT_EQ((*exit_)->code(), Errc::kTimeout);

  start();
  kill(device_handle_);
  publish(1);
  ASSERT_TRUE(exit_->has_value());
  EXPECT_EQ((*exit_)->code(), Errc::kUnavailable);
}

TEST_F(KeeperTest, AFixedOrderLoadsOnceOlderVersionsHaveGeneratedTheirRows) {
  options_.generation_order = actors::GenerationOrder::kFixed;
  options_.max_staleness = 1;
  start();
  EXPECT_EQ(admit(8).value().groups, 2U);
  EXPECT_EQ(admit(8).value().groups, 2U);
  record({4, 0, 0, 0});  // batch 0; batch 1 is also generated by version 0
  publish(1);
  EXPECT_TRUE(device_->loads.empty());
  record({2, 2, 0, 0});  // a group that leaves keeps its slots: no other replaces it
  EXPECT_EQ(load().step, 1U);
  EXPECT_EQ(status().accepted, 8);
}

TEST_F(KeeperTest, AFixedOrderTakesTheVersionOfARowFromItsBatch) {
  options_.generation_order = actors::GenerationOrder::kFixed;
  options_.max_staleness = 1;
  start();
  const auto first = admit(8);
  EXPECT_EQ(first.value().groups, 2U) << "an admission ends with its batch";
  EXPECT_EQ(first.value().min_step, 0U);
  record({4, 0, 0, 0});
  publish(1);
  // The source is slow: version 1 is published, but the groups of batch 1 come only now. Version 1
  // is not loaded before version 0 has generated them, so they must not wait for version 1.
  EXPECT_TRUE(device_->loads.empty());
  const auto second = admit(1);
  EXPECT_EQ(second.value().min_step, 0U);
  const auto third = admit(8);
  EXPECT_EQ(third.value().groups, 1U);
  EXPECT_EQ(third.value().min_step, 0U);
  record({4, 0, 0, 0});
  EXPECT_EQ(load().step, 1U);
  EXPECT_EQ(admit(8).value().min_step, 1U) << "batch 2";
}

TEST_F(KeeperTest, AFixedOrderRefusesACommitOfOtherBatches) {
  options_.generation_order = actors::GenerationOrder::kFixed;
  options_.step = 3;
  options_.next_group = 5;  // three batches of two groups have taken six
  start();
  ASSERT_TRUE(exit_->has_value());
  EXPECT_EQ((*exit_)->code(), Errc::kInvalidArgument);
  EXPECT_THAT((*exit_)->message(), HasSubstr("train.prompts_per_step"));
}

TEST_F(KeeperTest, AnAdmissionThatIsGrantedLeavesNoTimer) {
  start();
  for (int i = 0; i < 20; ++i) {
    const auto waiting = admit(1, 1h);
    ASSERT_TRUE(waiting.ok() || i >= 2);
  }
  for (std::uint64_t step = 1; step <= 9; ++step) {
    record({4, 0, 0, 0});
    publish(step);
    load();
    advance(1s);
  }
  EXPECT_EQ(status().admitted_groups, 20U);
  advance(6min);  // past the deadlines of the loads
  EXPECT_LE(num_timers(), 1U);
}

// -- waits ----------------------------------------------------------------------------------------

TEST_F(KeeperTest, WaitsRepliesOnceTheStepIsServed) {
  start();
  const auto now = ask<PolicyVersion>(keeper_, atom::waits_v, std::uint64_t{0});
  const auto later = ask<PolicyVersion>(keeper_, atom::waits_v, std::uint64_t{1});
  drain();
  EXPECT_TRUE(now.ok());
  publish(1);
  EXPECT_FALSE(later.arrived());
  load();
  ASSERT_TRUE(later.ok());
  EXPECT_EQ(later.value().step, 1U);
}

// -- finish, restart ------------------------------------------------------------------------------

TEST_F(KeeperTest, FinishFreesTheSlotsOfGroupsThatWereNeverPut) {
  start();
  EXPECT_EQ(admit(8).value().groups, 2U);
  caf::anon_send(keeper_, atom::finish_v, std::uint64_t{1});
  drain();
  EXPECT_EQ(status().running, 2);
  EXPECT_EQ(status().admitted_groups, 1U);
  const auto none = admit(8, 1s);
  advance(1s);
  EXPECT_EQ(none.value().groups, 0U);  // none will follow
}

TEST_F(KeeperTest, FinishLetsAFixedOrderLoadItsLastVersion) {
  options_.generation_order = actors::GenerationOrder::kFixed;
  start();
  admit(8);
  record({2, 0, 0, 0});
  publish(1);
  record({2, 0, 0, 0});
  load();
  EXPECT_EQ(admit(8).value().groups, 2U);
  publish(2);
  EXPECT_TRUE(device_->loads.empty());
  record({2, 0, 0, 0});
  caf::anon_send(keeper_, atom::finish_v, std::uint64_t{3});  // the second group was never put
  drain();
  EXPECT_EQ(load().step, 2U);
}

TEST_F(KeeperTest, FinishBeyondTheAdmittedGroupsEndsTheKeeper) {
  start();
  admit(8);
  caf::anon_send(keeper_, atom::finish_v, std::uint64_t{3});
  drain();
  ASSERT_TRUE(exit_->has_value());
  EXPECT_EQ((*exit_)->code(), Errc::kInternal);
}

TEST_F(KeeperTest, ARestartedKeeperCountsTheRowsOfItsCommit) {
  options_.max_staleness = 1;
  options_.step = 3;
  options_.incarnation = 2;
  options_.next_group = 9;
  options_.finished_rows = 3;
  options_.unfinished_rows = 3;
  start();
  const KeeperStatus restored = status();
  EXPECT_EQ(restored.step, 3U);
  EXPECT_EQ(restored.incarnation, 2U);
  EXPECT_EQ(restored.running, 3);
  EXPECT_EQ(restored.capacity, 2);  // two batches of 4, minus the 6 live rows
  const auto reply = admit(8);
  EXPECT_EQ(reply.value().groups, 1U);
  EXPECT_EQ(reply.value().first_group, 9U);
  EXPECT_EQ(reply.value().min_step, 3U);
  EXPECT_EQ(publish(4, /*incarnation=*/0).status().code(), Errc::kStaleVersion);
  EXPECT_TRUE(publish(4, /*incarnation=*/2).ok());
}

}  // namespace
}  // namespace tidemill::test
