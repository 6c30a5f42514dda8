// SPDX-License-Identifier: Apache-2.0
// Tests the contract of actors/router/handles.hpp with fake devices.
#include <chrono>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/keeper/handles.hpp"
#include "actors/router/spawn.hpp"
#include "tests/support/actor_test.hpp"
#include "tests/support/fake_actors.hpp"
#include "tests/support/remote_serving.hpp"
#include "tests/support/remote_workers.hpp"

namespace tidemill::test {
namespace {

using engines::FinishReason;
using engines::RolloutRequest;
using engines::RolloutResult;
using namespace std::chrono_literals;
using ::testing::HasSubstr;

class RouterFixture : public ActorTest {
protected:
  void TearDown() override {
    for (RemoteServing& process : processes_) {
      process.stop();
    }
    ActorTest::TearDown();
  }
  // Returns the device with this index, as a router sees it.
  actors::ServingActor serving(std::size_t device) {
    if (!remote_) {
      return handles_.at(device);
    }
    const RemoteServingOptions options{"device-" + std::to_string(device)};
    return processes_.emplace_back(system(), handles_.at(device), port(), options).serving();
  }
  void start(std::size_t num_devices) {
    for (std::size_t i = 0; i < num_devices; ++i) {
      devices_.push_back(std::make_shared<FakeDevice>());
      handles_.push_back(keep(spawn_fake_device(system(), devices_.back())));
      deps_.devices.push_back({"device-" + std::to_string(i), serving(i)});
    }
    router_ = keep(actors::spawn_router(system(), deps_));
  }
  Reply<RolloutResult> generate(std::uint64_t id) {
    RolloutRequest request;
    request.id = {id};
    request.prompt_ids = {1, 2};
    auto reply = ask<RolloutResult>(router_, atom::generate_v, request);
    drain();
    return reply;
  }
  void cancel(std::uint64_t id) {
    caf::anon_send(router_, atom::cancel_v, SampleId{id});
    drain();
  }
  // The device replies to its oldest request.
  void reply(std::size_t device, FinishReason reason = FinishReason::kStop) {
    auto pending = take(devices_.at(device)->generations);
    RolloutResult result;
    result.id = pending.request.id;
    result.response_ids = {static_cast<std::int32_t>(device)};
    result.finish_reason = reason;
    pending.reply(std::move(result));
    drain();
  }
  void quarantine(const std::string& name) {
    caf::anon_send(router_, atom::quarantine_v, actors::QuarantinedDevice{name, "digest"});
    drain();
  }

  actors::RouterDeps deps_;
  std::vector<std::shared_ptr<FakeDevice>> devices_;
  std::vector<actors::DeviceActor> handles_;
  actors::RouterActor router_;
  bool remote_ = false;  // whether the devices are in other processes
  std::list<RemoteServing> processes_;
};

// The parameter says whether the devices are in other processes.
class RouterTest : public RouterFixture, public ::testing::WithParamInterface<bool> {
protected:
  void SetUp() override { remote_ = GetParam(); }
};

INSTANTIATE_TEST_SUITE_P(Places, RouterTest, ::testing::Bool(), place_name);

TEST_P(RouterTest, GenerateGoesToTheLeastLoadedDeviceAndItsReplyToTheRequester) {
  start(2);
  const auto first = generate(0);
  const auto second = generate(1);
  const auto third = generate(2);
  EXPECT_EQ(devices_[0]->generations.size(), 2U);
  EXPECT_EQ(devices_[1]->generations.size(), 1U);
  EXPECT_EQ(devices_[1]->generations[0].request.key(), 1U);
  reply(0);
  EXPECT_EQ(first.value().id, SampleId{0});
  EXPECT_FALSE(second.arrived());
  reply(1);
  EXPECT_EQ(second.value().response_ids, std::vector<std::int32_t>{1});
  generate(3);
  EXPECT_EQ(devices_[1]->generations.size(), 1U) << "the second device has become idle";
  reply(0);
  EXPECT_EQ(third.count(), 1);
}

TEST_P(RouterTest, CancelGoesToTheDeviceOfTheRequest) {
  start(2);
  const auto first = generate(0);
  generate(1);
  cancel(1);
  cancel(77);
  EXPECT_TRUE(devices_[0]->cancelled.empty());
  EXPECT_EQ(devices_[1]->cancelled, std::vector<SampleId>{{1}});
  reply(0);
  cancel(0);
  EXPECT_TRUE(devices_[0]->cancelled.empty()) << "the request has ended";
}

TEST_P(RouterTest, ASecondRequestForASampleGoesToTheDeviceOfTheFirst) {
  start(2);
  const auto first = generate(5);
  const auto second = generate(5);
  EXPECT_TRUE(devices_[1]->generations.empty());
  reply(0, FinishReason::kCancelled);
  EXPECT_EQ(first.value().finish_reason, FinishReason::kCancelled);
  reply(0);
  EXPECT_EQ(second.value().finish_reason, FinishReason::kStop);
}

TEST_P(RouterTest, AnErrorOfTheDeviceReachesTheRequesterAndIsNotRetried) {
  start(2);
  const auto refused = generate(0);
  take(devices_[0]->generations).fail({Errc::kInvalidArgument, "empty prompt"});
  drain();
  EXPECT_EQ(refused.status().code(), Errc::kInvalidArgument);
  EXPECT_EQ(refused.status().message(), "empty prompt");
  EXPECT_TRUE(devices_[1]->generations.empty());
}

TEST_P(RouterTest, AQuarantinedDeviceLosesItsRequestsAndGetsNoOthers) {
  start(2);
  const auto lost = generate(0);
  const auto kept = generate(1);
  quarantine("device-0");
  quarantine("device-0");
  quarantine("device-9");
  EXPECT_EQ(lost.status().code(), Errc::kUnavailable);
  EXPECT_EQ(lost.status().message(), "device-0 is quarantined: digest");
  EXPECT_EQ(devices_[0]->cancelled, std::vector<SampleId>{{0}});
  generate(2);
  generate(3);
  EXPECT_EQ(devices_[0]->generations.size(), 1U);
  EXPECT_EQ(devices_[1]->generations.size(), 3U);
  reply(0, FinishReason::kCancelled);  // too late
  EXPECT_EQ(lost.count(), 1);
  reply(1);
  EXPECT_TRUE(kept.ok());
}

TEST_P(RouterTest, ADeviceThatJoinsGetsRequests) {
  start(1);
  generate(0);
  const auto late = std::make_shared<FakeDevice>();
  const auto handle = keep(spawn_fake_device(system(), late));
  caf::anon_send(router_, atom::join_v, actors::join_request({"late", handle}));
  caf::anon_send(router_, atom::join_v, actors::join_request({"late", handles_[0]}));  // ignored
  generate(1);
  generate(2);
  EXPECT_EQ(late->generations.size(), 1U);
  EXPECT_EQ(devices_[0]->generations.size(), 2U);
  kill(handle);
  EXPECT_EQ(generate(3).count(), 0);
  EXPECT_EQ(devices_[0]->generations.size(), 3U);
}

TEST_P(RouterTest, RequestsWaitForADeviceThatJoinsIfTheRouterIsToldSo) {
  deps_.max_pending = 2;
  start(1);
  const auto lost = generate(0);
  caf::anon_send(router_, atom::quarantine_v,
                 actors::QuarantinedDevice{"device-0", "digest", true});
  const auto first = generate(1);
  const auto second = generate(2);
  EXPECT_EQ(lost.status().code(), Errc::kUnavailable);
  EXPECT_FALSE(first.arrived());
  EXPECT_EQ(generate(3).status().code(), Errc::kUnavailable) << "two requests wait";
  cancel(2);
  EXPECT_EQ(second.value().finish_reason, FinishReason::kCancelled);
  const auto third = generate(4);
  const auto late = std::make_shared<FakeDevice>();
  const auto handle = keep(spawn_fake_device(system(), late));
  caf::anon_send(router_, atom::join_v, actors::join_request({"late", handle}));
  drain();
  ASSERT_EQ(late->generations.size(), 2U);
  EXPECT_EQ(late->generations[0].request.id, SampleId{1});
  EXPECT_EQ(late->generations[1].request.id, SampleId{4});
  kill(handle);
  EXPECT_EQ(first.status().code(), Errc::kUnavailable);
  EXPECT_EQ(third.count(), 1);
  EXPECT_EQ(generate(5).status().code(), Errc::kUnavailable) << "no device is joining any more";
}

TEST_P(RouterTest, ADeviceThatLeavesEndsItsRequestsAndGetsNoOthers) {
  start(2);
  const auto first = generate(0);
  const auto second = generate(1);
  const auto left = ask<std::uint64_t>(router_, atom::leave_v, std::string("device-1"));
  generate(2);
  generate(3);
  EXPECT_EQ(devices_[0]->generations.size(), 3U);
  generate(1);
  EXPECT_EQ(devices_[1]->generations.size(), 2U) << "it has a request of this id";
  reply(1, FinishReason::kCancelled);
  EXPECT_FALSE(left.arrived());
  reply(1);
  EXPECT_TRUE(second.ok());
  EXPECT_EQ(left.value(), 1U);
  const auto again = ask<std::uint64_t>(router_, atom::leave_v, std::string("device-1"));
  const auto unknown = ask<std::uint64_t>(router_, atom::leave_v, std::string("device-9"));
  drain();
  EXPECT_EQ(again.value(), 0U);
  EXPECT_EQ(unknown.value(), 0U);
  caf::anon_send(router_, atom::join_v, actors::join_request({"device-1", handles_[1]}));
  generate(4);
  EXPECT_EQ(devices_[1]->generations.size(), 1U) << "it has come back";
}

TEST_P(RouterTest, ASecondRequestForASampleOfALeavingDeviceDoesNotWaitForAJoin) {
  start(2);
  const auto first = generate(0);
  generate(1);
  const auto left = ask<std::uint64_t>(router_, atom::leave_v, std::string("device-0"));
  caf::anon_send(router_, atom::quarantine_v,
                 actors::QuarantinedDevice{"device-1", "digest", true});
  drain();
  const auto other = generate(2);
  const auto second = generate(0);
  ASSERT_EQ(devices_[0]->generations.size(), 2U) << "it ends the first request";
  reply(0, FinishReason::kCancelled);
  reply(0);
  EXPECT_EQ(second.value().finish_reason, FinishReason::kStop);
  EXPECT_TRUE(left.ok());
  EXPECT_FALSE(other.arrived());
}

TEST_P(RouterTest, ADeviceWithoutRequestsLeavesAtOnce) {
  start(1);
  const auto left = ask<std::uint64_t>(router_, atom::leave_v, std::string("device-0"));
  drain();
  EXPECT_EQ(left.value(), 0U);
  EXPECT_EQ(generate(0).status().message(), "no device serves: device-0 has left");
}

// The promises of a terminated actor are never settled, so only the router can fail them.
TEST_F(RouterFixture, TheRequestsOfADeviceThatEndsFailAtOnce) {
  start(2);
  const auto lost = generate(0);
  const auto kept = generate(1);
  kill(handles_[0]);
  EXPECT_EQ(lost.status().code(), Errc::kUnavailable);
  EXPECT_THAT(lost.status().message(), HasSubstr("device-0 has ended"));
  EXPECT_EQ(lost.count(), 1);
  kill(handles_[1]);
  EXPECT_EQ(kept.status().code(), Errc::kUnavailable);
  const auto none = generate(2);
  EXPECT_THAT(none.status().message(), HasSubstr("no device serves: device-1 has ended"));
}

TEST_P(RouterTest, RefusesRequestsBeyondItsBound) {
  deps_.max_pending = 2;
  start(1);
  generate(0);
  generate(1);
  const auto refused = generate(2);
  EXPECT_EQ(refused.status().code(), Errc::kUnavailable);
  EXPECT_EQ(devices_[0]->generations.size(), 2U);
  reply(0);
  generate(2);
  EXPECT_EQ(devices_[0]->generations.size(), 2U);
}

TEST_F(RouterFixture, ADeviceThatNeverRepliesFailsTheRequestInTheEnd) {
  start(1);
  const auto late = generate(0);
  advance(26h);
  EXPECT_EQ(late.status().code(), Errc::kTimeout);
}

TEST_P(RouterTest, VersionsAndAdaptersAreLoadedIntoDevices) {
  start(1);
  const auto loaded = ask<PolicyVersion>(router_, atom::load_v, engines::Snapshot{});
  const auto listed = ask<actors::AdapterList>(router_, atom::adapters_v, actors::AdapterRequest{});
  drain();
  EXPECT_EQ(loaded.status().code(), Errc::kUnimplemented);
  EXPECT_EQ(listed.status().code(), Errc::kUnimplemented);
}

TEST_F(RouterFixture, RequestsThatHaveEndedLeaveNoTimer) {
  start(1);
  for (std::uint64_t id = 0; id < 20; ++id) {
    generate(id);
    reply(0);
  }
  EXPECT_EQ(num_timers(), 0U);
}

TEST_F(RouterFixture, RequestsThatHaveFailedLeaveNoTimer) {
  start(1);
  const auto refused = generate(0);
  take(devices_[0]->generations).fail({Errc::kInvalidArgument, "empty prompt"});
  drain();
  EXPECT_EQ(refused.status().code(), Errc::kInvalidArgument);
  EXPECT_EQ(num_timers(), 0U);
}

TEST_F(RouterFixture, ADeviceThatIsRemovedIsReleased) {
  start(1);
  for (const std::string removal : {"quarantined", "ended"}) {
    const auto late = std::make_shared<FakeDevice>();
    auto handle = spawn_fake_device(system(), late);
    const auto address = caf::actor_cast<caf::actor_addr>(handle);
    caf::anon_send(router_, atom::join_v, actors::join_request({removal, handle}));
    drain();
    if (removal == "ended") {
      kill(handle);
    } else {
      quarantine(removal);
    }
    handle = nullptr;
    EXPECT_EQ(caf::actor_cast<caf::strong_actor_ptr>(address), nullptr) << removal;
  }
}

}  // namespace
}  // namespace tidemill::test
