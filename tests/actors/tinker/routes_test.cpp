// SPDX-License-Identifier: Apache-2.0
#include "actors/tinker/routes.hpp"

#include <algorithm>
#include <string>
#include <variant>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tidemill::test {
namespace {

namespace tinker = actors::tinker;
using actors::HttpRequest;
using actors::KeyScope;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

HttpRequest http(const std::string& method, const std::string& target, const std::string& body = "",
                 const std::string& type = "application/json") {
  HttpRequest request;
  request.method = method;
  request.target = "/api/v1/" + target;
  request.headers = {{"host", "server:8000"}, {"content-type", type}};
  request.body = body;
  return request;
}

tinker::Call parse(const HttpRequest& request) {
  return tinker::parse_call(request, {100, 64, 64, {99}});
}

template <class T>
T parsed(const HttpRequest& request) {
  tinker::Call call = parse(request);
  if (const auto* refused = std::get_if<tinker::RefusedCall>(&call)) {
    ADD_FAILURE() << request.target << ": " << refused->error.message;
    return T();
  }
  EXPECT_TRUE(std::holds_alternative<T>(call)) << request.target;
  return std::holds_alternative<T>(call) ? std::get<T>(std::move(call)) : T();
}

actors::openai::ApiError refused(const HttpRequest& request) {
  tinker::Call call = parse(request);
  const auto* refusal = std::get_if<tinker::RefusedCall>(&call);
  EXPECT_NE(refusal, nullptr) << request.target;
  return refusal == nullptr ? actors::openai::ApiError() : refusal->error;
}

TEST(TinkerRoutesTest, PathsGiveCalls) {
  parsed<tinker::GetClientConfig>(http("POST", "client/config", R"({"sdk_version": "0.38.0"})"));
  parsed<tinker::GetDynamicConfig>(http("POST", "client/dynamic_config", "{}"));
  parsed<tinker::GetHealth>(http("GET", "healthz"));
  parsed<tinker::GetCapabilities>(http("GET", "get_server_capabilities"));
  parsed<tinker::AcceptTelemetry>(http("POST", "telemetry", "{}"));
  EXPECT_EQ(parsed<tinker::Heartbeat>(http("POST", "session_heartbeat",
                                           R"({"session_id": "s", "type": "session_heartbeat"})"))
                .session_id,
            "s");
  EXPECT_EQ(parsed<tinker::FinishSession>(
                http("POST", "sessions/s/finish", R"({"reason": {"type": "success"}})"))
                .session_id,
            "s");
  EXPECT_EQ(parsed<tinker::GetSession>(http("GET", "sessions/a%3Ab?access_scope=owned")).session_id,
            "a:b");
  EXPECT_EQ(parsed<tinker::ListSessions>(http("GET", "sessions?limit=5&offset=2")).page.limit, 5);
  EXPECT_EQ(parsed<tinker::ListRuns>(http("GET", "training_runs?limit=5&offset=2")).page.offset, 2);
  EXPECT_EQ(parsed<tinker::GetRun>(http("GET", "training_runs/s:train:0")).run_id, "s:train:0");
  EXPECT_EQ(parsed<tinker::ListCheckpoints>(http("GET", "training_runs/r/checkpoints")).run_id,
            "r");
  EXPECT_EQ(parsed<tinker::ListCheckpoints>(http("GET", "checkpoints?limit=100000")).page.limit,
            1000);
  EXPECT_EQ(parsed<tinker::GetSampler>(http("GET", "samplers/s:sample:0")).sampling_session_id,
            "s:sample:0");
  EXPECT_EQ(
      parsed<tinker::RetrieveFuture>(
          http("POST", "retrieve_future", R"({"request_id": "f", "allow_metadata_only": true})"))
          .request_id,
      "f");
  EXPECT_EQ(parsed<tinker::CancelFuture>(http("POST", "cancel_future", R"({"request_id": "f"})"))
                .request_id,
            "f");
}

TEST(TinkerRoutesTest, PathsOfCheckpoints) {
  const tinker::CheckpointPath path{"s:train:0", tinker::CheckpointKind::kExternal, "e"};
  const std::string target = "training_runs/s%3Atrain%3A0/checkpoints/external_weights/e";
  EXPECT_EQ(parsed<tinker::DeleteCheckpoint>(http("DELETE", target)).path, path);
  EXPECT_EQ(
      parsed<tinker::SetTtl>(http("PUT", target + "/ttl", R"({"ttl_seconds": 3600})")).ttl_seconds,
      3600);
  EXPECT_EQ(parsed<tinker::GetFileUrls>(http("GET", target + "/external_weights_urls")).origin,
            "http://server:8000");
  HttpRequest proxied = http("GET", target + "/external_weights_urls");
  proxied.headers.push_back({"x-forwarded-proto", "https"});
  EXPECT_EQ(parsed<tinker::GetFileUrls>(proxied).origin, "https://server:8000");
  const auto file =
      parsed<tinker::GetFile>(http("GET", target + "/files/adapter_config.json?token=abc"));
  EXPECT_EQ(file.name, "adapter_config.json");
  EXPECT_EQ(file.token, "abc");
  EXPECT_EQ(parsed<tinker::GetWeightsInfo>(
                http("POST", "weights_info",
                     R"({"tinker_path": "tinker://s:train:0/external_weights/e"})"))
                .path,
            path);
  EXPECT_EQ(refused(http("DELETE", "training_runs/r/checkpoints/other/e")).status, 404U);
  EXPECT_EQ(refused(http("DELETE", "training_runs/r/checkpoints/weights/..%2Fe")).status, 404U);
  EXPECT_EQ(refused(http("PUT", target + "/ttl", R"({"ttl_seconds": 1})")).param, "ttl_seconds");
}

TEST(TinkerRoutesTest, RequestsWithNumbersHaveDigests) {
  const auto digest = [](const std::string& path, const std::string& name) {
    return parsed<tinker::SaveWeights>(
               http("POST", path, R"({"model_id": "a", "seq_id": 1, "path": ")" + name + R"("})"))
        .turn.digest;
  };
  EXPECT_EQ(digest("save_weights", "x"), digest("save_weights", "x"));
  EXPECT_NE(digest("save_weights", "x"), digest("save_weights", "y"));
  EXPECT_NE(digest("save_weights", "x"), digest("save_weights_for_sampler", "x"));
  const tinker::Call refused =
      parse(http("POST", "optim_step", R"({"model_id": "a", "seq_id": 1, "adam_params": 3})"));
  EXPECT_FALSE(std::get<tinker::RefusedCall>(refused).turn->digest.empty());
}

TEST(TinkerRoutesTest, OtherRequestsAreRefused) {
  EXPECT_EQ(refused(http("GET", "nothing")).status, 404U);
  EXPECT_EQ(refused(http("GET", "")).status, 404U);
  EXPECT_EQ(refused(http("GET", "sessions/")).status, 404U);
  EXPECT_EQ(refused(http("GET", "sessions/a/b")).status, 404U);
  EXPECT_EQ(refused(http("GET", "asample")).status, 405U);
  EXPECT_THAT(refused(http("GET", "asample")).message, HasSubstr("POST"));
  EXPECT_EQ(refused(http("POST", "asample", "{}", "text/plain")).status, 415U);
  EXPECT_EQ(refused(http("POST", "forward_backward", "x")).status, 415U);
  EXPECT_EQ(refused(http("POST", "forward_backward", "x", "application/x-protobuf")).status, 400U);
  EXPECT_EQ(refused(http("GET", "sessions?limit=-1")).param, "limit");
  EXPECT_EQ(refused(http("GET", "sessions?offset=x")).param, "offset");
  EXPECT_EQ(refused(http("POST", "copy_weights", "{}")).status, 400U);
  EXPECT_EQ(refused(http("POST", "create_custom_loss", "{}")).status, 400U);
}

TEST(TinkerRoutesTest, PathsNeedScopes) {
  const auto scopes = [](const std::string& path) {
    const auto found = tinker::scopes_of("/api/v1/" + path);
    return std::vector<KeyScope>(found.begin(), found.end());
  };
  EXPECT_THAT(scopes("create_model"), ElementsAre(KeyScope::kTune));
  EXPECT_THAT(scopes("forward_backward"), ElementsAre(KeyScope::kTune));
  EXPECT_THAT(scopes("training_runs/r/checkpoints/weights/a"), ElementsAre(KeyScope::kTune));
  EXPECT_THAT(scopes("asample"), ElementsAre(KeyScope::kInfer, KeyScope::kTune));
  EXPECT_THAT(scopes("unknown"), ElementsAre(KeyScope::kInfer, KeyScope::kTune));
  EXPECT_THAT(scopes("healthz"), IsEmpty());
  EXPECT_THAT(scopes("training_runs/r/checkpoints/external_weights/e/files/f"), IsEmpty());
  EXPECT_TRUE(tinker::is_tinker_path("/api/v1/healthz"));
  EXPECT_FALSE(tinker::is_tinker_path("/v1/models"));
}

}  // namespace
}  // namespace tidemill::test
