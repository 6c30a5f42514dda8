// SPDX-License-Identifier: Apache-2.0
// The fixture for tests of a trainer, or of a worker, whose peers are fakes.
#pragma once

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "actors/trainer/spawn.hpp"
#include "tests/support/actor_test.hpp"
#include "tests/support/fake_actors.hpp"

namespace tidemill::test {

/// Spawns the fake peers of a trainer. A test may change `deps_` before it starts the trainer, and
/// may pass the handles in `deps_` to other actors.
class TrainerFixture : public ActorTest {
protected:
  void SetUp() override {
    deps_.options.groups_per_step = 2;
    deps_.options.total_steps = 9;
    deps_.stream = keep(spawn_fake_stream(system(), stream_));
    const auto device = keep(spawn_fake_device(system(), device_));
    deps_.training = device;
    deps_.serving = device;
    deps_.keeper = keep(spawn_fake_keeper(system(), keeper_));
    deps_.recorder = keep(spawn_fake_recorder(system(), recorder_));
    deps_.evaluator = keep(spawn_fake_evaluator(system(), evaluator_));
    deps_.listener = keep(spawn_fake_run_listener(system(), listener_));
    deps_.commits = commits_;
    deps_.commit_port = &port();
    deps_.io_port = &port();
  }
  void start_trainer() {
    trainer_ = keep(actors::spawn_trainer(system(), deps_));
    caf::anon_send(trainer_, atom::start_v);
    drain();
  }
  /// Replies to the oldest lease request.
  void deliver(std::vector<storage::LeasedRow> rows,
               Duration lease_time = std::chrono::minutes(1)) {
    actors::LeaseReply reply;
    reply.rows = std::move(rows);
    reply.lease_time = lease_time;
    take(stream_->leases).reply(std::move(reply));
    drain();
  }
  /// Replies to the oldest training job.
  void train() {
    auto job = take(device_->jobs);
    actors::TrainOutcome outcome;
    outcome.snapshot.version = job.request.publish_as;
    outcome.updates.resize(1);
    job.reply(std::move(outcome));
    drain();
  }

  std::shared_ptr<FakeStream> stream_ = std::make_shared<FakeStream>();
  std::shared_ptr<FakeDevice> device_ = std::make_shared<FakeDevice>();
  std::shared_ptr<FakeKeeper> keeper_ = std::make_shared<FakeKeeper>();
  std::shared_ptr<FakeRecorder> recorder_ = std::make_shared<FakeRecorder>();
  std::shared_ptr<FakeEvaluator> evaluator_ = std::make_shared<FakeEvaluator>();
  std::shared_ptr<FakeRunListener> listener_ = std::make_shared<FakeRunListener>();
  std::shared_ptr<MemoryCommits> commits_ = std::make_shared<MemoryCommits>();
  actors::TrainerDeps deps_;
  actors::TrainerActor trainer_;
};

}  // namespace tidemill::test
