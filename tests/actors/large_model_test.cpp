// SPDX-License-Identifier: Apache-2.0
// Tests that a device with a large model computes on the thread of its port alone. Digests, layouts
// and copies of such weights take long. While a message handler took as long, no other actor would
// run, and leases would expire.
#include <chrono>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <thread>

#include <caf/all.hpp>
#include <gtest/gtest.h>

#include "actors/device/spawn.hpp"
#include "actors/errors.hpp"
#include "actors/type_ids.hpp"
#include "engines/runtime/model_runtime.hpp"
#include "tests/support/watched_engines.hpp"

namespace tidemill::test {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kWeightBytes = 200'000'000;  // at least

engines::ModelFiles large_model() {
  engines::ModelFiles model;
  model.config.vocab_size = 16'384;
  model.config.hidden_size = 768;
  model.config.intermediate_size = 2048;
  model.config.num_layers = 5;
  model.config.num_heads = 12;
  model.config.num_kv_heads = 12;
  model.config.head_dim = 64;
  model.config.max_positions = 256;
  model.config.sliding_windows.assign(5, 0);
  model.tensors = engines::random_model_tensors(model.config, 1);
  return model;
}

// A loss whose gradients are all 1.
class SumLoss final : public engines::TokenLoss {
public:
  Status evaluate(std::span<const engines::LossSequence> rows, engines::LossSums& sums) override {
    for (const engines::LossSequence& row : rows) {
      std::ranges::fill(row.dlogprobs, 1.0F);
      sums["loss"] += row.logprobs.back();
    }
    return {};
  }
};

caf::actor_system_config& configure(caf::actor_system_config& config) {
  actors::add_message_types(config);
  config.set("scheduler.max-threads", 1);  // as in a run
  config.set("scheduler.policy", caf::atom("sharing"));
  return config;
}

// What an actor that sends itself one message after another observes of the thread of all actors.
struct Heartbeat {
  std::thread::id thread;
  std::chrono::steady_clock::duration longest_wait{0};
  std::chrono::steady_clock::time_point last = std::chrono::steady_clock::now();
};

caf::actor spawn_heartbeat(caf::actor_system& system, const std::shared_ptr<Heartbeat>& beats) {
  return system.spawn([beats](caf::event_based_actor* self) {
    self->send(self, atom::wake_v);
    return caf::behavior{[self, beats](atom::wake) {
      const auto now = std::chrono::steady_clock::now();
      beats->thread = std::this_thread::get_id();
      beats->longest_wait = std::max(beats->longest_wait, now - beats->last);
      beats->last = now;
      self->delayed_send(self, 1ms, atom::wake_v);
    }};
  });
}

class LargeModelTest : public ::testing::Test {
protected:
  LargeModelTest() {
    engines::RuntimeOptions options;
    options.threads = 2;
    options.optimizer.emplace();
    runtime_ = engines::open_runtime(large_model(), options).value();
    const OnEngineCall on_call = [this](const std::string& call) {
      ++calls_[call];
      threads_.insert(std::this_thread::get_id());
    };
    rollout_ = std::make_unique<WatchedRollout>(runtime_->rollout(), on_call);
    train_ = std::make_unique<WatchedTrain>(*runtime_->policy_job(), on_call);
    actors::DeviceDeps deps;
    deps.rollout = rollout_.get();
    deps.train = train_.get();
    deps.make_loss = [](auto) -> Result<std::unique_ptr<engines::TokenLoss>> {
      return std::unique_ptr<engines::TokenLoss>(std::make_unique<SumLoss>());
    };
    deps.port = port_.get();
    device_ = actors::spawn_device(system_, std::move(deps));
    heartbeat_ = spawn_heartbeat(system_, beats_);
  }
  ~LargeModelTest() override {
    end(device_);
    end(heartbeat_);
  }

  // Ends an actor and waits until it has ended.
  template <class Handle>
  void end(const Handle& actor) {
    caf::anon_send_exit(actor, caf::exit_reason::kill);
    caf::scoped_actor self{system_};
    self->wait_for(actor);
  }

  // Sends a request to the device and waits for the reply.
  template <class Reply, class... Ts>
  Reply ask(const Ts&... message) {
    Reply reply;
    caf::scoped_actor self{system_};
    self->request(device_, 5min, message...)
        .receive([&](Reply& value) { reply = std::move(value); },
                 [&](const caf::error& error) {
                   ADD_FAILURE() << actors::from_caf_error(error).to_string();
                 });
    return reply;
  }

  caf::actor_system_config config_;
  caf::actor_system system_{configure(config_)};
  std::unique_ptr<engines::ModelRuntime> runtime_;
  std::unique_ptr<WatchedRollout> rollout_;
  std::unique_ptr<WatchedTrain> train_;
  // Written by work at the port, and read when the device has no work.
  std::map<std::string, int> calls_;
  std::set<std::thread::id> threads_;
  std::unique_ptr<actors::WorkPort> port_ = actors::make_thread_work_port("device").value();
  std::shared_ptr<Heartbeat> beats_ = std::make_shared<Heartbeat>();
  actors::DeviceActor device_;
  caf::actor heartbeat_;
};

TEST_F(LargeModelTest, NoMessageHandlerComputes) {
  engines::TrainSequence sequence;
  sequence.id = {1};
  sequence.ids = {1, 2, 3, 4};
  sequence.response_mask = {0, 0, 1, 1};
  sequence.behavior_logprobs = {0, 0, -9, -9};
  actors::TrainRequest job;
  job.publish_as = {0, 0, 1};
  job.minibatches = {{{sequence}, {}}};
  job.probe = {sequence};
  job.probe_weights = runtime_->initial();
  engines::RolloutRequest request;
  request.id = {2};
  request.prompt_ids = {1, 2};
  request.max_new_tokens = 2;
  request.min_step = 1;

  const auto trained = ask<actors::TrainOutcome>(atom::train_v, job);
  std::size_t bytes = 0;
  for (const auto& [name, tensor] : trained.snapshot.base) {
    bytes += tensor.data.size_bytes();
  }
  ASSERT_GT(bytes, kWeightBytes);
  EXPECT_EQ(ask<PolicyVersion>(atom::load_v, trained.snapshot).step, 1U);
  EXPECT_FALSE(ask<actors::OptimizerState>(atom::capture_v).tensors.empty());
  EXPECT_EQ(ask<engines::RolloutResult>(atom::generate_v, request).response_ids.size(), 2U);

  end(heartbeat_);
  for (const char* call : {"score", "optim_step", "save", "load", "capture", "submit"}) {
    EXPECT_EQ(calls_[call], 1) << call;
  }
  EXPECT_GE(calls_["advance"], 3) << "of the batch, the optimizer step and the snapshot";
  EXPECT_EQ(threads_.size(), 1U);
  EXPECT_NE(beats_->thread, std::thread::id());
  EXPECT_FALSE(threads_.contains(beats_->thread)) << "the thread of all actors";
  std::cout << "for information: with weights of " << bytes / 1'000'000
            << " MB, the thread of all actors was busy for at most "
            << std::chrono::duration_cast<std::chrono::microseconds>(beats_->longest_wait).count()
            << " us, including the millisecond between two beats\n";
}

}  // namespace
}  // namespace tidemill::test
