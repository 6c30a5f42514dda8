// SPDX-License-Identifier: Apache-2.0
// Tests the contract of actors/keeper/handles.hpp, handler by handler.
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/keeper/spawn.hpp"
#include "actors/router/spawn.hpp"
#include "tests/support/actor_test.hpp"
#include "tests/support/fake_actors.hpp"

namespace tidemill::test {
namespace {

using actors::Admission;
using actors::DeviceState;
using actors::DeviceStatus;
using actors::KeeperStatus;
using namespace std::chrono_literals;
using ::testing::HasSubstr;

class KeeperTest : public ActorTest {
protected:
  void SetUp() override {
    options_.group_size = 2;
    options_.batch_rows = 4;
    options_.max_concurrent = 100;
    options_.total_steps = 10;
  }
  void start() { start_with({}); }
  // Spawns the keeper with `device_` and with others, which are named after their numbers.
  void start_with(const std::vector<std::shared_ptr<FakeDevice>>& others) {
    device_handle_ = keep(spawn_fake_device(system(), device_));
    actors::KeeperDeps deps;
    deps.devices.push_back({"device", device_handle_});
    for (const auto& other : others) {
      other_handles_.push_back(keep(spawn_fake_device(system(), other)));
      deps.devices.push_back(
          {"device-" + std::to_string(deps.devices.size()), other_handles_.back()});
    }
    deps.router = keep(actors::spawn_router(system(), {deps.devices}));
    router_ = deps.router;
    deps.options = options_;
    deps.log = [this](const std::string& line) { log_.push_back(line); };
    deps.weights.version = {0, options_.incarnation, options_.step};
    deps.weights.base_digest = "at the start";
    keeper_ = keep(actors::spawn_keeper(system(), std::move(deps)));
    exit_ = exit_of(keeper_);
  }
  Reply<Admission> admit(std::uint32_t groups, Duration wait = 5s) {
    auto reply = ask<Admission>(keeper_, atom::admit_v, actors::AdmissionRequest{groups, wait});
    drain();
    return reply;
  }
  Reply<PolicyVersion> publish(std::uint64_t step, std::uint32_t incarnation = 0) {
    engines::Snapshot snapshot;
    snapshot.version = {0, incarnation, step};
    auto reply = ask<PolicyVersion>(keeper_, atom::publish_v, snapshot);
    drain();
    return reply;
  }
  // The device accepts the oldest weights that it has been given.
  PolicyVersion load() { return load(*device_); }
  PolicyVersion load(FakeDevice& device) {
    auto pending = take(device.loads);
    const PolicyVersion version = pending.request.version;
    pending.reply(version);
    drain();
    return version;
  }
  void record(const storage::SlotChanges& changes) {
    caf::anon_send(keeper_, atom::record_v, changes);
    drain();
  }
  KeeperStatus status() {
    const auto reply = ask<KeeperStatus>(keeper_, atom::status_v);
    drain();
    EXPECT_TRUE(reply.ok());
    return reply.value();
  }

  // Asks to let the fake device join, under this name.
  Reply<DeviceStatus> join(const std::string& name, const std::shared_ptr<FakeDevice>& device) {
    other_handles_.push_back(keep(spawn_fake_device(system(), device)));
    auto reply = ask<DeviceStatus>(keeper_, atom::join_v,
                                   actors::join_request({name, other_handles_.back()}));
    drain();
    return reply;
  }
  Reply<DeviceStatus> leave(const std::string& name) {
    auto reply = ask<DeviceStatus>(keeper_, atom::leave_v, name);
    drain();
    return reply;
  }
  // Sends a request through the router.
  Reply<engines::RolloutResult> generate(std::uint64_t id) {
    engines::RolloutRequest request;
    request.id = {id};
    auto reply = ask<engines::RolloutResult>(router_, atom::generate_v, request);
    drain();
    return reply;
  }

  actors::KeeperOptions options_;
  std::shared_ptr<FakeDevice> device_ = std::make_shared<FakeDevice>();
  actors::DeviceActor device_handle_;
  std::vector<actors::DeviceActor> other_handles_;
  actors::RouterActor router_;
  std::vector<std::string> log_;
  actors::KeeperActor keeper_;
  std::shared_ptr<std::optional<Status>> exit_;
};

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

// -- several devices ------------------------------------------------------------------------------

TEST_F(KeeperTest, EachDeviceLoadsTheNewestVersionByItself) {
  const auto slow = std::make_shared<FakeDevice>();
  start_with({slow});
  publish(1);
  publish(2);
  EXPECT_EQ(load().step, 1U);
  EXPECT_EQ(load().step, 2U);
  EXPECT_EQ(status().serving_step, 0U) << "the slow device still serves the first version";
  EXPECT_EQ(status().devices.at(0).serving_step, 2U);
  EXPECT_EQ(status().devices.at(1).loading_step, 1U);
  EXPECT_EQ(load(*slow).step, 1U);
  EXPECT_EQ(load(*slow).step, 2U);
  EXPECT_EQ(status().serving_step, 2U);
}

TEST_F(KeeperTest, ADeviceThatRefusesWeightsIsQuarantinedAndTheOthersGoOn) {
  const auto sound = std::make_shared<FakeDevice>();
  start_with({sound});
  publish(1);
  const auto served = ask<PolicyVersion>(keeper_, atom::waits_v, std::uint64_t{1});
  load(*sound);
  EXPECT_FALSE(served.arrived());
  take(device_->loads).fail({Errc::kCorruptData, "digest does not match"});
  drain();
  EXPECT_FALSE(exit_->has_value());
  EXPECT_EQ(log_, std::vector<std::string>{
                      "device is quarantined: loading new weights: digest does not match"});
  EXPECT_TRUE(served.ok()) << "nothing waits for the quarantined device";
  EXPECT_EQ(status().devices.at(0).quarantine_reason, "loading new weights: digest does not match");
  EXPECT_EQ(status().serving_step, 1U);
  publish(2);
  EXPECT_TRUE(device_->loads.empty()) << "it gets no more versions";
  EXPECT_EQ(load(*sound).step, 2U);
  engines::RolloutRequest request;
  ask<engines::RolloutResult>(router_, atom::generate_v, request);
  drain();
  EXPECT_TRUE(device_->generations.empty()) << "it gets no more requests";
  EXPECT_EQ(sound->generations.size(), 1U);
}

TEST_F(KeeperTest, TheLastDeviceThatIsLostEndsTheKeeper) {
  const auto other = std::make_shared<FakeDevice>();
  start_with({other});
  kill(other_handles_.at(0));
  ASSERT_EQ(log_.size(), 1U);
  EXPECT_THAT(log_[0], HasSubstr("device-1 is quarantined: device-1 has ended"));
  EXPECT_FALSE(exit_->has_value());
  publish(1);
  take(device_->loads).fail({Errc::kCorruptData, "digest does not match"});
  drain();
  ASSERT_TRUE(exit_->has_value());
  EXPECT_EQ((*exit_)->code(), Errc::kCorruptData);
  EXPECT_EQ(log_.size(), 1U) << "the exit reason says the rest";
}

TEST_F(KeeperTest, ADeviceThatDoesNotReplyInTimeIsQuarantined) {
  const auto hangs = std::make_shared<FakeDevice>();
  start_with({hangs});
  publish(1);
  load();
  advance(6min);
  EXPECT_FALSE(exit_->has_value());
  EXPECT_THAT(status().devices.at(1).quarantine_reason, HasSubstr("deadline"));
  take(hangs->loads).reply({0, 0, 1});  // too late
  drain();
  EXPECT_EQ(status().devices.at(1).serving_step, 0U);
  publish(2);
  EXPECT_TRUE(hangs->loads.empty());
}

TEST_F(KeeperTest, AFixedOrderWaitsForAllDevicesThatAreNotQuarantined) {
  options_.generation_order = actors::GenerationOrder::kFixed;
  options_.max_staleness = 1;
  const auto slow = std::make_shared<FakeDevice>();
  const auto broken = std::make_shared<FakeDevice>();
  start_with({slow, broken});
  admit(8);
  admit(8);
  record({8, 0, 0, 0});
  publish(1);
  admit(8);
  record({4, 0, 0, 0});
  publish(2);
  EXPECT_EQ(load().step, 1U);
  EXPECT_TRUE(device_->loads.empty()) << "version 2 waits for the other devices";
  EXPECT_EQ(load(*slow).step, 1U);
  EXPECT_TRUE(slow->loads.empty());
  take(broken->loads).fail({Errc::kCorruptData, "digest does not match"});
  drain();
  EXPECT_EQ(load().step, 2U);
  EXPECT_EQ(load(*slow).step, 2U);
  EXPECT_TRUE(broken->loads.empty());
}

// -- join, leave ----------------------------------------------------------------------------------

TEST_F(KeeperTest, ADeviceThatJoinsGetsTheNewestWeightsBeforeItsFirstRequest) {
  start();
  const auto late = std::make_shared<FakeDevice>();
  const auto joined = join("late", late);
  ASSERT_EQ(late->loads.size(), 1U);
  EXPECT_EQ(late->loads.front().request.base_digest, "at the start");
  EXPECT_EQ(status().devices.at(1).state, DeviceState::kJoining);
  generate(1);
  generate(2);
  EXPECT_TRUE(late->generations.empty()) << "it has no weights yet";
  publish(1);
  EXPECT_EQ(late->loads.size(), 1U);
  EXPECT_FALSE(joined.arrived());
  EXPECT_EQ(load(*late).step, 0U);
  ASSERT_TRUE(joined.ok());
  EXPECT_EQ(joined.value().name, "late");
  EXPECT_EQ(joined.value().state, DeviceState::kServing);
  EXPECT_EQ(log_, std::vector<std::string>{"late has joined"});
  EXPECT_EQ(load(*late).step, 1U) << "then it loads as all devices do";
  generate(3);
  EXPECT_EQ(late->generations.size(), 1U);
  publish(2);
  load();
  const auto second = std::make_shared<FakeDevice>();
  join("late-2", second);
  EXPECT_EQ(load(*second).step, 2U) << "the newest version";
}

TEST_F(KeeperTest, AFixedOrderWaitsForADeviceThatJoins) {
  options_.generation_order = actors::GenerationOrder::kFixed;
  start();
  const auto late = std::make_shared<FakeDevice>();
  join("late", late);
  admit(8);
  record({4, 0, 0, 0});
  publish(1);
  EXPECT_TRUE(device_->loads.empty());
  EXPECT_EQ(load(*late).step, 0U);
  EXPECT_EQ(load().step, 1U);
  EXPECT_EQ(load(*late).step, 1U);
}

TEST_F(KeeperTest, AFixedOrderLoadsADueVersionBeforeFurtherDevicesJoin) {
  options_.generation_order = actors::GenerationOrder::kFixed;
  start();
  const auto first = std::make_shared<FakeDevice>();
  const auto second = std::make_shared<FakeDevice>();
  join("late", first);
  admit(8);
  record({4, 0, 0, 0});
  publish(1);
  const auto joined = join("late-2", second);
  ASSERT_TRUE(second->loads.empty()) << "version 1 would have to wait for it";
  EXPECT_EQ(load(*first).step, 0U);
  EXPECT_EQ(load().step, 1U);
  EXPECT_EQ(load(*second).step, 1U) << "it joins with the version that was due";
  EXPECT_TRUE(joined.ok());
  EXPECT_EQ(load(*first).step, 1U);
}

TEST_F(KeeperTest, AJoiningDeviceThatRefusesItsWeightsIsQuarantinedAndNothingElse) {
  options_.generation_order = actors::GenerationOrder::kFixed;
  start();
  const auto broken = std::make_shared<FakeDevice>();
  const auto refused = join("late", broken);
  take(broken->loads).fail({Errc::kCorruptData, "digest does not match"});
  drain();
  EXPECT_EQ(refused.status().message(), "loading new weights: digest does not match");
  EXPECT_EQ(status().devices.at(1).state, DeviceState::kQuarantined);
  EXPECT_EQ(join("late", broken).status().code(), Errc::kUnavailable);
  const auto hangs = std::make_shared<FakeDevice>();
  const auto late = join("late-2", hangs);
  advance(6min);
  EXPECT_EQ(late.status().code(), Errc::kTimeout);
  const auto ends = std::make_shared<FakeDevice>();
  const auto ended = join("late-3", ends);
  kill(other_handles_.back());
  EXPECT_THAT(ended.status().message(), HasSubstr("late-3 has ended"));
  EXPECT_FALSE(exit_->has_value());
  admit(8);
  record({4, 0, 0, 0});
  publish(1);
  EXPECT_EQ(load().step, 1U);
}

TEST_F(KeeperTest, ADeviceThatLeavesEndsItsRequestsAndMayComeBack) {
  const auto other = std::make_shared<FakeDevice>();
  start_with({other});
  generate(1);
  const auto pending = generate(2);
  const auto left = leave("device-1");
  EXPECT_EQ(status().devices.at(1).state, DeviceState::kLeaving);
  EXPECT_EQ(leave("device-1").status().code(), Errc::kUnavailable);
  EXPECT_EQ(leave("device").status().code(), Errc::kInvalidArgument) << "no other one would serve";
  publish(1);
  EXPECT_EQ(load(*other).step, 1U) << "its request may wait for the version";
  load();
  generate(3);
  EXPECT_EQ(other->generations.size(), 1U) << "it gets no more requests";
  EXPECT_FALSE(left.arrived());
  take(other->generations).reply({});
  drain();
  EXPECT_TRUE(pending.ok());
  ASSERT_TRUE(left.ok());
  EXPECT_EQ(left.value().state, DeviceState::kLeft);
  publish(2);
  EXPECT_TRUE(other->loads.empty());
  kill(other_handles_.at(0));
  EXPECT_FALSE(exit_->has_value());
  EXPECT_EQ(status().devices.at(1).state, DeviceState::kLeft) << "it may end";
  const auto again = std::make_shared<FakeDevice>();
  const auto joined = join("device-1", again);
  EXPECT_EQ(load(*again).step, 2U);
  EXPECT_TRUE(joined.ok());
  generate(4);
  EXPECT_EQ(again->generations.size(), 1U);
  EXPECT_EQ(log_, (std::vector<std::string>{"device-1 has left", "device-1 has joined"}));
}

// The load that the device had taken gets no reply.
TEST_F(KeeperTest, ADeviceThatEndsAfterItHasLeftMayComeBackAtOnce) {
  const auto other = std::make_shared<FakeDevice>();
  start_with({other});
  publish(1);
  EXPECT_TRUE(leave("device-1").ok());
  kill(other_handles_.at(0));
  load();
  advance(4min);
  const auto again = std::make_shared<FakeDevice>();
  const auto joined = join("device-1", again);
  ASSERT_EQ(again->loads.size(), 1U);
  advance(2min);
  EXPECT_FALSE(joined.arrived()) << "the deadline of the first load says nothing about this one";
  EXPECT_EQ(load(*again).step, 1U);
  EXPECT_TRUE(joined.ok());
  EXPECT_EQ(status().devices.at(1).state, DeviceState::kServing);
}

TEST_F(KeeperTest, ADeviceThatDoesNotEndItsRequestsLeavesAfterTheDeadline) {
  const auto other = std::make_shared<FakeDevice>();
  start_with({other});
  generate(1);
  const auto pending = generate(2);
  const auto left = leave("device-1");
  advance(11min);
  EXPECT_TRUE(left.ok());
  EXPECT_EQ(pending.status().code(), Errc::kUnavailable);
  EXPECT_EQ(other->cancelled, std::vector<SampleId>{{2}});
}

TEST_F(KeeperTest, ADeviceThatEndsWhileItLeavesIsQuarantined) {
  const auto other = std::make_shared<FakeDevice>();
  start_with({other});
  generate(1);
  generate(2);
  const auto left = leave("device-1");
  kill(other_handles_.at(0));
  EXPECT_EQ(left.status().code(), Errc::kUnavailable);
  EXPECT_EQ(left.count(), 1);
  EXPECT_EQ(status().devices.at(1).state, DeviceState::kQuarantined);
}

TEST_F(KeeperTest, TheRunWaitsForADeviceThatJoinsIfNoOtherOneServes) {
  start();
  const auto late = std::make_shared<FakeDevice>();
  const auto joined = join("late", late);
  publish(1);
  const auto lost = generate(1);
  take(device_->loads).fail({Errc::kCorruptData, "digest does not match"});
  drain();
  ASSERT_FALSE(exit_->has_value());
  EXPECT_EQ(lost.status().code(), Errc::kUnavailable);
  const auto waits = generate(2);
  EXPECT_FALSE(waits.arrived());
  EXPECT_EQ(load(*late).step, 0U);
  EXPECT_TRUE(joined.ok());
  EXPECT_EQ(late->generations.size(), 1U);
  EXPECT_EQ(load(*late).step, 1U);
  EXPECT_FALSE(waits.arrived());
}

TEST_F(KeeperTest, AFixedOrderKeepsTheWeightsForADeviceThatTheRunWaitsFor) {
  options_.generation_order = actors::GenerationOrder::kFixed;
  options_.max_staleness = 1;
  start();
  const auto late = std::make_shared<FakeDevice>();
  join("late", late);
  admit(8);
  admit(8);
  publish(1);
  publish(2);
  const auto served = ask<PolicyVersion>(keeper_, atom::waits_v, std::uint64_t{1});
  kill(device_handle_);
  EXPECT_EQ(load(*late).step, 0U);
  ASSERT_TRUE(late->loads.empty());
  EXPECT_FALSE(served.arrived());
  record({8, 0, 0, 0});
  EXPECT_EQ(load(*late).step, 1U);
  EXPECT_TRUE(served.ok());
}

TEST_F(KeeperTest, ARunThatWaitsForADeviceEndsIfItDoesNotJoin) {
  const auto other = std::make_shared<FakeDevice>();
  start_with({other});
  generate(1);
  generate(2);
  const auto left = leave("device-1");
  const auto late = std::make_shared<FakeDevice>();
  const auto joined = join("late", late);
  kill(device_handle_);
  EXPECT_FALSE(exit_->has_value());
  advance(6min);
  EXPECT_EQ(joined.status().code(), Errc::kTimeout);
  ASSERT_TRUE(exit_->has_value()) << "the device that is leaving does not serve again";
  EXPECT_EQ((*exit_)->code(), Errc::kUnavailable);
  EXPECT_EQ(left.status().code(), Errc::kUnavailable) << "a request gets a reply";
}

// A run that is started again begins without it, so what it failed for does not happen again.
TEST_F(KeeperTest, ADeviceThatHasJoinedDoesNotEndTheRunForGood) {
  start();
  const auto late = std::make_shared<FakeDevice>();
  const auto joined = join("late", late);
  kill(device_handle_);
  take(late->loads).fail({Errc::kInvalidArgument, "other shapes"});
  drain();
  EXPECT_EQ(joined.status().code(), Errc::kInvalidArgument);
  ASSERT_TRUE(exit_->has_value());
  EXPECT_EQ((*exit_)->code(), Errc::kUnavailable);
  EXPECT_EQ((*exit_)->message(), "late has joined and failed: loading new weights: other shapes");
}

TEST_F(KeeperTest, OnlyDevicesJoin) {
  start();
  const auto nothing =
      ask<DeviceStatus>(keeper_, atom::join_v, actors::DeviceJoin{"late", nullptr});
  drain();
  EXPECT_EQ(nothing.status().code(), Errc::kInvalidArgument);
  EXPECT_EQ(join("device", std::make_shared<FakeDevice>()).status().code(), Errc::kInvalidArgument);
  EXPECT_EQ(leave("device-9").status().code(), Errc::kNotFound);
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
