// SPDX-License-Identifier: Apache-2.0
// Tests the contract of actors/keeper/handles.hpp with several devices, and with devices that join
// and leave.
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/actors/keeper_fixture.hpp"

namespace tidemill::test {
namespace {

using actors::DeviceState;
using actors::DeviceStatus;
using namespace std::chrono_literals;
using ::testing::HasSubstr;

class KeeperDevicesTest : public KeeperTest {};

// -- several devices ------------------------------------------------------------------------------

TEST_F(KeeperDevicesTest, EachDeviceLoadsTheNewestVersionByItself) {
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

TEST_F(KeeperDevicesTest, ADeviceThatRefusesWeightsIsQuarantinedAndTheOthersGoOn) {
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

TEST_F(KeeperDevicesTest, TheLastDeviceThatIsLostEndsTheKeeper) {
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

TEST_F(KeeperDevicesTest, ADeviceThatDoesNotReplyInTimeIsQuarantined) {
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

TEST_F(KeeperDevicesTest, AFixedOrderWaitsForAllDevicesThatAreNotQuarantined) {
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

TEST_F(KeeperDevicesTest, ADeviceThatJoinsGetsTheNewestWeightsBeforeItsFirstRequest) {
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

TEST_F(KeeperDevicesTest, AFixedOrderWaitsForADeviceThatJoins) {
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

TEST_F(KeeperDevicesTest, AFixedOrderLoadsADueVersionBeforeFurtherDevicesJoin) {
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

TEST_F(KeeperDevicesTest, TheListenerOfADeviceLearnsThatItIsQuarantined) {
  start();
  std::vector<actors::QuarantinedDevice> heard;
  const auto listener = keep(system().spawn([&heard](caf::event_based_actor*) {
    return caf::behavior{[&heard](atom::quarantine, const actors::QuarantinedDevice& device) {
      heard.push_back(device);
    }};
  }));
  const auto late = std::make_shared<FakeDevice>();
  const auto joined =
      ask<DeviceStatus>(keeper_, atom::join_v,
                        actors::join_request({"late", keep(spawn_fake_device(system(), late))},
                                             caf::actor_cast<caf::strong_actor_ptr>(listener)));
  drain();
  load(*late);
  ASSERT_TRUE(joined.ok());
  publish(1);
  EXPECT_TRUE(heard.empty());
  take(late->loads).fail({Errc::kCorruptData, "digest does not match"});
  drain();
  ASSERT_EQ(heard.size(), 1U);
  EXPECT_EQ(heard[0].name, "late");
  EXPECT_EQ(heard[0].reason, "loading new weights: digest does not match");
}

TEST_F(KeeperDevicesTest, AJoiningDeviceThatRefusesItsWeightsIsQuarantinedAndNothingElse) {
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

TEST_F(KeeperDevicesTest, ADeviceThatLeavesEndsItsRequestsAndMayComeBack) {
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
TEST_F(KeeperDevicesTest, ADeviceThatEndsAfterItHasLeftMayComeBackAtOnce) {
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

TEST_F(KeeperDevicesTest, ADeviceThatDoesNotEndItsRequestsLeavesAfterTheDeadline) {
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

TEST_F(KeeperDevicesTest, ADeviceThatEndsWhileItLeavesIsQuarantined) {
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

TEST_F(KeeperDevicesTest, TheRunWaitsForADeviceThatJoinsIfNoOtherOneServes) {
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

TEST_F(KeeperDevicesTest, AFixedOrderKeepsTheWeightsForADeviceThatTheRunWaitsFor) {
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

TEST_F(KeeperDevicesTest, ARunThatWaitsForADeviceEndsIfItDoesNotJoin) {
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
TEST_F(KeeperDevicesTest, ADeviceThatHasJoinedDoesNotEndTheRunForGood) {
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

TEST_F(KeeperDevicesTest, OnlyDevicesJoin) {
  start();
  const auto nothing =
      ask<DeviceStatus>(keeper_, atom::join_v, actors::DeviceJoin{"late", nullptr});
  drain();
  EXPECT_EQ(nothing.status().code(), Errc::kInvalidArgument);
  EXPECT_EQ(join("device", std::make_shared<FakeDevice>()).status().code(), Errc::kInvalidArgument);
  EXPECT_EQ(leave("device-9").status().code(), Errc::kNotFound);
}

// A device that leaves under one name would else be let go under the other, too.
TEST_F(KeeperDevicesTest, ADeviceIsInTheRunUnderOneName) {
  start();
  const auto late = std::make_shared<FakeDevice>();
  join("late", late);
  const actors::DeviceActor handle = other_handles_.back();
  const auto join_as = [&](const std::string& name, const actors::DeviceActor& device) {
    const auto reply =
        ask<DeviceStatus>(keeper_, atom::join_v, actors::join_request({name, device}));
    drain();
    return reply.status();
  };
  EXPECT_EQ(join_as("alias", handle).message(), "late: the device is in the run under this name");
  load(*late);
  EXPECT_EQ(join_as("alias", handle).code(), Errc::kInvalidArgument);
  EXPECT_EQ(join_as("alias", device_handle_).message(),
            "device: the device is in the run under this name");
  EXPECT_EQ(status().devices.size(), 2U);
  generate(1);
  generate(2);
  const auto left = leave("late");
  EXPECT_EQ(join_as("alias", handle).code(), Errc::kInvalidArgument) << "it is leaving";
  take(late->generations).reply({});
  drain();
  ASSERT_TRUE(left.ok());
  const auto renamed =
      ask<DeviceStatus>(keeper_, atom::join_v, actors::join_request({"alias", handle}));
  drain();
  load(*late);
  EXPECT_TRUE(renamed.ok()) << "it had left";
  kill(handle);
  EXPECT_EQ(status().devices.at(2).state, DeviceState::kQuarantined) << "the keeper sees its end";
}

TEST_F(KeeperDevicesTest, AQuarantinedDeviceMayNotComeBackUnderAnotherName) {
  start();
  const auto broken = std::make_shared<FakeDevice>();
  join("late", broken);
  take(broken->loads).fail({Errc::kCorruptData, "digest does not match"});
  drain();
  const auto again = ask<DeviceStatus>(keeper_, atom::join_v,
                                       actors::join_request({"alias", other_handles_.back()}));
  drain();
  EXPECT_EQ(again.status().code(), Errc::kUnavailable);
  EXPECT_EQ(again.status().message(),
            "late is quarantined: loading new weights: digest does not match");
}

TEST_F(KeeperDevicesTest, AQuarantinedDeviceIsReleased) {
  start();
  const auto broken = std::make_shared<FakeDevice>();
  auto handle = spawn_fake_device(system(), broken);
  const auto address = caf::actor_cast<caf::actor_addr>(handle);
  ask<DeviceStatus>(keeper_, atom::join_v, actors::join_request({"late", handle}));
  drain();
  load(*broken);
  generate(1);
  generate(2);
  ASSERT_EQ(broken->generations.size(), 1U);
  publish(1);
  take(broken->loads).fail({Errc::kCorruptData, "digest does not match"});
  drain();
  EXPECT_EQ(broken->cancelled, std::vector<SampleId>{{2}}) << "it was told";
  take(broken->generations).reply({});
  drain();
  handle = nullptr;
  EXPECT_EQ(caf::actor_cast<caf::strong_actor_ptr>(address), nullptr)
      << "the keeper or the router holds it";
}

}  // namespace
}  // namespace tidemill::test
