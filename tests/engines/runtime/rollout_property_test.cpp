// SPDX-License-Identifier: Apache-2.0
// With random arrivals, budgets, cache sizes and cache states, a request gets the same result as
// alone and without sharing. Scoring its tokens gives the same bits as generating them.
#include <array>
#include <iostream>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"
#include "tests/engines/runtime/runtime_bench.hpp"

namespace tidemill::engines {
namespace {

constexpr std::uint64_t kRequests = 10;

RolloutRequest random_request(std::uint64_t id, const ModelConfig& model, RandomStream& random) {
  // One of two prompts, or the beginning of one of them.
  const std::uint64_t stem = random.below(2);
  const std::int64_t length =
      random.below(2) == 0 ? 40 : 1 + static_cast<std::int64_t>(random.below(40));
  RolloutRequest request =
      sampling_request(id, model, 1, static_cast<std::int32_t>(random.below(24)));
  request.prompt_ids = sampling_request(stem, model, length, 0).prompt_ids;
  request.sampling.temperature = random.below(3) == 0 ? 0.0F : 0.7F + 0.1F * static_cast<float>(id);
  request.sampling.top_k = random.below(2) == 0 ? 0 : 20;
  request.sampling.repetition_penalty = random.below(2) == 0 ? 1.0F : 1.1F;
  request.prompt_logprobs = random.below(2) == 0;
  request.prompt_logits = random.below(4) == 0;
  if (random.below(2) == 0) {
    request.stop_strings = {"qx", "k"};
  }
  request.priority = static_cast<Priority>(random.below(kNumPriorities));
  request.tenant = random.below(2) == 0 ? "" : "red";
  request.cache_salt = random.below(4) == 0 ? "salt" : "";
  return request;
}

class RolloutPropertyTest : public ::testing::TestWithParam<Arithmetic> {
protected:
  // Returns options of a runtime whose cache holds `cache_tokens` tokens.
  [[nodiscard]] static RuntimeOptions options_for(const ModelFiles& model,
                                                  std::int64_t cache_tokens) {
    return small_options(model.config, GetParam().backend, cache_tokens, Training::kNo,
                         GetParam().dtype);
  }
};

TEST_P(RolloutPropertyTest, EveryRequestGetsTheSameResultAsAlone) {
  const ModelFiles model = small_model(1);
  const int rounds = GetParam().backend == Backend::kCpu ? 60 : 15;
  RuntimeOptions unshared = options_for(model, 1024);
  unshared.share_prefixes = false;
  const auto alone_runtime = open_runtime(model, unshared).value();
  std::int64_t cached = 0;
  int compared = 0;
  int cancelled = 0;
  for (int round = 0; round < rounds; ++round) {
    RandomStream random(31, static_cast<std::uint64_t>(round));
    // 4 pages hold the longest request, so sequences are preempted when several run.
    RuntimeOptions options =
        options_for(model, 64 + 16 * static_cast<std::int64_t>(random.below(6)));
    options.max_running = 1 + static_cast<std::int64_t>(random.below(6));
    const auto runtime = open_runtime(model, options).value();
    RolloutEngine& engine = runtime->rollout();
    ResultKeeper mixed;
    std::vector<RolloutRequest> requests;
    std::uint64_t to_cancel = kRequests;
    while (requests.size() < kRequests || engine.has_work()) {
      if (requests.size() < kRequests && random.below(3) == 0) {
        requests.push_back(random_request(requests.size(), model.config, random));
        ASSERT_TRUE(engine.submit(requests.back(), mixed).ok());
      }
      if (!requests.empty() && random.below(25) == 0) {
        to_cancel = random.below(requests.size());
        engine.cancel({to_cancel});
      }
      const auto budget = 1 + static_cast<std::int64_t>(random.below(30));
      const auto report = engine.step({budget});
      ASSERT_TRUE(report.ok());
      EXPECT_LE(report.value().prefill_tokens + report.value().decode_tokens, budget);
      cached += report.value().cached_tokens;
    }
    ASSERT_EQ(mixed.size(), kRequests);
    for (const RolloutRequest& request : requests) {
      ResultKeeper alone;
      run_requests(alone_runtime->rollout(), {request}, alone, 1000);
      const RolloutResult& expected = alone.at(request.id.value);
      const RolloutResult& actual = mixed.at(request.id.value);
      if (actual.finish_reason == FinishReason::kCancelled) {
        ++cancelled;
        ASSERT_LE(actual.response_ids.size(), expected.response_ids.size());
        for (std::size_t t = 0; t < actual.response_ids.size(); ++t) {
          EXPECT_EQ(actual.response_ids[t], expected.response_ids[t]);
          EXPECT_EQ(actual.behavior_logprobs[t], expected.behavior_logprobs[t]);
        }
      } else {
        ++compared;
        expect_same_result(actual, expected);
      }
    }
  }
  std::cout << "[ checked  ] " << backend_name(GetParam().backend) << ": " << compared
            << " requests, " << cancelled << " cancelled ones, " << cached << " cached tokens\n";
  EXPECT_GT(cached, rounds * 10);
  EXPECT_GT(compared, rounds * 5);
  EXPECT_GT(cancelled, 0);
}

// The cache holds just one of the long requests. Earlier requests were short, so several long ones
// start at the same time and are preempted again and again.
TEST_P(RolloutPropertyTest, PreemptionNeitherDeadlocksNorChangesABit) {
  const ModelFiles model = small_model(2);
  std::vector<RolloutRequest> requests;
  for (std::uint64_t id = 0; id < 6; ++id) {
    requests.push_back(sampling_request(id, model.config, 5, 43));
  }
  const auto tight = open_runtime(model, options_for(model, 48)).value();
  const auto roomy = open_runtime(model, options_for(model, 1024)).value();
  ResultKeeper brief;
  std::vector<RolloutRequest> brief_requests;
  for (std::uint64_t id = 100; id < 200; ++id) {
    brief_requests.push_back(sampling_request(id, model.config, 5, 43));
    for (std::int32_t token = 0; token < model.config.vocab_size; ++token) {
      brief_requests.back().stop_ids.push_back(token);
    }
  }
  run_requests(tight->rollout(), brief_requests, brief);
  ResultKeeper preempted;
  ResultKeeper undisturbed;
  for (const RolloutRequest& request : requests) {
    ASSERT_TRUE(tight->rollout().submit(request, preempted).ok());
  }
  std::int64_t preemptions = 0;
  while (tight->rollout().has_work()) {
    preemptions += tight->rollout().step({64}).value().preemptions;
  }
  EXPECT_GT(preemptions, 0);
  run_requests(roomy->rollout(), requests, undisturbed);
  for (const RolloutRequest& request : requests) {
    EXPECT_EQ(preempted.at(request.id.value).response_ids.size(), 43U);
    expect_same_result(preempted.at(request.id.value), undisturbed.at(request.id.value));
  }
}

// The cache holds just one of the requests. One of a higher priority arrives every few iterations
// and takes the pages of the one that runs, which goes on later.
TEST_P(RolloutPropertyTest, PreemptionByPriorityChangesNoBit) {
  const ModelFiles model = small_model(2);
  constexpr std::array kPriorities{Priority::kBackground, Priority::kLow, Priority::kNormal,
                                   Priority::kHigh};
  std::vector<RolloutRequest> requests;
  for (std::uint64_t id = 0; id < kPriorities.size(); ++id) {
    requests.push_back(sampling_request(id, model.config, 5, 43));
    requests.back().priority = kPriorities[id];
  }
  const auto tight = open_runtime(model, options_for(model, 48)).value();
  const auto roomy = open_runtime(model, options_for(model, 1024)).value();
  ResultKeeper preempted;
  std::int64_t preemptions = 0;
  for (const RolloutRequest& request : requests) {
    ASSERT_TRUE(tight->rollout().submit(request, preempted).ok());
    for (int i = 0; i < 7; ++i) {
      preemptions += tight->rollout().step({64}).value().preemptions;
    }
  }
  while (tight->rollout().has_work()) {
    preemptions += tight->rollout().step({64}).value().preemptions;
    if (preempted.size() == 1) {
      EXPECT_EQ(preempted.at(3).response_ids.size(), 43U) << "the highest priority ends first";
    }
  }
  EXPECT_GE(preemptions, 3) << "each but the last was preempted";
  ResultKeeper undisturbed;
  run_requests(roomy->rollout(), requests, undisturbed);
  for (const RolloutRequest& request : requests) {
    EXPECT_EQ(preempted.at(request.id.value).response_ids.size(), 43U);
    expect_same_result(preempted.at(request.id.value), undisturbed.at(request.id.value));
  }
}

// Generates requests together in a cache so small that they are preempted, then scores them in
// chunks of other sizes.
TEST_P(RolloutPropertyTest, ScoringGivesTheSameBitsAsGenerating) {
  const ModelFiles model = small_model(3);
  std::vector<RolloutRequest> requests;
  for (std::uint64_t id = 0; id < 6; ++id) {
    requests.push_back(
        sampling_request(id, model.config, 3 + 5 * static_cast<std::int64_t>(id), 20));
  }
  const auto generating = open_runtime(model, options_for(model, 96)).value();
  ResultKeeper generated;
  run_requests(generating->rollout(), requests, generated, 7);
  for (const std::int64_t budget : {1, 5, 1000}) {
    const auto scoring = open_runtime(model, options_for(model, 1024)).value();
    std::vector<RolloutRequest> scored;
    for (RolloutRequest request : requests) {
      const auto& response = generated.at(request.id.value).response_ids;
      request.prompt_ids.insert(request.prompt_ids.end(), response.begin(), response.end());
      request.max_new_tokens = 0;
      request.prompt_logprobs = true;
      scored.push_back(std::move(request));
    }
    ResultKeeper scores;
    run_requests(scoring->rollout(), scored, scores, budget);
    for (const RolloutRequest& request : requests) {
      const RolloutResult& result = generated.at(request.id.value);
      const std::vector<float>& given = scores.at(request.id.value).prompt_logprobs;
      ASSERT_EQ(result.response_ids.size(), 20U);
      ASSERT_EQ(given.size(), request.prompt_ids.size() + 20 - 1);
      for (std::size_t t = 0; t < 20; ++t) {
        EXPECT_EQ(given[request.prompt_ids.size() - 1 + t], result.behavior_logprobs[t])
            << "request " << request.id.value << ", token " << t << ", budget " << budget;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, RolloutPropertyTest,
                         ::testing::Values(Arithmetic{Backend::kCpu, DType::kF32},
                                           Arithmetic{Backend::kCpu, DType::kBF16},
                                           Arithmetic{Backend::kGuarded, DType::kBF16},
                                           Arithmetic{Backend::kReference, DType::kF32},
                                           Arithmetic{Backend::kReference, DType::kBF16}),
                         [](const auto& test) {
                           return backend_name(test.param.backend) +
                                  std::string(dtype_name(test.param.dtype));
                         });

}  // namespace
}  // namespace tidemill::engines
