// SPDX-License-Identifier: Apache-2.0
// The contract of actors/remote/remote_device.hpp: a process that opens a device, which joins the
// run before the workers of the process start.
#include "actors/remote/remote_device.hpp"

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/remote/serving.hpp"
#include "tests/support/actor_test.hpp"
#include "tests/support/fake_actors.hpp"
#include "tests/support/local_buffers.hpp"
#include "tests/support/manual_port.hpp"
#include "tests/support/remote_workers.hpp"

namespace tidemill::test {
namespace {

using actors::DeviceJoin;
using actors::DeviceStatus;
using actors::MessageKind;
using namespace std::chrono_literals;

// A roster whose replies the test sends.
struct FakeRoster {
  Inbox<DeviceJoin, DeviceStatus> joins;
  std::vector<std::string> left;
};

actors::RosterActor spawn_fake_roster(caf::actor_system& system,
                                      const std::shared_ptr<FakeRoster>& fake) {
  const auto deferred = std::make_shared<DeferredReplies>();
  using Roster = actors::RosterActor::extend<caf::reacts_to<atom::wake>>;
  const auto handle = system.spawn([fake, deferred](Roster::pointer self) -> Roster::behavior_type {
    return {
        [self, fake, deferred](atom::join, DeviceJoin& join) {
          auto promise = self->make_response_promise<DeviceStatus>();
          fake->joins.push_back({std::move(join), promise, deferred});
          return promise;
        },
        [fake](atom::leave, const std::string& name) {
          fake->left.push_back(name);
          DeviceStatus status;
          status.name = name;
          return status;
        },
        [deferred](atom::wake) { deferred->run(); },
    };
  });
  return with_deferred_replies(handle, deferred, atom::wake_v);
}

class RemoteDeviceTest : public ActorTest {
protected:
  void SetUp() override {
    process_.emplace(system(), keep(spawn_fake_stream(system(), std::make_shared<FakeStream>())),
                     [this](const actors::StreamConsumerActor&) {
                       return keep(system().spawn([](caf::event_based_actor*) {
                         return caf::behavior{[](atom::drain) {}};
                       }));
                     });
    actors::DeviceHostDeps host;
    host.port = process_->ports().worker;
    host.work = &work_;
    host.open = [this](const actors::StartDevice& start) -> Result<actors::OpenedDevice> {
      starts_.push_back(start);
      if (!cannot_open_.ok()) {
        return cannot_open_;
      }
      return actors::OpenedDevice{
          buffers_, [this] {
            return actors::ServingActor(device_ = keep(spawn_fake_device(system(), fake_device_)));
          }};
    };
    host.on_open = [this](const actors::ServingActor&) { ++opened_; };
    keep(actors::spawn_device_host(system(), std::move(host)));
    actors::ServingProxyDeps proxy;
    proxy.name = "process 0";
    proxy.port = process_->ports().owner;
    proxy.buffers = buffers_;
    proxy.work = &port();
    proxy.has_base = true;
    proxy_ = keep(actors::spawn_serving_proxy(system(), std::move(proxy)));
    actors::RemoteDeviceDeps deps;
    deps.name = "process 0, start 2";
    deps.process = "process 0";
    deps.port = process_->ports().owner;
    deps.gate = process_->gate();
    deps.serving = proxy_;
    deps.roster = keep(spawn_fake_roster(system(), roster_));
    deps.start = {11, 12, 13, {"a socket", 14, {}}};
    deps.on_end = [this](const Status& why) { ends_.push_back(why); };
    remote_ = keep(actors::spawn_remote_device(system(), std::move(deps)));
    exit_ = exit_of(remote_);
    drain();
  }
  void TearDown() override {
    process_->stop();
    ActorTest::TearDown();
  }

  actors::RemoteWorkerActor start(std::uint32_t number) {
    auto worker = keep(actors::spawn_remote_worker(
        system(), remote_, {"rollout-" + std::to_string(number), "rollout", number},
        actors::kDeviceWorkerStartDeadline));
    drain();
    return worker;
  }
  void open() {
    work_.run_next();
    drain();
  }
  void let_join() {
    DeviceStatus joined;
    joined.name = "process 0";
    take(roster_->joins).reply(joined);
    drain();
  }
  // Has the process of the run load weights, as its roster does before the device has joined.
  Reply<PolicyVersion> load() {
    engines::Snapshot weights;
    weights.version = {0, 1, 5};
    weights.base_digest = "base";
    weights.base["w"] = {DType::kF32, {1}, Buffer::adopt(std::vector<float>{1.0F}, DType::kF32)};
    auto reply = ask<PolicyVersion>(proxy_, atom::load_v, weights);
    advance(1ms);
    return reply;
  }

  ManualPort work_;  // of the process
  Status cannot_open_;
  std::vector<actors::StartDevice> starts_;
  int opened_ = 0;
  std::vector<Status> ends_;
  std::shared_ptr<LocalBuffers> buffers_ = std::make_shared<LocalBuffers>();
  std::shared_ptr<FakeDevice> fake_device_ = std::make_shared<FakeDevice>();
  std::shared_ptr<FakeRoster> roster_ = std::make_shared<FakeRoster>();
  std::optional<RemoteWorkers> process_;
  actors::DeviceActor device_;
  actors::ServingActor proxy_;
  actors::RemoteDeviceActor remote_;
  std::shared_ptr<std::optional<Status>> exit_;
};

TEST_F(RemoteDeviceTest, WorkersStartOnceTheDeviceHasJoined) {
  const auto early = exit_of(start(0));
  EXPECT_TRUE(roster_->joins.empty()) << "the device is not open";
  open();
  ASSERT_EQ(starts_.size(), 1U);
  EXPECT_EQ(starts_[0].kv_bytes, 11);
  EXPECT_EQ(starts_[0].segments.reader, 14U);
  EXPECT_EQ(opened_, 1);
  ASSERT_EQ(roster_->joins.size(), 1U);
  EXPECT_EQ(roster_->joins.front().request.name, "process 0, start 2");
  EXPECT_EQ(roster_->joins.front().request.device->address(), proxy_.address());
  EXPECT_TRUE(process_->started().empty());
  let_join();
  EXPECT_EQ(process_->started().size(), 1U);
  start(1);
  EXPECT_EQ(process_->started().size(), 2U);
  EXPECT_FALSE(early->has_value());
  EXPECT_FALSE(exit_->has_value());
}

TEST_F(RemoteDeviceTest, TheFirstWeightsGoWithoutTheBaseThatTheProcessHas) {
  open();
  const auto loaded = load();
  ASSERT_EQ(fake_device_->loads.size(), 1U);
  EXPECT_TRUE(fake_device_->loads.front().request.base.empty());
  take(fake_device_->loads).reply({0, 1, 5});
  advance(1ms);
  EXPECT_TRUE(loaded.ok()) << loaded.status().to_string();
  EXPECT_EQ(buffers_->lends, 0);
}

TEST_F(RemoteDeviceTest, ABaseThatTheProcessLacksIsSent) {
  open();
  const auto loaded = load();
  take(fake_device_->loads).fail({Errc::kInvalidArgument, "another base"});
  advance(1ms);
  work_.run_next();  // resolves its tensors
  drain();
  ASSERT_EQ(fake_device_->loads.size(), 1U);
  EXPECT_EQ(fake_device_->loads.front().request.base.size(), 1U);
  take(fake_device_->loads).reply({0, 1, 5});
  advance(1ms);
  EXPECT_TRUE(loaded.ok()) << loaded.status().to_string();
}

TEST_F(RemoteDeviceTest, ADeviceThatCannotBeOpenedEndsItWithTheReason) {
  cannot_open_ = {Errc::kResourceExhausted, "no memory"};
  const auto worker = exit_of(start(0));
  open();
  ASSERT_TRUE(exit_->has_value());
  EXPECT_EQ((*exit_)->code(), Errc::kResourceExhausted) << "it would repeat";
  EXPECT_EQ((*exit_)->message(), "process 0: no memory");
  ASSERT_TRUE(worker->has_value());
  EXPECT_EQ((*worker)->code(), Errc::kResourceExhausted);
  EXPECT_EQ((*worker)->message(), "process 0: no memory");
  ASSERT_EQ(ends_.size(), 1U);
  EXPECT_EQ(ends_[0].message(), "no memory");
  EXPECT_EQ(opened_, 0);
}

// The device ends while the request of the worker waits in its mailbox.
TEST_F(RemoteDeviceTest, AWorkerOfADeviceThatEndsHasItsReason) {
  auto worker = keep(actors::spawn_remote_worker(system(), remote_, {"rollout-0", "rollout", 0},
                                                 actors::kDeviceWorkerStartDeadline));
  const caf::error why = actors::to_caf_error({Errc::kResourceExhausted, "no memory"});
  caf::anon_send(caf::actor_cast<caf::actor>(remote_), caf::exit_msg{remote_.address(), why});
  const auto ended = exit_of(worker);
  ASSERT_TRUE(ended->has_value());
  EXPECT_EQ((*ended)->message(), "no memory");
}

TEST_F(RemoteDeviceTest, ADeviceThatCannotJoinEndsIt) {
  const auto worker = exit_of(start(0));
  open();
  take(roster_->joins).fail({Errc::kInvalidArgument, "loading: other shapes"});
  drain();
  ASSERT_TRUE(exit_->has_value());
  EXPECT_EQ((*exit_)->message(), "process 0: loading: other shapes");
  EXPECT_TRUE(worker->has_value());
  EXPECT_TRUE(process_->started().empty());
  EXPECT_EQ(ends_.size(), 1U);
}

TEST_F(RemoteDeviceTest, TheEndOfTheProcessEndsItAndItsWorkers) {
  open();
  let_join();
  const auto worker = exit_of(start(0));
  process_->ports().owner->close("killed by signal 9");
  drain();
  ASSERT_TRUE(exit_->has_value());
  EXPECT_THAT((*exit_)->message(), ::testing::HasSubstr("killed by signal 9"));
  ASSERT_TRUE(worker->has_value());
  EXPECT_EQ((*worker)->code(), Errc::kUnavailable);
  EXPECT_EQ(ends_.size(), 1U);
}

TEST_F(RemoteDeviceTest, TheEndOfTheDeviceEndsIt) {
  open();
  let_join();
  caf::anon_send(
      caf::actor_cast<caf::actor>(device_),
      caf::exit_msg{remote_.address(), actors::to_caf_error({Errc::kInternal, "a kernel failed"})});
  drain();
  ASSERT_TRUE(exit_->has_value());
  EXPECT_THAT((*exit_)->message(), ::testing::HasSubstr("a kernel failed"));
  EXPECT_EQ(ends_.size(), 1U);
}

TEST_F(RemoteDeviceTest, AWorkerThatIsDrainedBeforeItHasStartedDoesNotStart) {
  const auto worker = start(0);
  const auto exit = exit_of(worker);
  caf::anon_send(worker, atom::drain_v);
  drain();
  ASSERT_TRUE(exit->has_value());
  EXPECT_TRUE((*exit)->ok()) << (*exit)->to_string();
  open();
  let_join();
  advance(1ms);
  for (const caf::actor& started : process_->started()) {
    EXPECT_TRUE(exit_of(started)->has_value()) << "it runs without its stand-in";
  }
}

TEST_F(RemoteDeviceTest, ADeviceThatIsAskedToLeaveLeavesTheRunFirst) {
  open();
  let_join();
  caf::anon_send(remote_, atom::leave_v);
  drain();
  ASSERT_EQ(roster_->left, std::vector<std::string>{"process 0, start 2"});
  ASSERT_TRUE(exit_->has_value());
  EXPECT_EQ((*exit_)->message(), "process 0: it has left the run");
  EXPECT_EQ(ends_.size(), 1U);
}

TEST_F(RemoteDeviceTest, ADeviceThatHasNotJoinedNeedNotLeave) {
  caf::anon_send(remote_, atom::leave_v);
  drain();
  EXPECT_TRUE(roster_->left.empty());
  EXPECT_TRUE(exit_->has_value());
}

// Its workers would wait for ever for weights that the run no longer sends.
TEST_F(RemoteDeviceTest, AQuarantineEndsIt) {
  open();
  const auto listener = roster_->joins.front().request.listener;
  ASSERT_NE(listener, nullptr);
  let_join();
  const auto worker = exit_of(start(0));
  caf::anon_send(caf::actor_cast<caf::actor>(listener), atom::quarantine_v,
                 actors::QuarantinedDevice{"process 0", "loading: other shapes"});
  drain();
  ASSERT_TRUE(exit_->has_value());
  EXPECT_EQ((*exit_)->message(), "process 0: loading: other shapes");
  EXPECT_TRUE(worker->has_value());
  EXPECT_EQ(ends_.size(), 1U);
}

TEST_F(RemoteDeviceTest, AProcessOpensOneDevice) {
  open();
  Status second;
  const auto caller = keep(system().spawn([&second](caf::event_based_actor*) {
    return caf::behavior{[&second](atom::deliver, const actors::PeerMessagePtr& reply) {
      const auto failure = actors::from_wire<actors::Failure>(reply->body);
      second = failure.ok() ? failure.value().status : failure.status();
    }};
  }));
  process_->ports().owner->call(MessageKind::kStartDevice, to_wire(actors::StartDevice{}), 10s,
                                caf::actor_cast<caf::strong_actor_ptr>(caller));
  drain();
  EXPECT_EQ(second.code(), Errc::kUnavailable);
  EXPECT_EQ(second.message(), "the process has a device already");
  EXPECT_EQ(starts_.size(), 1U);
}

}  // namespace
}  // namespace tidemill::test
