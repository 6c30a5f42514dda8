// SPDX-License-Identifier: Apache-2.0
// Compares greedy decoding and prompt scores with tests/golden/engine/forward. All prompts of a
// model run together in one engine, and one by one.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/engines/runtime/runtime_bench.hpp"
#include "tests/engines/transformer/golden.hpp"

namespace tidemill::engines {
namespace {

using nlohmann::json;

constexpr std::size_t kPrompts = 7;
constexpr std::int32_t kNewTokens = 32;
constexpr double kMargin = 1e-3;
constexpr double kMaxDifference = 2e-4;

class RolloutGoldenTest : public ::testing::TestWithParam<std::tuple<Backend, std::string>> {
protected:
  RolloutGoldenTest()
      : backend_(std::get<0>(GetParam())),
        name_(std::get<1>(GetParam())),
        model_(golden_model(name_)),
        golden_(golden_json("forward/" + name_ + ".json")),
        runtime_(open_runtime(model_, small_options(model_.config, backend_, 2048, Training::kNo))
                     .value()) {}

  static RolloutRequest request_of(std::uint64_t id, const json& prompt) {
    RolloutRequest request;
    request.id = {id};
    request.prompt_ids = prompt["ids"].get<std::vector<std::int32_t>>();
    request.sampling.temperature = 0.0F;
    request.max_new_tokens = kNewTokens;
    request.prompt_logprobs = true;
    return request;
  }

  Backend backend_;
  std::string name_;
  ModelFiles model_;
  json golden_;
  std::unique_ptr<ModelRuntime> runtime_;
};

// Returns the number of tokens compared. The comparison stops at the first difference that rounding
// can explain.
std::size_t expect_greedy(const RolloutResult& result, const json& greedy) {
  EXPECT_EQ(result.finish_reason, FinishReason::kLength);
  EXPECT_EQ(result.response_ids.size(), static_cast<std::size_t>(kNewTokens));
  std::size_t t = 0;
  for (; t < result.response_ids.size(); ++t) {
    if (greedy["margins"][t].get<double>() < kMargin &&
        result.response_ids[t] != greedy["ids"][t].get<std::int32_t>()) {
      break;
    }
    EXPECT_EQ(result.response_ids[t], greedy["ids"][t].get<std::int32_t>()) << t;
    EXPECT_NEAR(double{result.behavior_logprobs[t]}, greedy["logprobs"][t].get<double>(),
                kMaxDifference);
  }
  return t;
}

TEST_P(RolloutGoldenTest, GreedyTogetherAndOneByOne) {
  const json& prompts = golden_["prompts"];
  ASSERT_EQ(prompts.size(), kPrompts);
  std::vector<RolloutRequest> requests;
  for (const json& prompt : prompts) {
    requests.push_back(request_of(requests.size(), prompt));
  }
  ResultKeeper together;
  run_requests(runtime_->rollout(), requests, together, 50);
  ASSERT_EQ(together.size(), kPrompts);
  std::size_t tokens = 0;
  for (std::size_t i = 0; i < kPrompts; ++i) {
    tokens += expect_greedy(together.at(i), prompts[i]["greedy"]);
    const json& logprobs = prompts[i]["prompt_logprobs"];
    ASSERT_EQ(together.at(i).prompt_logprobs.size() + 1, logprobs.size());
    for (std::size_t t = 1; t < logprobs.size(); ++t) {
      EXPECT_NEAR(double{together.at(i).prompt_logprobs[t - 1]}, logprobs[t].get<double>(),
                  kMaxDifference);
    }
    ResultKeeper alone;
    run_requests(runtime_->rollout(), {requests[i]}, alone, 2048);
    expect_same_result(together.at(i), alone.at(i));
  }
  std::cout << "[ checked  ] " << backend_name(backend_) << " " << name_ << ": " << kPrompts
            << " prompts, " << tokens << " greedy tokens\n";
  EXPECT_GE(tokens, kPrompts * kNewTokens * 3 / 4);
}

INSTANTIATE_TEST_SUITE_P(Models, RolloutGoldenTest,
                         ::testing::Combine(::testing::Values(Backend::kCpu, Backend::kReference,
                                                              Backend::kGuarded),
                                            ::testing::ValuesIn(kGoldenModels)),
                         [](const auto& test) {
                           std::string name = backend_name(std::get<0>(test.param)) + "_" +
                                              std::get<1>(test.param);
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST(RolloutGoldenFilesTest, AllModelsAreTested) {
  EXPECT_EQ(kGoldenModels.size(), 7U);
}

}  // namespace
}  // namespace tidemill::engines
