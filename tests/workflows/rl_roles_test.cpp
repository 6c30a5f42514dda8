// SPDX-License-Identifier: Apache-2.0
// Tests that each role of a reinforcement-learning run starts its actors from its options and the
// handles that it gets. The simulation (tests/sim) tests whole runs.
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engines/replay/factory.hpp"
#include "tests/actors/sample_rows.hpp"
#include "tests/support/actor_test.hpp"
#include "tests/support/fake_actors.hpp"
#include "tests/support/fake_reward_engine.hpp"
#include "workflows/rl/owner_role.hpp"
#include "workflows/rl/reward_role.hpp"
#include "workflows/rl/rollout_role.hpp"

namespace tidemill::test {
namespace {

using actors::FailurePolicy;
using namespace std::chrono_literals;

class OnePrompt final : public actors::PromptReader {
public:
  Result<std::vector<actors::Prompt>> read(std::uint64_t draw, std::uint32_t /*count*/) override {
    std::vector<actors::Prompt> prompts;
    if (draw == 0) {
      actors::Prompt prompt;
      prompt.ids = {1, 2};
      prompt.prompt = "p";
      prompts.push_back(std::move(prompt));
    }
    return prompts;
  }
};

class RolesTest : public ActorTest {
protected:
  RolesTest() {
    initial_ = engines::replay_initial_snapshot(1);
    trained_ = engines::make_replay_rollout_engine({}, initial_);
    server_ = engines::make_replay_rollout_engine({}, initial_);
    train_ = engines::make_replay_training_job({}, initial_);
    owner_.max_concurrent_rows = 100;
    owner_.stream.group_size = 4;
    owner_.device_port = &port();
    owner_.io_port = &port();
    owner_.commit_port = &port();
    rollout_.device_ports = {&port()};
    rollout_.on_failure = FailurePolicy::kFailRun;
    rollout_.on_device_failure = FailurePolicy::kDrop;
    rollout_.worker.max_new_tokens = 4;
    reward_.on_failure = FailurePolicy::kDrop;
    reward_.decode = [](const std::vector<std::int32_t>&) { return std::string("text"); };
    reward_.make_reward = [this](std::optional<std::uint32_t> number) {
      made_for_.push_back(number);
      return rewards_;
    };
    reward_.ports = {&port()};
  }
  workflows::TrainingDevice training_device() {
    auto device = workflows::start_training_device(
        system(), owner_, {{trained_.get(), nullptr, nullptr}, train_.get(), nullptr}, nullptr);
    keep(device.core.front().actor);
    return device;
  }
  workflows::ServingDevices serving_devices() {
    auto devices = workflows::start_serving_devices(system(), rollout_,
                                                    {{server_.get(), nullptr, nullptr}}, nullptr);
    for (const actors::CorePart& part : devices.core) {
      keep(part.actor);
    }
    return devices;
  }

  engines::Snapshot initial_;
  std::unique_ptr<engines::RolloutEngine> trained_;
  std::unique_ptr<engines::RolloutEngine> server_;
  std::unique_ptr<engines::TrainingJob> train_;
  std::shared_ptr<FakeRewardEngine> rewards_ = std::make_shared<FakeRewardEngine>();
  std::vector<std::optional<std::uint32_t>> made_for_;
  workflows::OwnerRoleOptions owner_;
  workflows::RolloutRoleOptions rollout_;
  workflows::RewardRoleOptions reward_;
  std::shared_ptr<FakeStream> stream_ = std::make_shared<FakeStream>();
};

// The handles that cross between the roles. A binding fails to compile if a struct gets another
// member, and the assertions if a member changes its type: the other roles lease rows and serve,
// but they neither train nor change what is in the stream.
template <class Member, class T>
constexpr bool is = std::is_same_v<Member, const T>;

[[maybe_unused]] void only_consumers_and_serving_devices_cross_between_roles() {
  [[maybe_unused]] const auto& [rollout_stream, serving] = workflows::RolloutConnections();
  static_assert(is<decltype(rollout_stream), actors::StreamConsumerActor>);
  static_assert(is<decltype(serving), actors::ServingActor>);
  [[maybe_unused]] const auto& [reward_stream] = workflows::RewardConnections();
  static_assert(is<decltype(reward_stream), actors::StreamConsumerActor>);
  [[maybe_unused]] const auto& [serving_devices, run_listener] = workflows::OwnerConnections();
  static_assert(is<decltype(serving_devices), std::vector<actors::ServingDevice>>);
  static_assert(is<decltype(run_listener), actors::RunListenerActor>);
  [[maybe_unused]] const auto& [devices, core] = workflows::ServingDevices();
  static_assert(is<decltype(devices), std::vector<actors::ServingDevice>>);
  static_assert(is<decltype(core), std::vector<actors::CorePart>>);
  [[maybe_unused]] const auto& [name, actor] = actors::ServingDevice();
  static_assert(is<decltype(name), std::string>);
  static_assert(is<decltype(actor), actors::ServingActor>);
  [[maybe_unused]] const auto& [rollout, adapters, open_adapter] = workflows::ServingEngines();
  static_assert(is<decltype(rollout), engines::RolloutEngine*>);
  static_assert(is<decltype(adapters), engines::NamedAdapters*>);
  static_assert(is<decltype(open_adapter), actors::OpenAdapter>);
  [[maybe_unused]] const auto& [workers, worker, on_failure, on_device_failure, ports] =
      workflows::RolloutRoleOptions();
  static_assert(is<decltype(worker), actors::RolloutWorkerDeps>);
  static_assert(is<decltype(ports), std::vector<actors::WorkPort*>>);
}

TEST_F(RolesTest, TheOwnersDeviceFailsTheRunAndDevicesThatOnlyServeMayBeDropped) {
  const auto training = training_device();
  EXPECT_EQ(training.serving.name, "device");
  ASSERT_EQ(training.core.size(), 1U);
  EXPECT_EQ(training.core[0].name, "device");
  EXPECT_EQ(training.core[0].on_failure, FailurePolicy::kFailRun);
  EXPECT_EQ(training.training.address(), training.serving.actor.address());
  const auto serving = serving_devices();
  ASSERT_EQ(serving.core.size(), 1U);
  EXPECT_EQ(serving.devices[0].name, "device-1");
  EXPECT_EQ(serving.core[0].on_failure, FailurePolicy::kDrop);
  EXPECT_EQ(serving.devices[0].actor.address(), serving.core[0].actor.address());
}

TEST_F(RolesTest, RolloutWorkersLeaseFromTheStreamAndGenerateWithTheServingActor) {
  const auto device = std::make_shared<FakeDevice>();
  const auto stream = keep(spawn_fake_stream(system(), stream_));
  rollout_.workers = 2;
  const auto workers = workflows::rollout_worker_factory(
      system(), rollout_, {stream, keep(spawn_fake_device(system(), device))});
  EXPECT_EQ(workers.kind, "rollout");
  EXPECT_EQ(workers.initial, 2U);
  const actors::WorkerSpec spec = workers.make(3);
  EXPECT_EQ(spec.name, "rollout-3");
  EXPECT_EQ(spec.kind, "rollout");
  EXPECT_EQ(spec.on_failure, FailurePolicy::kFailRun);
  keep(spec.spawn());
  drain();
  ASSERT_EQ(stream_->leases.size(), 1U);
  EXPECT_EQ(stream_->leases.front().request.consumer, "rollout-3");
  actors::LeaseReply reply;
  reply.lease_time = 60s;
  reply.rows = {trainable_row(5, 0)};
  take(stream_->leases).reply(std::move(reply));
  drain();
  ASSERT_EQ(device->generations.size(), 1U);
  EXPECT_EQ(device->generations.front().request.max_new_tokens, 4);
}

TEST_F(RolesTest, EveryStartOfARewardWorkerMakesItsEngine) {
  const auto stream = keep(spawn_fake_stream(system(), stream_));
  const auto workers = workflows::reward_worker_factory(system(), reward_, {stream});
  EXPECT_EQ(workers.kind, "reward");
  const actors::WorkerSpec spec = workers.make(2);  // there are fewer ports than workers
  EXPECT_EQ(spec.name, "reward-2");
  EXPECT_EQ(spec.on_failure, FailurePolicy::kDrop);
  EXPECT_TRUE(made_for_.empty());
  keep(spec.spawn());
  keep(spec.spawn());
  drain();
  EXPECT_EQ(made_for_, (std::vector<std::optional<std::uint32_t>>{2, 2}));
  ASSERT_EQ(stream_->leases.size(), 2U);
  EXPECT_EQ(stream_->leases.front().request.consumer, "reward-2");
}

TEST_F(RolesTest, TheOwnersDeviceCannotLeave) {
  owner_.reader = std::make_shared<OnePrompt>();
  owner_.commits = std::make_shared<MemoryCommits>();
  const auto run_listener =
      keep(spawn_fake_run_listener(system(), std::make_shared<FakeRunListener>()));
  workflows::OwnerState state{training_device(), initial_, nullptr, nullptr};
  const auto owner = workflows::start_owner(
      system(), owner_, {serving_devices().devices, run_listener}, {}, std::move(state));
  for (const actors::CorePart& part : owner.core) {
    keep(part.actor);
  }
  const auto refused =
      ask<actors::DeviceStatus>(owner.roster, atom::leave_v, std::string("device"));
  drain();
  EXPECT_EQ(refused.status().code(), Errc::kInvalidArgument);
  EXPECT_EQ(refused.status().message(), "device trains: it cannot leave");
  const auto left = ask<actors::DeviceStatus>(owner.roster, atom::leave_v, std::string("device-1"));
  drain();
  EXPECT_TRUE(left.ok());
}

// The prompt goes from the owner to a rollout worker, both devices, a reward worker and back.
TEST_F(RolesTest, TheRolesWorkTogetherOverTheirHandles) {
  workflows::OwnerRoleOptions& options = owner_;
  options.reader = std::make_shared<OnePrompt>();
  options.commits = std::make_shared<MemoryCommits>();
  std::size_t decided = 0;
  options.decide = [&decided](std::span<const actors::GroupMember> group) {
    decided += group.size();
    return Result<actors::GroupDecision>(
        actors::GroupDecision{std::vector<float>(group.size(), 0.5F), ""});
  };
  const auto run_listener =
      keep(spawn_fake_run_listener(system(), std::make_shared<FakeRunListener>()));
  workflows::OwnerState state{training_device(), initial_, nullptr, nullptr};
  const auto owner = workflows::start_owner(
      system(), options, {serving_devices().devices, run_listener}, {}, std::move(state));
  std::vector<std::string> names;
  for (const actors::CorePart& part : owner.core) {
    names.push_back(part.name);
    keep(part.actor);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"router", "keeper", "stream", "recorder", "source",
                                             "trainer"}));
  const auto rollout =
      workflows::rollout_worker_factory(system(), rollout_, {owner.stream, owner.router});
  const auto reward = workflows::reward_worker_factory(system(), reward_, {owner.stream});
  keep(rollout.make(0).spawn());
  keep(reward.make(0).spawn());
  keep(owner.advantage.make(0).spawn());
  caf::anon_send(owner.source, atom::start_v);
  EXPECT_TRUE(run_until([&] { return decided > 0; }));
  EXPECT_EQ(decided, 4U);
  EXPECT_EQ(rewards_->requests.size(), 4U);
}

}  // namespace
}  // namespace tidemill::test
