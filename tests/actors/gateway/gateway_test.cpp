// SPDX-License-Identifier: Apache-2.0
// Tests the gateway on a fake HTTP server and a fake device.
#include <gmock/gmock.h>

#include "tests/actors/gateway/gateway_fixture.hpp"

namespace tidemill::test {
namespace {

using actors::AdapterList;
using actors::AdapterRequest;
using actors::ExchangeId;
using actors::HttpRequest;
using actors::HttpResponse;
using actors::TokenBatch;
using actors::TokenEvent;
using engines::FinishReason;
using engines::RolloutRequest;
using engines::RolloutResult;
using json = nlohmann::json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(GatewayTest, RespondsWithACompletion) {
  const ExchangeId id = complete(R"(, "max_tokens": 2, "seed": 9)");
  ASSERT_EQ(fake_->generations.size(), 1U);
  EXPECT_EQ(asked(0).prompt_ids, byte_ids("hi"));
  EXPECT_EQ(asked(0).seed, 9U);
  EXPECT_EQ(asked(0).max_new_tokens, 2);
  EXPECT_EQ(asked(0).adapter, "");
  EXPECT_FALSE(sent(id).ended);
  finish(0, "yo");
  EXPECT_EQ(sent(id).response.status, 200U);
  EXPECT_EQ(body(id)["choices"][0]["text"], "yo");
  EXPECT_EQ(body(id)["created"], 17);
  EXPECT_EQ(sent(id).responses, 1);
}

TEST_F(GatewayTest, GivesChoicesTheirOwnRandomNumbers) {
  complete(R"(, "n": 2, "seed": 9)");
  complete(R"(, "n": 2, "seed": 9)");
  complete("");
  complete("");
  ASSERT_EQ(fake_->generations.size(), 6U);
  // The same request draws the same numbers, whatever its ids are.
  EXPECT_NE(asked(0).id, asked(2).id);
  EXPECT_EQ(asked(0).key(), asked(2).key());
  EXPECT_EQ(asked(1).key(), asked(3).key());
  EXPECT_NE(asked(0).key(), asked(1).key());
  EXPECT_NE(asked(4).seed, asked(5).seed);
}

TEST_F(GatewayTest, StreamsTokens) {
  const ExchangeId id = complete(R"(, "stream": true)");
  ASSERT_EQ(fake_->generations.size(), 1U);
  EXPECT_EQ(sent(id).responses, 0);
  send_tokens(0, 0, "a");
  EXPECT_TRUE(sent(id).streamed);
  EXPECT_THAT(sent(id).response.body, HasSubstr(R"("text":"a")"));
  finish(0, "ab");
  EXPECT_THAT(sent(id).response.body, HasSubstr(R"("text":"b")"));
  EXPECT_TRUE(sent(id).response.body.ends_with("data: [DONE]\n\n"));
  EXPECT_TRUE(sent(id).ended);
  EXPECT_THAT(fake_->cancelled, IsEmpty());
}

TEST_F(GatewayTest, CancelsWhatAClientNoLongerWaitsFor) {
  const ExchangeId id = complete(R"(, "n": 3)");
  finish(1, "x");
  caf::anon_send(gateway_, atom::closed_v, id);
  drain();
  EXPECT_THAT(fake_->cancelled, ::testing::UnorderedElementsAre(asked(0).id, asked(2).id));
  finish(0, "late", FinishReason::kCancelled);
  send_tokens(2, 0, "late");
  EXPECT_EQ(sent(id).responses, 0);
}

TEST_F(GatewayTest, ForgetsRequestsThatAreClosedWhileTheyAreParsed) {
  HttpRequest made = request("POST", "/v1/completions", R"({"model": "base", "prompt": "x"})");
  made.exchange = 7;
  caf::anon_send(gateway_, atom::request_v, std::move(made));
  caf::anon_send(gateway_, atom::closed_v, ExchangeId{7});
  advance(Duration{0});
  EXPECT_TRUE(fake_->generations.empty());
}

TEST_F(GatewayTest, FailsTheWholeRequestWithAChoice) {
  const ExchangeId id = complete(R"(, "n": 2)");
  finish(0, "", FinishReason::kFailed);
  EXPECT_EQ(sent(id).response.status, 500U);
  EXPECT_EQ(body(id)["error"]["message"], "it broke");
  EXPECT_EQ(body(id)["error"]["type"], "server_error");
  EXPECT_EQ(fake_->cancelled, std::vector<SampleId>{asked(1).id});
}

TEST_F(GatewayTest, EndsAStreamThatFailsWithAnError) {
  const ExchangeId id = complete(R"(, "stream": true)");
  send_tokens(0, 0, "a");
  finish(0, "a", FinishReason::kFailed);
  EXPECT_THAT(sent(id).response.body, HasSubstr(R"("error":{"message":"it broke")"));
  EXPECT_TRUE(sent(id).response.body.ends_with("data: [DONE]\n\n"));
  EXPECT_TRUE(sent(id).ended);
}

TEST_F(GatewayTest, ReportsUnknownModels) {
  const ExchangeId id = post("/v1/completions", R"({"model": "other", "prompt": "x"})");
  ASSERT_EQ(fake_->generations.size(), 1U);
  EXPECT_EQ(asked(0).adapter, "other");
  fake_->generations[0].fail({Errc::kNotFound, "no adapter"});
  drain();
  EXPECT_EQ(sent(id).response.status, 404U);
  EXPECT_EQ(body(id)["error"]["code"], "model_not_found");
  EXPECT_EQ(body(id)["error"]["param"], "model");
  EXPECT_EQ(body(id)["error"]["message"],
            "the model \"other\" does not exist; the server serves \"base\"");
}

TEST_F(GatewayTest, RefusesRequestsBeyondItsLimit) {
  complete(R"(, "n": 6)");
  const ExchangeId refused = complete(R"(, "n": 3)");
  EXPECT_EQ(sent(refused).response.status, 429U);
  EXPECT_EQ(sent(refused).response.headers.back().name, "retry-after");
  EXPECT_FALSE(sent(complete(R"(, "n": 2)")).ended);
  for (std::size_t i = 0; i < 6; ++i) {
    finish(i, "x");
  }
  EXPECT_FALSE(sent(complete(R"(, "n": 6)")).ended);
}

TEST_F(GatewayTest, ListsModelsAndAdapters) {
  const ExchangeId list = get_with_adapters("/v1/models");
  ASSERT_EQ(body(list)["data"].size(), 2U);
  EXPECT_EQ(body(list)["data"][0]["id"], "base");
  EXPECT_EQ(body(list)["data"][0]["parent"], json());
  EXPECT_EQ(body(list)["data"][1]["id"], "tuned");
  EXPECT_EQ(body(list)["data"][1]["parent"], "base");
  EXPECT_EQ(body(list)["data"][1]["created"], 12);
  EXPECT_EQ(body(get_with_adapters("/v1/models/tuned"))["root"], "base");
  EXPECT_EQ(sent(get_with_adapters("/v1/models/none")).response.status, 404U);
  EXPECT_EQ(body(get_with_adapters("/v1/models/t%75ned"))["id"], "tuned");
}

TEST_F(GatewayTest, ChangesAdapters) {
  const ExchangeId id = post("/v1/load_lora_adapter", R"({"lora_name": "a", "lora_path": "/d"})");
  ASSERT_EQ(fake_->adapter_requests.size(), 1U);
  EXPECT_EQ(fake_->adapter_requests[0].request.action, actors::AdapterAction::kLoad);
  EXPECT_EQ(fake_->adapter_requests[0].request.path, "/d");
  EXPECT_EQ(fake_->adapter_requests[0].request.created, 17);
  reply_adapters();
  EXPECT_EQ(sent(id).response.status, 200U);
  const ExchangeId unload = post("/v1/unload_lora_adapter", R"({"lora_name": "b"})");
  take(fake_->adapter_requests).fail({Errc::kNotFound, "no adapter \"b\""});
  drain();
  EXPECT_EQ(sent(unload).response.status, 404U);
  EXPECT_EQ(sent(post("/v1/unload_lora_adapter", R"({"lora_name": "base"})")).response.status,
            400U);
  EXPECT_EQ(body(post("/v1/load_lora_adapter", R"({"lora_name": "a"})"))["error"]["param"],
            "lora_path");
}

// The adapters of the rollouts of jobs have names that clients can neither see nor use.
TEST_F(GatewayTest, HidesTheAdaptersOfJobs) {
  const ExchangeId list = send(request("GET", "/v1/models"));
  reply_adapters({{{"\x01job-1", {}, 1, 0}, {"tuned", {}, 1, 0}}});
  ASSERT_EQ(body(list)["data"].size(), 2U);
  EXPECT_EQ(body(list)["data"][1]["id"], "tuned");
  const ExchangeId one = send(request("GET", "/v1/models/%01job-1"));
  reply_adapters({{{"\x01job-1", {}, 1, 0}}});
  EXPECT_EQ(sent(one).response.status, 404U);
  const ExchangeId used = post("/v1/completions", R"({"model": "\u0001job-1", "prompt": "x"})");
  EXPECT_TRUE(fake_->generations.empty());
  EXPECT_EQ(sent(used).response.status, 404U);
  EXPECT_EQ(body(used)["error"]["code"], "model_not_found");
  for (const char* path : {"/v1/load_lora_adapter", "/v1/unload_lora_adapter"}) {
    const bool loads = std::string_view(path).find("unload") == std::string_view::npos;
    const ExchangeId change = post(path, std::string(R"({"lora_name": "\u0001job-1")") +
                                             (loads ? R"(, "lora_path": "/d"})" : "}"));
    EXPECT_EQ(sent(change).response.status, 400U) << path;
    EXPECT_EQ(body(change)["error"]["param"], "lora_name");
  }
  for (const char* name : {"tinker://a/b/c", "line\\nbreak"}) {
    const ExchangeId change =
        post("/v1/unload_lora_adapter", std::string(R"({"lora_name": ")") + name + "\"}");
    EXPECT_EQ(body(change)["error"]["param"], "lora_name") << name;
  }
  EXPECT_TRUE(fake_->adapter_requests.empty());
}

TEST_F(GatewayTest, ConvertsTextToTokensAndBack) {
  EXPECT_EQ(body(post("/tokenize", R"({"prompt": "ab"})")),
            json::parse(R"({"count": 2, "max_model_len": 64, "tokens": [97, 98]})"));
  EXPECT_EQ(body(post("/tokenize", R"({"messages": [{"role": "user", "content": "a"}]})"))["count"],
            18);
  EXPECT_EQ(body(post("/detokenize", R"({"tokens": [97, 98]})"))["prompt"], "ab");
  EXPECT_EQ(body(post("/detokenize", R"({"tokens": [999]})"))["error"]["param"], "tokens");
}

TEST_F(GatewayTest, RefusesForeignHostsAndPages) {
  HttpRequest rebound = request("GET", "/v1/models");
  rebound.headers[0].value = "attacker.example:8000";
  EXPECT_EQ(sent(send(rebound)).response.status, 421U);
  HttpRequest foreign = request("GET", "/v1/models");
  foreign.headers.push_back({"origin", "http://attacker.example"});
  EXPECT_EQ(sent(send(foreign)).response.status, 403U);
  HttpRequest own = request("GET", "/v1/models");
  own.target = "/health";
  own.headers.push_back({"origin", "http://localhost:8000"});
  EXPECT_EQ(sent(send(own)).response.status, 200U);
  HttpRequest capitals = request("POST", "/v1/completions");
  capitals.headers.push_back({"content-type", "Application/JSON; charset=utf-8"});
  EXPECT_EQ(sent(send(capitals)).response.status, 400U);  // the body
  HttpRequest text = request("POST", "/v1/completions");
  text.headers.push_back({"content-type", "text/plain"});
  text.body = R"({"model": "base", "prompt": "x"})";
  EXPECT_EQ(sent(send(text)).response.status, 415U);
}

TEST_F(GatewayTest, RequiresKeysThatPermitTheRequest) {
  auto keys = std::make_shared<actors::ApiKeys>();
  ASSERT_TRUE(
      keys->add({"user", {actors::KeyScope::kInfer}, actors::hash_api_key("tm-user")}).ok());
  ASSERT_TRUE(
      keys->add({"boss", {actors::KeyScope::kAdmin}, actors::hash_api_key("tm-boss")}).ok());
  start(keys);
  const auto status = [&](const std::string& path, const std::string& name,
                          const std::string& value) {
    const bool is_get = path == "/health" || path == "/nothing";
    HttpRequest made = request(is_get ? "GET" : "POST", path, is_get ? "" : "{}");
    if (!name.empty()) {
      made.headers.push_back({name, value});
    }
    return sent(send(made)).response.status;
  };
  EXPECT_EQ(status("/health", "", ""), 200U);
  EXPECT_EQ(status("/nothing", "", ""), 401U);  // does not tell what there is
  EXPECT_EQ(status("/v1/completions", "", ""), 401U);
  EXPECT_EQ(status("/v1/completions", "authorization", "Bearer tm-other"), 401U);
  EXPECT_EQ(status("/v1/completions", "authorization", "Bearer "), 401U);
  EXPECT_EQ(status("/v1/completions", "authorization", "Basic tm-user"), 401U);
  EXPECT_EQ(status("/v1/completions", "authorization", "Bearer tm-boss"), 403U);
  EXPECT_EQ(status("/v1/completions", "authorization", "Bearer tm-user"), 400U);  // the body
  EXPECT_EQ(status("/v1/completions", "authorization", "bearer tm-user"), 400U);
  EXPECT_EQ(status("/v1/completions", "x-api-key", "tm-user"), 400U);
  EXPECT_EQ(status("/v1/load_lora_adapter", "authorization", "Bearer tm-user"), 403U);
  EXPECT_EQ(status("/v1/load_lora_adapter", "authorization", "Bearer tm-boss"), 400U);
}

TEST_F(GatewayTest, NamesUnknownPathsAndMethods) {
  EXPECT_EQ(sent(send(request("GET", "/nothing"))).response.status, 404U);
  for (const auto& [path, key] : {std::pair("/v1/files", "serve.jobs_path"),
                                  std::pair("/v1/fine_tuning/jobs/x", "serve.jobs_path"),
                                  std::pair("/api/v1/healthz", "serve.checkpoints_path")}) {
    const ExchangeId missing = send(request("GET", path));
    EXPECT_EQ(sent(missing).response.status, 404U) << path;
    EXPECT_EQ(body(missing)["error"]["message"], "there is nothing at \"" + std::string(path) +
                                                     "\": the server was started without " + key);
  }
  const ExchangeId wrong = send(request("GET", "/v1/completions"));
  EXPECT_EQ(sent(wrong).response.status, 405U);
  EXPECT_EQ(sent(wrong).response.headers.back().value, "POST");
  EXPECT_EQ(sent(send(request("DELETE", "/health"))).response.status, 405U);
  EXPECT_EQ(body(send(request("GET", "/health")))["status"], "ok");
}

TEST_F(GatewayTest, CountsWhatItServes) {
  complete("");
  complete("");
  post("/v1/completions", "{}");
  clock_.advance(std::chrono::milliseconds(30));
  send_tokens(0, 0, "a");
  clock_.advance(std::chrono::milliseconds(60));
  send_tokens(0, 1, "b");
  finish(0, "ab", FinishReason::kStop);
  finish(1, "x");
  const ExchangeId id = send(request("GET", "/metrics"));
  const std::string& text = sent(id).response.body;
  const std::string labels = R"({engine="0",model_name="base"})";
  for (const std::string& line : {
           "vllm:num_requests_running" + labels + " 3",
           "vllm:num_requests_waiting" + labels + " 1",
           "vllm:kv_cache_usage_perc" + labels + " 0.25",
           "vllm:num_preemptions_total" + labels + " 2",
           "vllm:prompt_tokens_total" + labels + " 4",
           "vllm:generation_tokens_total" + labels + " 3",
           "vllm:time_to_first_token_seconds_count" + labels + " 1",
           "vllm:inter_token_latency_seconds_sum" + labels + " 0.06",
           "tidemill:time_to_first_token_goal_seconds" + labels + " 0.03",
           "tidemill:inter_token_latency_goal_seconds" + labels + " 0.05",
           "tidemill:late_first_tokens_total" + labels + " 0",  // at the goal is not late
           "tidemill:late_next_tokens_total" + labels + " 1",
           std::string(R"(vllm:request_success_total{engine="0",finished_reason="stop",)"
                       R"(model_name="base"} 1)"),
           std::string(R"(tidemill:errors_total{engine="0",model_name="base",status="400"} 1)"),
       }) {
    EXPECT_NE(text.find(line + "\n"), std::string::npos) << line;
  }
}

TEST_F(GatewayTest, DrainsBeforeItEnds) {
  const auto exit = exit_of(gateway_);
  const ExchangeId id = complete("");
  const ExchangeId given_up = complete(R"(, "stream": true)");
  send_tokens(1, 0, "a");
  caf::anon_send(gateway_, atom::drain_v);
  drain();
  EXPECT_FALSE(http_.accepting);
  EXPECT_EQ(sent(complete("")).response.status, 503U);
  EXPECT_FALSE(exit->has_value());
  finish(0, "done");
  EXPECT_EQ(body(id)["choices"][0]["text"], "done");
  caf::anon_send(gateway_, atom::stop_v);
  drain();
  EXPECT_THAT(sent(given_up).response.body, HasSubstr("the server has stopped"));
  EXPECT_TRUE(sent(given_up).ended);
  EXPECT_TRUE(exit->has_value());
}

TEST_F(GatewayTest, FailsAllRequestsIfTheDeviceEnds) {
  const auto exit = exit_of(gateway_);
  const ExchangeId id = complete("");
  caf::anon_send(
      caf::actor_cast<caf::actor>(gateway_),
      caf::exit_msg{device_.address(), actors::to_caf_error({Errc::kInternal, "broken"})});
  drain();
  EXPECT_EQ(sent(id).response.status, 500U);
  ASSERT_TRUE(exit->has_value());
  EXPECT_EQ((*exit)->message(), "broken");
}

TEST_F(GatewayTest, HidesTheNamesOfSamples) {
  const ExchangeId id = complete("");
  fake_->generations[0].fail({Errc::kResourceExhausted, "too long sample_id=1"});
  drain();
  EXPECT_EQ(body(id)["error"]["message"], "too long");
}

// What the port has not come to yet counts, even if its client has gone.
TEST_F(GatewayTest, CountsAbandonedBodiesUntilTheyAreFreed) {
  const std::string large = R"({"model": "base", "prompt": ")" + std::string(600, 'x') + "\"}";
  for (int i = 0; i < 3; ++i) {
    HttpRequest made = request("POST", "/v1/completions", large);
    made.exchange = ++last_exchange_;
    caf::anon_send(gateway_, atom::request_v, std::move(made));
    caf::anon_send(gateway_, atom::closed_v, last_exchange_);
    drain();
  }
  EXPECT_EQ(sent(3).response.status, 429U);
  advance(Duration{0});
  EXPECT_EQ(sent(post("/v1/completions", large)).response.status, 400U);
}

}  // namespace
}  // namespace tidemill::test
