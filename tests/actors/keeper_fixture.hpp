// SPDX-License-Identifier: Apache-2.0
// The fixture of the version keeper's tests: a keeper and a router over fake devices.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "actors/keeper/spawn.hpp"
#include "actors/router/spawn.hpp"
#include "tests/support/actor_test.hpp"
#include "tests/support/fake_actors.hpp"

namespace tidemill::test {

/// Starts a keeper of groups of two rows and batches of four, unless a test changes `options_`.
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
    deps.inform = deps.log;
    deps.weights.version = {0, options_.incarnation, options_.step};
    deps.weights.base_digest = "at the start";
    keeper_ = keep(actors::spawn_keeper(system(), std::move(deps)));
    exit_ = exit_of(keeper_);
  }
  Reply<actors::Admission> admit(std::uint32_t groups, Duration wait = std::chrono::seconds(5)) {
    auto reply =
        ask<actors::Admission>(keeper_, atom::admit_v, actors::AdmissionRequest{groups, wait});
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
  actors::KeeperStatus status() {
    const auto reply = ask<actors::KeeperStatus>(keeper_, atom::status_v);
    drain();
    EXPECT_TRUE(reply.ok());
    return reply.value();
  }

  // Asks to let the fake device join, under this name.
  Reply<actors::DeviceStatus> join(const std::string& name,
                                   const std::shared_ptr<FakeDevice>& device) {
    other_handles_.push_back(keep(spawn_fake_device(system(), device)));
    auto reply = ask<actors::DeviceStatus>(keeper_, atom::join_v,
                                           actors::join_request({name, other_handles_.back()}));
    drain();
    return reply;
  }
  Reply<actors::DeviceStatus> leave(const std::string& name) {
    auto reply = ask<actors::DeviceStatus>(keeper_, atom::leave_v, name);
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

}  // namespace tidemill::test
