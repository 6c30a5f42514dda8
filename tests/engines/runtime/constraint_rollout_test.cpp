// SPDX-License-Identifier: Apache-2.0
// Rollouts with constraints: what they generate, and that they change nothing else.
#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "engines/constraint/constraint.hpp"
#include "tests/engines/runtime/runtime_bench.hpp"

namespace tidemill::engines {
namespace {

constexpr std::int32_t kStop = 0;

// The texts of the small model's tokens: all bytes that the schema needs, and longer ones. The
// first ends texts.
constexpr std::string_view kTokens[] = {
    "",    "{",  "}",  "[", "]",  "\"",  ":",   ",",    " ",   "\\",   "a",     "b",    "c",  "d",
    "n",   "u",  "l",  "t", "r",  "e",   "f",   "s",    "0",   "1",    "2",     "3",    "4",  "5",
    "6",   "7",  "8",  "9", "-",  "\":", "\",", "{\"",  "\"}", "true", "false", "null", "}}", "[[",
    "a\"", "bc", "12", ".", "E+", "]}",  "\\n", "name", "id",  "m",    "i"};

Json schema() {
  return parse_json(R"({"type": "object", "properties": {"name": {"type": "string", "maxLength": 6},
      "id": {"type": "integer"}, "b": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}},
      "required": ["name", "id"]})")
      .value();
}

class ConstraintRolloutTest : public ::testing::Test {
protected:
  ConstraintRolloutTest() : model_(small_model(3)), constraint_(make()) {}

  std::shared_ptr<const Constraint> make() const {
    EXPECT_EQ(std::size(kTokens), static_cast<std::size_t>(model_.config.vocab_size));
    const auto index =
        std::make_shared<const TokenIndex>(static_cast<std::int32_t>(std::size(kTokens)),
                                           [](std::int32_t token) { return kTokens[token]; });
    std::string refused;
    return std::make_shared<const Constraint>(
        json_schema_grammar(schema(), "schema", refused).value(), index);
  }

  std::unique_ptr<ModelRuntime> open(std::int64_t cache_tokens) const {
    return open_runtime(model_,
                        small_options(model_.config, Backend::kCpu, cache_tokens, Training::kNo))
        .value();
  }

  RolloutRequest request(std::uint64_t id, std::int32_t max_new_tokens = 100) const {
    RolloutRequest made = sampling_request(id, model_.config, 6, max_new_tokens);
    made.constraint = constraint_;
    made.stop_ids = {kStop};
    return made;
  }

  static std::string text_of(const RolloutResult& result) {
    std::string text;
    for (const std::int32_t id : result.response_ids) {
      text += kTokens[id];
    }
    return text;
  }

  static void expect_valid(const RolloutResult& result) {
    const std::string text = text_of(result);
    ASSERT_EQ(result.finish_reason, FinishReason::kStop) << text << " " << result.error;
    const auto json = parse_json(text);
    ASSERT_TRUE(json.ok()) << text;
    ASSERT_NE(json.value().find("name"), nullptr) << text;
    EXPECT_NE(json.value().find("name")->if_string(), nullptr) << text;
    ASSERT_NE(json.value().find("id"), nullptr) << text;
    EXPECT_NE(json.value().find("id")->if_integer(), nullptr) << text;
  }

  ModelFiles model_;
  std::shared_ptr<const Constraint> constraint_;
};

TEST_F(ConstraintRolloutTest, ResponsesSatisfyTheSchema) {
  const auto runtime = open(2048);
  std::vector<RolloutRequest> requests;
  for (std::uint64_t id = 1; id <= 24; ++id) {
    requests.push_back(request(id));
    SamplingOptions& sampling = requests.back().sampling;
    sampling.temperature = id % 4 == 0 ? 0.0F : 1.0F;
    sampling.top_p = id % 3 == 0 ? 0.5F : 1.0F;
    sampling.top_k = id % 5 == 0 ? 4 : 0;
    // Bias towards a token that is seldom permitted, and penalties, which change single logits.
    sampling.logit_bias = id % 2 == 0 ? std::vector<std::pair<std::int32_t, float>>{{51, 50.0F}}
                                      : std::vector<std::pair<std::int32_t, float>>();
    sampling.frequency_penalty = 0.5F;  // greedy responses would repeat a character for ever
  }
  ResultKeeper results;
  run_requests(runtime->rollout(), requests, results);
  for (const RolloutRequest& one : requests) {
    const RolloutResult& result = results.at(one.id.value);
    expect_valid(result);
    EXPECT_EQ(result.response_ids.back(), kStop);
  }
}

// The reported log-probabilities are those of training, which knows no constraints.
TEST_F(ConstraintRolloutTest, LogprobsAreThoseWithoutTheConstraint) {
  const auto runtime = open(1024);
  ResultKeeper results;
  RolloutRequest made = request(1);
  made.sampling.temperature = 1.0F;
  run_requests(runtime->rollout(), {made}, results);
  RolloutRequest scored = sampling_request(2, model_.config, 1, 0);
  scored.prompt_ids = made.prompt_ids;
  const RolloutResult& result = results.at(1);
  scored.prompt_ids.insert(scored.prompt_ids.end(), result.response_ids.begin(),
                           result.response_ids.end());
  scored.prompt_logprobs = true;
  run_requests(runtime->rollout(), {scored}, results);
  const std::vector<float>& all = results.at(2).prompt_logprobs;
  EXPECT_EQ(std::vector<float>(all.end() - std::ssize(result.response_ids), all.end()),
            result.behavior_logprobs);
}

TEST_F(ConstraintRolloutTest, OtherRequestsAreNotChanged) {
  const auto runtime = open(2048);
  RolloutRequest plain = request(7, 30);
  plain.constraint = {};
  ResultKeeper alone;
  run_requests(runtime->rollout(), {plain}, alone);
  ResultKeeper together;
  run_requests(runtime->rollout(), {request(1), plain, request(2)}, together);
  expect_same_result(together.at(7), alone.at(7));
  ResultKeeper constrained;
  run_requests(runtime->rollout(), {request(1)}, constrained);
  EXPECT_EQ(constrained.at(1).response_ids, together.at(1).response_ids);
}

TEST_F(ConstraintRolloutTest, PreemptedSequencesGoOn) {
  const auto spacious = open(4096);
  const auto tight = open(112);
  std::vector<RolloutRequest> requests;
  for (std::uint64_t id = 1; id <= 8; ++id) {
    requests.push_back(request(id, 100));
  }
  ResultKeeper expected;
  run_requests(spacious->rollout(), requests, expected);
  ResultKeeper results;
  for (const RolloutRequest& one : requests) {
    ASSERT_TRUE(tight->rollout().submit(one, results).ok());
  }
  std::int64_t preemptions = 0;
  while (tight->rollout().has_work()) {
    const auto report = tight->rollout().step({64});
    ASSERT_TRUE(report.ok());
    preemptions += report.value().preemptions;
  }
  EXPECT_GT(preemptions, 0);
  for (const RolloutRequest& one : requests) {
    expect_valid(results.at(one.id.value));
    EXPECT_EQ(results.at(one.id.value).response_ids, expected.at(one.id.value).response_ids);
  }
}

TEST_F(ConstraintRolloutTest, AShortResponseIsCut) {
  const auto runtime = open(256);
  ResultKeeper results;
  run_requests(runtime->rollout(), {request(1, 3)}, results);
  EXPECT_EQ(results.at(1).finish_reason, FinishReason::kLength);
  EXPECT_TRUE(text_of(results.at(1)).starts_with("{\"")) << text_of(results.at(1));
}

TEST_F(ConstraintRolloutTest, WithoutStopIdsAResponseEndsWhenItIsComplete) {
  const auto runtime = open(256);
  RolloutRequest made = request(1);
  made.stop_ids.clear();
  ResultKeeper results;
  run_requests(runtime->rollout(), {made}, results);
  expect_valid(results.at(1));
  EXPECT_TRUE(text_of(results.at(1)).ends_with("}"));
}

TEST_F(ConstraintRolloutTest, CancelReturnsTheTokensGenerated) {
  const auto runtime = open(256);
  ResultKeeper results;
  ASSERT_TRUE(runtime->rollout().submit(request(1), results).ok());
  while (results.streamed().num_calls() < 2) {
    ASSERT_TRUE(runtime->rollout().step({64}).ok());
  }
  runtime->rollout().cancel({1});
  EXPECT_EQ(results.at(1).finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(results.at(1).response_ids.size(), 2U);
}

TEST_F(ConstraintRolloutTest, ConstraintsOfOtherVocabulariesAreRefused) {
  const auto runtime = open(256);
  ResultKeeper results;
  RolloutRequest bad = request(1);
  bad.constraint = std::make_shared<const Constraint>(
      json_object_grammar().value(),
      std::make_shared<const TokenIndex>(2, [](std::int32_t) { return std::string_view("a"); }));
  EXPECT_EQ(runtime->rollout().submit(bad, results).message(),
            "constraint: is for a vocabulary of 2, not 53 sample_id=1");
  bad.constraint = {};
  bad.constraint.is_set = true;  // as a handle that was serialized
  EXPECT_EQ(runtime->rollout().submit(bad, results).message(),
            "constraint: belongs to another process sample_id=1");
}

// A vocabulary without the bytes that a constraint needs ends the request, and only this one.
TEST_F(ConstraintRolloutTest, ADeadEndFailsTheRequest) {
  const auto runtime = open(512);
  RolloutRequest bad = request(1);
  bad.constraint = std::make_shared<const Constraint>(
      json_object_grammar().value(), std::make_shared<const TokenIndex>(53, [](std::int32_t token) {
        return std::string_view(token == 1 ? "{" : "x");
      }));
  ResultKeeper results;
  run_requests(runtime->rollout(), {bad, request(2)}, results);
  EXPECT_EQ(results.at(1).finish_reason, FinishReason::kFailed);
  EXPECT_EQ(results.at(1).error, "constraint: no token can follow in this constraint sample_id=1");
  expect_valid(results.at(2));
}

}  // namespace
}  // namespace tidemill::engines
