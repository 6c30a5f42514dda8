// SPDX-License-Identifier: Apache-2.0
// The fixture for tests of a device.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "actors/device/spawn.hpp"
#include "engines/replay/factory.hpp"
#include "tests/support/actor_test.hpp"
#include "tests/support/remote_serving.hpp"
#include "tests/support/watched_engines.hpp"

namespace tidemill::test {

/// Computes nothing.
class NoLoss final : public engines::TokenLoss {
public:
  Status evaluate(std::span<const engines::LossSequence> /*rows*/,
                  engines::LossSums& /*sums*/) override {
    return {};
  }
};

/// Counts the calls of engines that work at the port makes, and lists those made elsewhere.
struct EngineCalls {
  bool at_port = false;
  std::map<std::string, int> counts;
  std::vector<std::string> elsewhere;

  void add(const std::string& call) {
    if (at_port) {
      ++counts[call];
    } else {
      elsewhere.push_back(call);
    }
  }
};

/// Says when work at a port calls engines.
class WatchedPort final : public actors::WorkPort {
public:
  WatchedPort(actors::WorkPort& inner, EngineCalls& calls) : inner_(inner), calls_(calls) {}
  void run(Work work, caf::strong_actor_ptr receiver, caf::message done) override {
    inner_.run(
        [this, work = std::move(work)] {
          calls_.at_port = true;
          const Duration spent = work();
          calls_.at_port = false;
          return spent;
        },
        std::move(receiver), std::move(done));
  }

private:
  actors::WorkPort& inner_;
  EngineCalls& calls_;
};

/// A rollout engine whose steps fail while `failure` is set.
class FailingRollout final : public engines::RolloutEngine {
public:
  explicit FailingRollout(std::unique_ptr<engines::RolloutEngine> inner)
      : inner_(std::move(inner)) {}
  Status submit(engines::RolloutRequest request, engines::RolloutSink& sink) override {
    return inner_->submit(std::move(request), sink);
  }
  void cancel(SampleId id) override { inner_->cancel(id); }
  Status load(engines::Snapshot snapshot, engines::WeightArrival arrival) override {
    return inner_->load(std::move(snapshot), arrival);
  }
  PolicyVersion serving_version() const override { return inner_->serving_version(); }
  bool has_work() const override { return inner_->has_work(); }
  Result<engines::StepReport> step(const engines::StepBudget& budget) override {
    ++steps;
    if (!failure.ok()) {
      return failure;
    }
    return inner_->step(budget);
  }
  Status failure;
  int steps = 0;

private:
  std::unique_ptr<engines::RolloutEngine> inner_;
};

/// Counts the steps of a train engine.
class CountingTrain final : public engines::TrainingJob {
public:
  explicit CountingTrain(std::unique_ptr<engines::TrainingJob> inner) : inner_(std::move(inner)) {}
  Status forward(engines::TrainBatch batch) override {
    temperatures.push_back(batch.temperature);
    return inner_->forward(std::move(batch));
  }
  Status forward_backward(engines::TrainBatch batch, engines::TokenLoss& loss) override {
    temperatures.push_back(batch.temperature);
    return inner_->forward_backward(std::move(batch), loss);
  }
  Status optim_step(const engines::OptimStep& step) override { return inner_->optim_step(step); }
  Status save(PolicyVersion version) override { return inner_->save(version); }
  bool has_work() const override { return capture_left_ > 0 || inner_->has_work(); }
  Result<engines::StepReport> advance(const engines::StepBudget& budget) override {
    ++steps;
    if (!failure.ok()) {
      cancel();
      return failure;
    }
    if (capture_left_ > 0) {
      engines::StepReport report;
      report.more = --capture_left_ > 0;
      return report;
    }
    return inner_->advance(budget);
  }
  Result<std::vector<float>> logprobs(SampleId id) const override { return inner_->logprobs(id); }
  Result<std::vector<std::vector<float>>> score(const engines::Snapshot& weights,
                                                std::span<const engines::TrainSequence> sequences,
                                                float temperature) override {
    return inner_->score(weights, sequences, temperature);
  }
  void cancel() override {
    capture_left_ = 0;
    inner_->cancel();
  }
  const engines::UpdateReport& last_update() const override { return inner_->last_update(); }
  engines::Snapshot take_snapshot() override { return inner_->take_snapshot(); }
  Status capture() override {
    capture_left_ = capture_units;
    return inner_->capture();
  }
  TensorMap take_optimizer_state() override { return inner_->take_optimizer_state(); }
  Status load(const engines::Snapshot& snapshot, const TensorMap& state) override {
    return inner_->load(snapshot, state);
  }
  int steps = 0;
  int capture_units = 0;            // calls of `advance` that a capture takes
  Status failure;                   // of `advance`
  std::vector<float> temperatures;  // of each batch

private:
  std::unique_ptr<engines::TrainingJob> inner_;
  int capture_left_ = 0;
};

/// Adapters that have names and versions, but no tensors.
class NamesOnly final : public engines::NamedAdapters {
public:
  explicit NamesOnly(EngineCalls& calls) : calls_(calls) {}
  Status load(engines::NamedAdapter adapter) override {
    calls_.add("load adapter");
    if (adapter.name.empty()) {
      return invalid_argument("adapter: no name");
    }
    names_[adapter.name] = adapter.version.value_or(PolicyVersion{1, 2, 3});
    return {};
  }
  Status unload(std::string_view name) override {
    calls_.add("unload adapter");
    return names_.erase(std::string(name)) == 1
               ? Status()
               : Status(Errc::kNotFound, "adapter " + std::string(name) + " is not loaded");
  }
  std::vector<engines::LoadedAdapter> loaded() const override {
    calls_.add("list adapters");
    std::vector<engines::LoadedAdapter> all;
    for (const auto& [name, version] : names_) {
      all.push_back({name, version, 0, 0});
    }
    return all;
  }

private:
  EngineCalls& calls_;
  std::map<std::string, PolicyVersion> names_;
};

/// A device over replayed engines, whose calls are counted. It may be in another process.
class DeviceTest : public ActorTest {
protected:
  void SetUp() override {
    replay_.length_of = [](SampleId id) { return static_cast<std::uint32_t>(1 + id.value % 4); };
    initial_ = engines::replay_initial_snapshot(1);
    rollout_ =
        std::make_unique<FailingRollout>(engines::make_replay_rollout_engine(replay_, initial_));
    train_ = std::make_unique<CountingTrain>(engines::make_replay_training_job(replay_, initial_));
  }
  void start(bool trains = true) {
    actors::DeviceDeps deps;
    const OnEngineCall on_call = [this](const std::string& call) { calls_.add(call); };
    watched_rollout_ = std::make_unique<WatchedRollout>(*rollout_, on_call);
    watched_train_ = std::make_unique<WatchedTrain>(*train_, on_call);
    deps.rollout = watched_rollout_.get();
    deps.train = trains ? watched_train_.get() : nullptr;
    deps.make_loss = [this](auto batch) -> Result<std::unique_ptr<engines::TokenLoss>> {
      minibatches_.push_back(batch.size());
      if (minibatches_.size() == failing_loss_) {
        return Status(Errc::kInvalidArgument, "advantage is not finite");
      }
      return std::unique_ptr<engines::TokenLoss>(std::make_unique<NoLoss>());
    };
    deps.port = &watched_port_;
    deps.adapters = trains ? &adapters_ : nullptr;
    deps.open_adapter =
        [this](const actors::AdapterRequest& request) -> Result<engines::AdapterFiles> {
      calls_.add("open adapter");
      if (request.path != "adapters/tutor") {
        return Status(Errc::kNotFound, request.path + ": no such directory");
      }
      return engines::AdapterFiles{};
    };
    device_ = keep(actors::spawn_device(system(), std::move(deps)));
    serving_ = device_;
    if (remote_) {
      process_.emplace(system(), device_, port());
      serving_ = process_->serving();
    }
    exit_ = exit_of(serving_);
  }
  void TearDown() override {
    if (process_.has_value()) {
      process_->stop();
    }
    ActorTest::TearDown();
  }
  static engines::RolloutRequest request(std::uint64_t id, std::uint64_t min_step = 0) {
    engines::RolloutRequest request;
    request.id = {id};
    request.prompt_ids = {1, 2};
    request.max_new_tokens = 8;
    request.min_step = min_step;
    return request;
  }
  Reply<engines::RolloutResult> generate(const engines::RolloutRequest& request) {
    auto reply = ask<engines::RolloutResult>(serving_, atom::generate_v, request);
    drain();
    return reply;
  }
  static engines::TrainSequence sequence(std::uint64_t id) {
    engines::TrainSequence sequence;
    sequence.id = {id};
    sequence.ids = {1, 2, 3, 4};
    sequence.response_mask = {0, 0, 1, 1};
    sequence.advantages = {0, 0, 1, 1};
    sequence.behavior_logprobs = {0, 0, -1, -1};
    return sequence;
  }
  static actors::TrainRequest job(std::vector<std::vector<std::uint64_t>> minibatches,
                                  std::uint64_t step = 1) {
    actors::TrainRequest job;
    job.publish_as = {0, 0, step};
    for (const auto& ids : minibatches) {
      job.minibatches.emplace_back();
      for (const std::uint64_t id : ids) {
        job.minibatches.back().sequences.push_back(sequence(id));
      }
    }
    return job;
  }
  Reply<actors::TrainOutcome> train(const actors::TrainRequest& job) {
    auto reply = ask<actors::TrainOutcome>(device_, atom::train_v, job);
    drain();
    return reply;
  }
  Reply<PolicyVersion> load(engines::Snapshot snapshot) {
    auto reply = ask<PolicyVersion>(serving_, atom::load_v, std::move(snapshot));
    drain();
    return reply;
  }
  Reply<PolicyVersion> restore(const engines::Snapshot& weights,
                               const actors::OptimizerState& optimizer) {
    auto reply =
        ask<PolicyVersion>(device_, atom::restore_v, actors::TrainingState{weights, optimizer});
    drain();
    return reply;
  }
  // Returns the reply once it has arrived.
  Reply<actors::AdapterList> adapters(actors::AdapterAction action, const std::string& name = "",
                                      const std::string& path = "") {
    auto reply = ask<actors::AdapterList>(serving_, atom::adapters_v,
                                          actors::AdapterRequest{action, name, path, {}});
    EXPECT_TRUE(until(reply));
    return reply;
  }
  template <class Value>
  bool until(const Reply<Value>& reply) {
    return run_until([&] { return reply.arrived(); });
  }

  EngineCalls calls_;
  NamesOnly adapters_{calls_};
  WatchedPort watched_port_{port(), calls_};
  engines::ReplayOptions replay_;
  engines::Snapshot initial_;
  std::unique_ptr<FailingRollout> rollout_;
  std::unique_ptr<CountingTrain> train_;
  std::unique_ptr<WatchedRollout> watched_rollout_;
  std::unique_ptr<WatchedTrain> watched_train_;
  std::vector<std::size_t> minibatches_;  // sizes, in the order in which the losses were made
  std::size_t failing_loss_ = 0;          // counts from 1
  actors::DeviceActor device_;
  bool remote_ = false;                   // set before `start`
  std::optional<RemoteServing> process_;  // of the device, if it is remote
  actors::ServingActor serving_;          // the device, as requesters see it
  std::shared_ptr<std::optional<Status>> exit_;
};

}  // namespace tidemill::test
