// SPDX-License-Identifier: Apache-2.0
// A service of Tinker's API on a fake device, a store in memory and a clock, for its tests.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include <gtest/gtest.h>

#include "tests/actors/tinker/fake_tuning.hpp"

namespace tidemill::test {

using actors::Caller;
using actors::ExchangeId;
using actors::HttpResponse;
using actors::Tenancy;
using json = nlohmann::json;
using tinker::CheckpointKind;

constexpr auto kSecond = std::chrono::seconds(1);

/// Asks the service as clients do.
class TinkerServiceTest : public ::testing::Test {
protected:
  void SetUp() override { start(); }

  void start() {
    tinker::ServiceDeps deps;
    deps.backend = &backend_;
    deps.store = {&store_, [](tinker::CheckpointStore* /*store*/) {}};
    deps.run_work = [this](const std::string& /*tenant*/, const std::function<void()>& work,
                           std::function<void()> done) {
      work();
      backend_.later(std::move(done));
    };
    deps.run_encoding = [this](const std::function<void()>& work, std::function<void()> done) {
      work();
      backend_.later(std::move(done));
    };
    deps.send_file = [this](
                         ExchangeId exchange, const std::string& /*tenant*/,
                         const std::function<Result<std::shared_ptr<const ReadableFile>>()>& open,
                         const std::function<void(const Status&)>& failed) {
      if (max_downloads_ == 0) {
        return false;
      }
      --max_downloads_;
      if (const auto file = open(); !file.ok()) {
        backend_.later([failed, status = file.status()] { failed(status); });
      } else {
        sent_[exchange] = {200, {}, std::string(file.value()->path().filename())};
      }
      return true;
    };
    deps.respond = [this](ExchangeId exchange, HttpResponse response) {
      EXPECT_FALSE(sent_.contains(exchange)) << "two responses to one exchange";
      sent_[exchange] = std::move(response);
    };
    deps.warn = [this](const std::string& line) { warnings_.push_back(line); };
    deps.now = [this] { return now_; };
    deps.unix_time = [this] {
      return 1'000'000 +
             std::chrono::duration_cast<std::chrono::seconds>(now_ - TimePoint()).count();
    };
    deps.random = [this] { return ++random_; };
    deps.base = {"base", "/models/base", 64};
    deps.limits = limits_;
    deps.model_bytes = [](const tinker::LoraSettings& lora) {
      return static_cast<std::size_t>(lora.rank) * 100;
    };
    deps.snapshot_bytes = [](const tinker::LoraSettings& lora) {
      return static_cast<std::size_t>(lora.rank) * 10;
    };
    deps.tenancy = tenancy_;
    service_ = std::make_unique<tinker::Service>(std::move(deps));
    service_->start();
    backend_.run();
  }

  // Lets `duration` pass, second by second.
  void pass(std::chrono::seconds duration) {
    for (auto left = duration; left > std::chrono::seconds(0); left -= kSecond) {
      now_ += kSecond;
      service_->tick();
    }
  }

  ExchangeId send(tinker::Call call) {
    service_->handle(++exchange_, std::move(call), caller_);
    return exchange_;
  }
  // Sends a request whose response comes at once, or after what runs at ports.
  json ask(tinker::Call call, std::uint32_t status = 200) {
    const ExchangeId exchange = send(std::move(call));
    if (!sent_.contains(exchange)) {
      backend_.run();
    }
    EXPECT_TRUE(sent_.contains(exchange));
    EXPECT_EQ(sent_[exchange].status, status) << sent_[exchange].body;
    return json::parse(sent_[exchange].body);
  }
  // Returns the header of a response, or "" without one.
  std::string retry_after(ExchangeId exchange) {
    for (const actors::HttpHeader& header : sent_.at(exchange).headers) {
      if (header.name == "retry-after") {
        return header.value;
      }
    }
    return "";
  }
  // Returns the JSON that a future is ready with.
  json result(const std::string& request_id) { return ask(tinker::RetrieveFuture{request_id}); }

  std::string new_session() { return ask(tinker::CreateSession{})["session_id"]; }
  std::string new_model(const std::string& session, std::int64_t seq_id = 0, int rank = 4) {
    tinker::CreateModel call;
    call.session_id = session;
    call.model_seq_id = seq_id;
    call.base_model = "base";
    call.lora.rank = rank;
    const std::string request = ask(call)["request_id"];
    backend_.run();
    return result(request)["model_id"];
  }

  static tinker::CreateModel creation(const std::string& session, std::int64_t seq_id, int rank) {
    tinker::CreateModel call;
    call.session_id = session;
    call.model_seq_id = seq_id;
    call.base_model = "base";
    call.lora.rank = rank;
    return call;
  }

  // Returns a sampler of the base.
  std::string new_sampler(const std::string& session) {
    tinker::CreateSamplingSession call;
    call.session_id = session;
    call.base_model = "base";
    return ask(call)["sampling_session_id"];
  }

  static tinker::ForwardCall forward(const std::string& model, std::int64_t seq_id,
                                     bool forward_only = false) {
    tinker::ForwardCall call;
    call.turn = {model, seq_id};
    call.forward_only = forward_only;
    engines::TrainSequence sequence;
    sequence.ids = {static_cast<std::int32_t>(seq_id), 2, 3};
    call.sequences.push_back(sequence);
    return call;
  }
  static tinker::OptimStepCall step(const std::string& model, std::int64_t seq_id) {
    tinker::OptimStepCall call;
    call.turn = {model, seq_id};
    call.step.learning_rate = 0.5;
    return call;
  }
  static tinker::SaveWeights save(const std::string& model, std::int64_t seq_id,
                                  CheckpointKind kind, const std::string& name) {
    tinker::SaveWeights call;
    call.turn = {model, seq_id};
    call.kind = kind;
    call.name = name;
    return call;
  }
  // A request for a sampler without a checkpoint.
  static tinker::SaveWeights snapshot(const std::string& model, std::int64_t seq_id) {
    tinker::SaveWeights call = save(model, seq_id, CheckpointKind::kSampler, "");
    call.name = std::nullopt;
    call.sampling_seq_id = seq_id;
    return call;
  }
  std::string new_snapshot_sampler(const std::string& model, std::int64_t seq_id) {
    const std::string request = ask(snapshot(model, seq_id))["request_id"];
    backend_.run();
    return result(request)["sampling_session_id"];
  }
  static tinker::SampleCall sample(const std::string& sampler, std::int64_t seq_id,
                                   int num_samples = 1) {
    tinker::SampleCall call;
    call.sampling_session_id = sampler;
    call.seq_id = seq_id;
    call.num_samples = num_samples;
    call.settings.prompt_ids = {1, 2};
    call.settings.max_new_tokens = 4;
    return call;
  }

  FakeTuning backend_;
  MemoryStore store_;
  tinker::ServiceLimits limits_;
  Tenancy tenancy_ = Tenancy::kOne;
  Caller caller_;  // of all requests that follow
  std::map<ExchangeId, HttpResponse> sent_;
  std::unique_ptr<tinker::Service> service_;
  std::vector<std::string> warnings_;
  TimePoint now_{};
  ExchangeId exchange_ = 0;
  int max_downloads_ = 10;
  std::uint64_t random_ = 0;
};

}  // namespace tidemill::test
