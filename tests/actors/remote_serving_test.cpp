// SPDX-License-Identifier: Apache-2.0
// The contract of actors/remote/serving.hpp: a device of another process, and its gate.
#include "tests/support/remote_serving.hpp"

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/remote/serving.hpp"
#include "actors/router/spawn.hpp"
#include "actors/wire/serving_messages.hpp"
#include "tests/actors/serving_examples.hpp"
#include "tests/support/actor_test.hpp"
#include "tests/support/fake_actors.hpp"
#include "tests/support/manual_port.hpp"

namespace tidemill::test {
namespace {

using actors::AdapterList;
using actors::AdapterRequest;
using actors::MessageKind;
using engines::FinishReason;
using engines::RolloutRequest;
using engines::RolloutResult;
using engines::Snapshot;
using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

RolloutRequest request_of(std::uint64_t id) {
  RolloutRequest request;
  request.id = {id};
  request.prompt_ids = {1, 2, static_cast<std::int32_t>(id)};
  return request;
}

RolloutResult result_of(std::uint64_t id) {
  RolloutResult result;
  result.id = {id};
  result.response_ids = {static_cast<std::int32_t>(id), 7};
  result.behavior_logprobs = {-0.5F, -0.25F};
  result.versions = {{{0, 1, 2}, 2}};
  result.finish_reason = FinishReason::kStop;
  return result;
}

Tensor tensor_of(float value) {
  return {DType::kF32, {2}, Buffer::adopt(std::vector<float>{value, 1.0F}, DType::kF32)};
}

// A snapshot with two tensors in its base and one in its adapter.
Snapshot snapshot_of(std::uint64_t step, const std::string& base = "base") {
  Snapshot snapshot;
  snapshot.version = {0, 1, step};
  snapshot.base_digest = base;
  snapshot.adapter_digest = "adapter " + std::to_string(step);
  snapshot.base["head"] = tensor_of(1.0F);
  snapshot.base["norm"] = tensor_of(2.0F);
  snapshot.adapter["lora_A"] = tensor_of(static_cast<float>(step));
  return snapshot;
}

class RemoteServingTest : public ActorTest {
protected:
  void SetUp() override { start({}); }
  void TearDown() override {
    remote_->stop();
    fake_->listener = nullptr;
    ActorTest::TearDown();
  }
  void start(RemoteServingOptions options) {
    if (remote_.has_value()) {
      remote_->stop();
      drain();
    }
    device_ = keep(spawn_fake_device(system(), fake_));
    remote_.emplace(system(), device_, port(), std::move(options));
    proxy_exit_ = exit_of(remote_->serving());
    gate_exit_ = exit_of(remote_->gate());
  }
  Reply<RolloutResult> generate(const RolloutRequest& request) {
    auto reply = ask<RolloutResult>(remote_->serving(), atom::generate_v, request);
    drain();
    return reply;
  }
  Reply<PolicyVersion> load(const Snapshot& snapshot) {
    auto reply = ask<PolicyVersion>(remote_->serving(), atom::load_v, snapshot);
    settle();
    return reply;
  }
  Reply<AdapterList> change(const AdapterRequest& request) {
    auto reply = ask<AdapterList>(remote_->serving(), atom::adapters_v, request);
    settle();
    return reply;
  }
  // Lets work at the port end; its messages need a moment of virtual time.
  void settle() {
    for (int i = 0; i < 4; ++i) {
      advance(0s);
    }
  }
  // Replies to the oldest load with its version. Returns what the device got.
  Snapshot accept_load() {
    auto pending = take(fake_->loads);
    const Snapshot snapshot = pending.request;
    pending.reply(snapshot.version);
    settle();
    return snapshot;
  }
  void reject_load(const Status& why) {
    take(fake_->loads).fail(why);
    settle();
  }

  std::shared_ptr<FakeDevice> fake_ = std::make_shared<FakeDevice>();
  actors::DeviceActor device_;
  std::optional<RemoteServing> remote_;
  std::shared_ptr<std::optional<Status>> proxy_exit_;
  std::shared_ptr<std::optional<Status>> gate_exit_;
};

// -- generation -----------------------------------------------------------------------------------

TEST_F(RemoteServingTest, ARequestReachesTheDeviceAndItsResultReturns) {
  const auto reply = generate(example_request());
  ASSERT_EQ(fake_->generations.size(), 1U);
  const RolloutRequest arrived = fake_->generations.front().request;
  EXPECT_EQ(arrived.prompt_ids, example_request().prompt_ids);
  EXPECT_EQ(arrived.tenant, "tenant-a");
  EXPECT_EQ(arrived.time_limit, 2500ms);
  RolloutResult result = example_result();
  result.id = arrived.id;
  take(fake_->generations).reply(result);
  drain();
  ASSERT_TRUE(reply.ok()) << reply.status().to_string();
  EXPECT_EQ(reply.value().id, arrived.id);
  EXPECT_EQ(reply.value().response_ids, result.response_ids);
  EXPECT_EQ(reply.value().behavior_logprobs, result.behavior_logprobs);
  EXPECT_EQ(reply.value().versions, result.versions);
  EXPECT_EQ(reply.value().top_logprobs, result.top_logprobs);
  EXPECT_EQ(reply.count(), 1);
}

TEST_F(RemoteServingTest, FailuresKeepTheirCodeAndText) {
  const Status failures[] = {{Errc::kInvalidArgument, "top_k: must not be negative sample_id=7"},
                             {Errc::kNotFound, "no adapter poet"},
                             {Errc::kResourceExhausted, "9 tokens never fit"},
                             {Errc::kUnavailable, "the request was given up"},
                             {Errc::kInternal, ""}};
  for (const Status& failure : failures) {
    const auto reply = generate(request_of(7));
    take(fake_->generations).fail(failure);
    drain();
    ASSERT_TRUE(reply.arrived());
    EXPECT_EQ(reply.status().code(), failure.code());
    EXPECT_EQ(reply.status().message(), failure.message());
  }
  EXPECT_FALSE(proxy_exit_->has_value());
}

TEST_F(RemoteServingTest, ARequestWithAConstraintIsRefusedInOneLine) {
  RolloutRequest constrained = request_of(5);
  constrained.constraint.is_set = true;
  const auto reply = generate(constrained);
  EXPECT_EQ(reply.status().code(), Errc::kUnimplemented);
  EXPECT_EQ(reply.status().message(),
            "device-1: request 5: a constraint cannot be sent to another process");
  EXPECT_TRUE(fake_->generations.empty());
}

TEST_F(RemoteServingTest, ACancelledIdReachesTheDevice) {
  const auto reply = generate(request_of(3));
  caf::anon_send(remote_->serving(), atom::cancel_v, SampleId{3});
  caf::anon_send(remote_->serving(), atom::cancel_v,
                 SampleId{4});  // unknown: the device ignores it
  drain();
  EXPECT_THAT(fake_->cancelled, ElementsAre(SampleId{3}, SampleId{4}));
  RolloutResult cancelled = result_of(3);
  cancelled.finish_reason = FinishReason::kCancelled;
  take(fake_->generations).reply(cancelled);
  drain();
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply.value().finish_reason, FinishReason::kCancelled);
}

TEST_F(RemoteServingTest, TwoRequestsOfOneIdGetTheirOwnReplies) {
  const auto first = generate(request_of(3));
  const auto second = generate(request_of(3));
  ASSERT_EQ(fake_->generations.size(), 2U);
  RolloutResult cancelled = result_of(3);
  cancelled.finish_reason = FinishReason::kCancelled;
  auto early = take(fake_->generations);
  auto late = take(fake_->generations);
  late.reply(result_of(3));
  early.reply(cancelled);
  drain();
  EXPECT_EQ(first.value().finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(second.value().finish_reason, FinishReason::kStop);
}

TEST_F(RemoteServingTest, ManyRequestsAreInFlightAtATime) {
  constexpr std::uint64_t kRequests = 1000;
  std::vector<Reply<RolloutResult>> replies;
  for (std::uint64_t id = 0; id < kRequests; ++id) {
    replies.push_back(ask<RolloutResult>(remote_->serving(), atom::generate_v, request_of(id)));
  }
  drain();
  ASSERT_EQ(fake_->generations.size(), kRequests);
  while (!fake_->generations.empty()) {  // the last one first
    auto pending = std::move(fake_->generations.back());
    fake_->generations.pop_back();
    EXPECT_EQ(pending.request.prompt_ids.at(2),
              static_cast<std::int32_t>(pending.request.id.value));
    pending.reply(result_of(pending.request.id.value));
  }
  drain();
  for (std::uint64_t id = 0; id < kRequests; ++id) {
    ASSERT_TRUE(replies[id].ok()) << id;
    EXPECT_EQ(replies[id].value().id, SampleId{id});
    EXPECT_EQ(replies[id].value().response_ids.at(0), static_cast<std::int32_t>(id));
  }
}

TEST_F(RemoteServingTest, ADeviceMayTakeTwentyHours) {
  const auto reply = generate(request_of(1));
  advance(20h);
  EXPECT_FALSE(reply.arrived());
  take(fake_->generations).reply(result_of(1));
  drain();
  EXPECT_TRUE(reply.ok()) << reply.status().to_string();
}

TEST_F(RemoteServingTest, NoTimerStaysAfterAReply) {
  const std::size_t before = num_timers();
  for (std::uint64_t id = 0; id < 20; ++id) {
    const auto reply = generate(request_of(id));
    take(fake_->generations).reply(result_of(id));
    drain();
    ASSERT_TRUE(reply.ok());
  }
  EXPECT_LE(num_timers(), before + 1);
}

// The logits of a long prompt are larger than a message may be, and than Cap'n Proto can encode.
TEST_F(RemoteServingTest, AResultThatIsTooLargeFailsItsRequestOnly) {
  const auto large = generate(request_of(1));
  const auto small = generate(request_of(2));
  RolloutResult result = result_of(1);
  result.prompt_logits.resize(5 << 20);
  take(fake_->generations).reply(result);
  take(fake_->generations).reply(result_of(2));
  drain();
  EXPECT_EQ(large.status().code(), Errc::kInvalidArgument);
  EXPECT_EQ(large.status().message(),
            "request 1: its result of 20971560 bytes does not fit into one message");
  EXPECT_TRUE(small.ok());
  EXPECT_FALSE(proxy_exit_->has_value());
}

TEST_F(RemoteServingTest, AResultThatJustFitsArrives) {
  const auto reply = generate(request_of(1));
  RolloutResult result = result_of(1);
  result.prompt_logits.assign((4 << 20) - 1000, 0.5F);
  take(fake_->generations).reply(result);
  drain();
  ASSERT_TRUE(reply.ok()) << reply.status().to_string();
  EXPECT_EQ(reply.value().prompt_logits, result.prompt_logits);
}

TEST_F(RemoteServingTest, ARequestThatIsTooLargeIsRefused) {
  RolloutRequest request = request_of(1);
  request.prompt_ids.resize(5 << 20);
  const auto reply = generate(request);
  EXPECT_EQ(reply.status().code(), Errc::kInvalidArgument);
  EXPECT_EQ(reply.status().message(),
            "device-1: request 1: 20971520 bytes do not fit into one message");
  EXPECT_TRUE(fake_->generations.empty());
}

// -- weights --------------------------------------------------------------------------------------

TEST_F(RemoteServingTest, ALoadedSnapshotHasTheBytesOfTheSender) {
  const Snapshot sent = snapshot_of(4);
  const auto reply = load(sent);
  ASSERT_EQ(fake_->loads.size(), 1U);
  EXPECT_FALSE(reply.arrived()) << "the device has not accepted it";
  const Snapshot arrived = accept_load();
  EXPECT_EQ(arrived.version, sent.version);
  EXPECT_EQ(arrived.base_digest, "base");
  EXPECT_EQ(arrived.adapter_digest, "adapter 4");
  ASSERT_EQ(arrived.base.size(), 2U);
  ASSERT_EQ(arrived.adapter.size(), 1U);
  for (const auto& [name, tensor] : sent.base) {
    EXPECT_EQ(arrived.base.at(name).shape, tensor.shape);
    EXPECT_TRUE(std::ranges::equal(arrived.base.at(name).data.bytes(), tensor.data.bytes()));
  }
  EXPECT_EQ(arrived.adapter.at("lora_A").data.as<float>()[0], 4.0F);
  ASSERT_TRUE(reply.ok()) << reply.status().to_string();
  EXPECT_EQ(reply.value(), sent.version);
  EXPECT_EQ(remote_->buffers().loans(), 0U);
}

TEST_F(RemoteServingTest, ABaseThatTheDeviceHasIsNotSentAgain) {
  load(snapshot_of(1));
  accept_load();
  const auto reply = load(snapshot_of(2));
  const Snapshot arrived = accept_load();
  EXPECT_TRUE(arrived.base.empty());
  EXPECT_EQ(arrived.base_digest, "base");
  EXPECT_EQ(arrived.adapter.size(), 1U);
  EXPECT_TRUE(reply.ok());
  EXPECT_EQ(remote_->buffers().resolved, 4);
  load(snapshot_of(3, "another base"));
  EXPECT_EQ(accept_load().base.size(), 2U);
}

TEST_F(RemoteServingTest, ABaseThatWasNotAcceptedIsSentAgain) {
  const auto first = load(snapshot_of(1));
  reject_load({Errc::kResourceExhausted, "no memory"});
  EXPECT_EQ(first.status().message(), "no memory");
  load(snapshot_of(1));
  EXPECT_EQ(accept_load().base.size(), 2U);
}

TEST_F(RemoteServingTest, ADeviceThatNoLongerHasTheBaseGetsItAfterAll) {
  load(snapshot_of(1));
  accept_load();
  const auto reply = load(snapshot_of(2));
  reject_load({Errc::kInvalidArgument, "no base tensors, and base base is not loaded"});
  EXPECT_FALSE(reply.arrived());
  ASSERT_EQ(fake_->loads.size(), 1U);
  EXPECT_EQ(fake_->loads.front().request.base.size(), 2U);
  reject_load({Errc::kInvalidArgument, "shape of head"});
  EXPECT_EQ(reply.status().code(), Errc::kInvalidArgument) << "the second refusal counts";
  EXPECT_EQ(reply.status().message(), "shape of head");
  EXPECT_TRUE(fake_->loads.empty());
  EXPECT_EQ(remote_->buffers().loans(), 0U);
}

TEST_F(RemoteServingTest, ARefusalThatTheBaseCannotChangeIsFinal) {
  load(snapshot_of(5));
  accept_load();
  const auto reply = load(snapshot_of(2));
  reject_load({Errc::kStaleVersion, "snapshot 0.1.2 is older than 0.1.5"});
  EXPECT_EQ(reply.status().code(), Errc::kStaleVersion);
  EXPECT_TRUE(fake_->loads.empty());
}

TEST_F(RemoteServingTest, LoadsAndChangesOfAdaptersKeepTheirOrder) {
  const auto first = load(snapshot_of(1));
  AdapterRequest adapter;
  adapter.action = actors::AdapterAction::kLoad;
  adapter.name = "poet";
  adapter.tensors["lora_B"] = tensor_of(8.0F);
  const auto second = change(adapter);
  const auto third = load(snapshot_of(2));
  EXPECT_TRUE(fake_->adapter_requests.empty()) << "one after the other";
  accept_load();
  EXPECT_TRUE(first.ok());
  ASSERT_EQ(fake_->adapter_requests.size(), 1U);
  EXPECT_TRUE(fake_->loads.empty());
  auto pending = take(fake_->adapter_requests);
  EXPECT_EQ(pending.request.tensors.at("lora_B").data.as<float>()[0], 8.0F);
  pending.reply(example_adapter_list());
  settle();
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second.value().adapters.at(1).name, "critic");
  EXPECT_EQ(second.value().adapters.at(1).num_requests, 611);
  accept_load();
  EXPECT_TRUE(third.ok());
}

TEST_F(RemoteServingTest, GenerationDoesNotWaitForALoad) {
  load(snapshot_of(1));
  const auto reply = generate(request_of(1));
  ASSERT_EQ(fake_->generations.size(), 1U);
  take(fake_->generations).reply(result_of(1));
  drain();
  EXPECT_TRUE(reply.ok());
}

TEST_F(RemoteServingTest, AdaptersAreListedWithoutTensors) {
  const auto reply = change({});
  take(fake_->adapter_requests).fail({Errc::kUnimplemented, "serves no adapters by name"});
  settle();
  EXPECT_EQ(reply.status().code(), Errc::kUnimplemented);
  EXPECT_EQ(reply.status().message(), "serves no adapters by name");
  EXPECT_EQ(remote_->buffers().lends, 0);
}

// -- lending --------------------------------------------------------------------------------------

TEST_F(RemoteServingTest, ALoadWaitsForRoomToLendItsTensors) {
  const Status full(Errc::kResourceExhausted, "segment pool 7: full");
  remote_->buffers().failures = {full, {}, {}, full};  // the second time, in its adapter
  const auto reply = load(snapshot_of(1));
  EXPECT_TRUE(fake_->loads.empty());
  advance(50ms);
  settle();
  EXPECT_TRUE(fake_->loads.empty());
  EXPECT_EQ(remote_->buffers().loans(), 0U) << "all or nothing";
  advance(100ms);
  settle();
  accept_load();
  EXPECT_TRUE(reply.ok()) << reply.status().to_string();
  EXPECT_EQ(remote_->buffers().loans(), 0U);
}

TEST_F(RemoteServingTest, ALoadThatFindsNoRoomFailsInTheEnd) {
  const Status full(Errc::kResourceExhausted, "segment pool 7: full");
  remote_->buffers().failures.assign(1000, full);
  const auto reply = load(snapshot_of(1));
  for (Duration waited{0}; waited < actors::kMaxLendWait; waited += 1s) {
    advance(1s);
    settle();
  }
  EXPECT_EQ(reply.status().code(), Errc::kResourceExhausted);
  EXPECT_EQ(reply.status().message(), "device-1: tensor head: segment pool 7: full");
  EXPECT_LT(remote_->buffers().lends, 100);
  remote_->buffers().failures.clear();
  const auto next = load(snapshot_of(2));
  accept_load();
  EXPECT_TRUE(next.ok());
}

TEST_F(RemoteServingTest, AReaderThatIsGoneFailsTheLoadAtOnce) {
  remote_->buffers().failures = {{Errc::kUnavailable, "reader 1 has hung up"}};
  const auto reply = load(snapshot_of(1));
  EXPECT_EQ(reply.status().code(), Errc::kUnavailable);
  EXPECT_EQ(reply.status().message(), "device-1: tensor head: reader 1 has hung up");
}

TEST_F(RemoteServingTest, ABufferThatCannotBeResolvedFailsTheLoadAndUsesTheOtherLoans) {
  RemoteServingOptions options;
  options.lender = std::make_shared<LocalBuffers>();  // lends what the resolver does not know
  start(options);
  const auto reply = load(snapshot_of(1));
  EXPECT_EQ(reply.status().code(), Errc::kNotFound);
  EXPECT_EQ(reply.status().message(), "tensor head: it was not lent");
  EXPECT_TRUE(fake_->loads.empty());
}

TEST_F(RemoteServingTest, WithoutALenderTensorsAreRefusedAndTheRestWorks) {
  RemoteServingOptions options;
  options.with_buffers = false;
  start(options);
  const auto reply = load(snapshot_of(1));
  EXPECT_EQ(reply.status().code(), Errc::kUnimplemented);
  EXPECT_EQ(reply.status().message(), "device-1: no tensors can be sent to its process");
  Snapshot empty;
  empty.version = {0, 1, 2};
  const auto without = load(empty);
  accept_load();
  EXPECT_TRUE(without.ok());
}

TEST_F(RemoteServingTest, WhatIsLentAndNotSentIsTakenBack) {
  ManualPort manual;
  RemoteServingOptions options;
  options.lend_port = &manual;
  start(options);
  const auto reply = load(snapshot_of(1));
  ASSERT_EQ(manual.size(), 1U);
  remote_->lose("killed by signal 9");
  settle();
  EXPECT_EQ(reply.status().code(), Errc::kUnavailable);
  while (manual.size() > 0) {
    manual.run_next();
  }
  drain();
  EXPECT_EQ(remote_->buffers().lends, 3);
  EXPECT_EQ(remote_->buffers().loans(), 0U);
}

// -- ends -----------------------------------------------------------------------------------------

TEST_F(RemoteServingTest, WhenTheLinkEndsRequestsFailAndTheDeviceIsFree) {
  const auto generated = generate(request_of(1));
  const auto other = generate(request_of(2));
  const auto loaded = load(snapshot_of(1));
  const auto queued = change({});
  remote_->lose("killed by signal 9 (Killed)");
  drain();
  for (const Status& status :
       {generated.status(), other.status(), loaded.status(), queued.status()}) {
    EXPECT_EQ(status.code(), Errc::kUnavailable);
    EXPECT_THAT(status.message(), HasSubstr("killed by signal 9 (Killed)"));
  }
  ASSERT_TRUE(proxy_exit_->has_value());
  EXPECT_EQ((*proxy_exit_)->code(), Errc::kUnavailable);
  EXPECT_EQ((*proxy_exit_)->message(), "killed by signal 9 (Killed)");
  remote_->ports().worker->close("the owner is gone");
  drain();
  ASSERT_TRUE(gate_exit_->has_value());
  EXPECT_TRUE((*gate_exit_)->ok());
  EXPECT_THAT(fake_->cancelled, ElementsAre(SampleId{1}, SampleId{2}));
  EXPECT_EQ(generated.count(), 1);
}

TEST_F(RemoteServingTest, ADeviceThatEndsTakesItsProxyWithIt) {
  const auto generated = generate(request_of(1));
  const auto loaded = load(snapshot_of(1));
  caf::anon_send(caf::actor_cast<caf::actor>(device_),
                 caf::exit_msg{device_.address(),
                               actors::to_caf_error({Errc::kCorruptData, "logits: not finite"})});
  settle();
  ASSERT_TRUE(proxy_exit_->has_value());
  EXPECT_EQ((*proxy_exit_)->code(), Errc::kCorruptData);
  EXPECT_EQ((*proxy_exit_)->message(), "logits: not finite");
  EXPECT_EQ(generated.status().code(), Errc::kUnavailable);
  EXPECT_EQ(loaded.status().code(), Errc::kUnavailable);
  EXPECT_EQ(generate(request_of(2)).status().code(), Errc::kUnavailable);
}

TEST_F(RemoteServingTest, AGateThatIsKilledTakesTheProxyWithIt) {
  const auto reply = generate(request_of(1));
  kill(remote_->gate());
  EXPECT_EQ(reply.status().code(), Errc::kUnavailable);
  ASSERT_TRUE(proxy_exit_->has_value());
  EXPECT_EQ((*proxy_exit_)->code(), Errc::kUnavailable);
}

TEST_F(RemoteServingTest, AProxyOfAClosedPortEndsAtOnce) {
  const auto port_of_no_link = std::make_shared<actors::PeerPort>(remote_->clock());
  port_of_no_link->close("it could not be started");
  const auto exit = exit_of(
      actors::spawn_serving_proxy(system(), {"device-2", port_of_no_link, nullptr, nullptr}));
  ASSERT_TRUE(exit->has_value());
  EXPECT_EQ((*exit)->message(), "it could not be started");
}

// -- malformed messages ---------------------------------------------------------------------------

TEST_F(RemoteServingTest, MessagesThatAreNoneAreRefused) {
  std::vector<actors::PeerMessagePtr> replies;
  const auto caller = keep(system().spawn([&replies](caf::event_based_actor*) {
    return caf::behavior{[&replies](atom::deliver, const actors::PeerMessagePtr& reply) {
      replies.push_back(reply);
    }};
  }));
  const Buffer garbage = Buffer::adopt(std::vector<std::uint64_t>{1, 2, 3}, DType::kU64);
  for (const auto kind : {MessageKind::kGenerate, MessageKind::kLoad, MessageKind::kAdapters}) {
    remote_->ports().owner->call(kind, garbage, 1h, caf::actor_cast<caf::strong_actor_ptr>(caller));
  }
  remote_->ports().owner->tell(MessageKind::kCancel, garbage);
  remote_->ports().owner->tell(MessageKind::kLoaded, garbage);  // a reply to nothing
  drain();
  ASSERT_EQ(replies.size(), 3U);
  for (const auto& reply : replies) {
    ASSERT_EQ(reply->kind, MessageKind::kFailure);
    const auto failure = actors::from_wire<actors::Failure>(reply->body);
    ASSERT_TRUE(failure.ok());
    EXPECT_EQ(failure.value().status.code(), Errc::kCorruptData);
  }
  replies.clear();
  EXPECT_FALSE(gate_exit_->has_value());
  EXPECT_TRUE(generate(request_of(1)).count() == 0 && fake_->generations.size() == 1);
}

// -- routers --------------------------------------------------------------------------------------

// A router sees a remote device as any other.
TEST_F(RemoteServingTest, ARouterRemovesARemoteDeviceThatIsLost) {
  const auto local = std::make_shared<FakeDevice>();
  const auto router = keep(
      actors::spawn_router(system(), {{{"device-1", remote_->serving()},
                                       {"device-2", keep(spawn_fake_device(system(), local))}}}));
  std::vector<Reply<RolloutResult>> replies;
  for (std::uint64_t id = 1; id <= 4; ++id) {
    replies.push_back(ask<RolloutResult>(router, atom::generate_v, request_of(id)));
    drain();
  }
  EXPECT_EQ(fake_->generations.size(), 2U);
  EXPECT_EQ(local->generations.size(), 2U);
  remote_->lose("killed");
  drain();
  EXPECT_EQ(replies[0].status().code(), Errc::kUnavailable);
  EXPECT_THAT(replies[0].status().message(), HasSubstr("killed"));
  EXPECT_FALSE(replies[1].arrived());
  const auto next = ask<RolloutResult>(router, atom::generate_v, request_of(9));
  drain();
  EXPECT_EQ(local->generations.size(), 3U);
}

// A worker of another process reaches the devices of the run through the router.
TEST_F(RemoteServingTest, ARouterServesAnotherProcess) {
  const auto router = keep(
      actors::spawn_router(system(), {{{"device", keep(spawn_fake_device(system(), fake_))}}}));
  RemoteServing from_worker(system(), router, port(), {"router"});
  const auto reply = ask<RolloutResult>(from_worker.serving(), atom::generate_v, request_of(6));
  const auto refused = ask<AdapterList>(from_worker.serving(), atom::adapters_v, AdapterRequest{});
  drain();
  ASSERT_EQ(fake_->generations.size(), 1U);
  take(fake_->generations).reply(result_of(6));
  drain();
  EXPECT_TRUE(reply.ok());
  EXPECT_EQ(refused.status().code(), Errc::kUnimplemented);
  EXPECT_THAT(refused.status().message(), StartsWith("the router loads neither"));
  from_worker.stop();
  drain();
}

// Both directions of one port at a time.
TEST_F(RemoteServingTest, TwoProcessesMayServeEachOther) {
  const auto other = std::make_shared<FakeDevice>();
  const auto& ports = remote_->ports();
  const auto proxy = actors::spawn_serving_proxy(
      system(), {"device of the owner", ports.worker, nullptr, nullptr});
  actors::spawn_serving_gate(
      system(), {ports.owner, keep(spawn_fake_device(system(), other)), nullptr, nullptr});
  const auto there = generate(request_of(1));
  const auto back = ask<RolloutResult>(proxy, atom::generate_v, request_of(2));
  drain();
  ASSERT_EQ(fake_->generations.size(), 1U);
  ASSERT_EQ(other->generations.size(), 1U);
  take(fake_->generations).reply(result_of(1));
  take(other->generations).reply(result_of(2));
  drain();
  EXPECT_EQ(there.value().id, SampleId{1});
  EXPECT_EQ(back.value().id, SampleId{2});
}

}  // namespace
}  // namespace tidemill::test
