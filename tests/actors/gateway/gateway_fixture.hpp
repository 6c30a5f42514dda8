// SPDX-License-Identifier: Apache-2.0
// A gateway on a fake HTTP server and a fake device.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "actors/gateway/spawn.hpp"
#include "engines/executor/executor_options.hpp"
#include "tests/actors/gateway/served_model.hpp"
#include "tests/support/actor_test.hpp"
#include "tests/support/fake_actors.hpp"

namespace tidemill::test {

// Records what a gateway sends.
class FakeHttp final : public actors::HttpServer {
public:
  struct Sent {
    actors::HttpResponse response;
    bool streamed = false;
    bool ended = false;
    int responses = 0;
    std::uint64_t length = 0;  // of a body of known length
  };
  Status start(actors::HttpCallbacks /*callbacks*/) override { return {}; }
  void respond(actors::ExchangeId exchange, actors::HttpResponse response) override {
    sent[exchange].response = std::move(response);
    sent[exchange].ended = true;
    ++sent[exchange].responses;
  }
  void start_stream(actors::ExchangeId exchange, actors::HttpResponse head) override {
    sent[exchange].response = std::move(head);
    sent[exchange].streamed = true;
    ++sent[exchange].responses;
  }
  void start_body(actors::ExchangeId exchange, actors::HttpResponse head,
                  std::uint64_t length) override {
    start_stream(exchange, std::move(head));
    sent[exchange].length = length;
  }
  void write(actors::ExchangeId exchange, std::string part) override {
    sent[exchange].response.body += part;
  }
  void end(actors::ExchangeId exchange) override { sent[exchange].ended = true; }
  bool flush(Duration /*limit*/) override { return true; }
  [[nodiscard]] std::uint16_t port() const override { return 1; }
  void stop_accepting() override { accepting = false; }

  std::map<actors::ExchangeId, Sent> sent;
  bool accepting = true;
};

class GatewayTest : public ActorTest {
protected:
  void SetUp() override { start(nullptr); }
  // Changes the dependencies of a gateway before it is spawned.
  virtual void complete_deps(actors::GatewayDeps& /*deps*/) {}
  void start(std::shared_ptr<const actors::ApiKeys> keys) {
    fake_->load = {3, 1, 0.25, 2, 0, 0, 0, 0};
    device_ = keep(spawn_fake_device(system(), fake_));
    actors::GatewayDeps deps;
    deps.http = &http_;
    deps.device = caf::actor_cast<actors::StreamingActor>(device_);
    deps.model = model_;
    deps.parse_ports = {&port(), &port(), &port()};
    deps.clock = &clock_;
    deps.access.host_names = {"localhost"};
    deps.access.keys = std::move(keys);
    deps.limits.max_choices = 8;
    deps.limits.max_pending_body_bytes = 1500;
    deps.metrics = std::make_shared<actors::GatewayMetrics>(
        deps.model->id,
        engines::LatencyGoal{std::chrono::milliseconds(30), std::chrono::milliseconds(50), 0.75});
    deps.unix_time = [] { return 17; };
    deps.local_time = [] { return std::string("2026-01-02T03:04:05"); };
    deps.seed = 5;
    complete_deps(deps);
    gateway_ = actors::spawn_gateway(system(), std::move(deps));
    keep(gateway_);
  }
  void TearDown() override {
    fake_->generations.clear();
    fake_->listener = nullptr;
    gateway_ = nullptr;
    device_ = nullptr;
    ActorTest::TearDown();
  }

  static actors::HttpRequest request(std::string method, std::string target,
                                     std::string body = {}) {
    actors::HttpRequest made;
    made.method = std::move(method);
    made.target = std::move(target);
    made.headers = {{"host", "localhost:8000"}};
    if (!body.empty()) {
      made.headers.push_back({"content-type", "application/json"});
    }
    made.body = std::move(body);
    return made;
  }
  actors::ExchangeId send(actors::HttpRequest made) {
    made.exchange = ++last_exchange_;
    caf::anon_send(gateway_, atom::request_v, std::move(made));
    advance(Duration{0});
    return last_exchange_;
  }
  actors::ExchangeId post(const std::string& target, const std::string& body) {
    return send(request("POST", target, body));
  }
  actors::ExchangeId complete(const std::string& members) {
    return post("/v1/completions", R"({"model": "base", "prompt": "hi")" + members + "}");
  }
  // Sends a GET request while one adapter is loaded.
  actors::ExchangeId get_with_adapters(const std::string& target) {
    const actors::ExchangeId id = send(request("GET", target));
    reply_adapters();
    return id;
  }
  void reply_adapters(actors::AdapterList list = {{{"tuned", PolicyVersion{}, 10, 0, 12}}}) {
    take(fake_->adapter_requests).reply(std::move(list));
    drain();
  }
  const FakeHttp::Sent& sent(actors::ExchangeId id) { return http_.sent[id]; }
  nlohmann::json body(actors::ExchangeId id) {
    return nlohmann::json::parse(sent(id).response.body);
  }

  // Returns the request for the response `index`, counted over the test.
  const engines::RolloutRequest& asked(std::size_t index) {
    return fake_->generations.at(index).request;
  }

  void finish(std::size_t index, std::string_view text,
              engines::FinishReason reason = engines::FinishReason::kLength) {
    engines::RolloutResult result;
    result.id = asked(index).id;
    result.response_ids = byte_ids(text);
    result.behavior_logprobs.assign(text.size(), -1.0F);
    result.versions = {{PolicyVersion{}, static_cast<std::uint32_t>(text.size())}};
    result.finish_reason = reason;
    result.error = reason == engines::FinishReason::kFailed ? "it broke" : "";
    fake_->generations[index].reply(std::move(result));
    drain();
  }
  void send_tokens(std::size_t index, std::size_t first, std::string_view text) {
    actors::TokenEvent event;
    event.id = asked(index).id;
    event.first = first;
    event.ids = byte_ids(text);
    event.behavior_logprobs.assign(text.size(), -1.0F);
    caf::anon_send(caf::actor_cast<actors::TokenListenerActor>(fake_->listener), atom::tokens_v,
                   actors::TokenBatch{{event}});
    drain();
  }

  std::shared_ptr<actors::ServedModel> model_ = make_served_model();
  ManualClock clock_;
  FakeHttp http_;
  std::shared_ptr<FakeDevice> fake_ = std::make_shared<FakeDevice>();
  actors::DeviceActor device_;
  actors::GatewayActor gateway_;
  actors::ExchangeId last_exchange_ = 0;
};

}  // namespace tidemill::test
