// SPDX-License-Identifier: Apache-2.0
// Shared prefixes are computed once, never used with other weights, and do not change a bit.
#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/clock.hpp"
#include "base/digest.hpp"
#include "tests/engines/runtime/runtime_bench.hpp"

namespace tidemill::engines {
namespace {

struct Counts {
  std::int64_t prefilled = 0;
  std::int64_t decoded = 0;
  std::int64_t cached = 0;
  double kv_use = 0.0;  // the maximum
};

class PrefixSharingTest : public ::testing::TestWithParam<Backend> {
protected:
  [[nodiscard]] RuntimeOptions options(bool share) const {
    RuntimeOptions options =
        small_options(model_.config, GetParam(), 2048, Training::kNo, DType::kBF16);
    options.share_prefixes = share;
    return options;
  }

  [[nodiscard]] std::unique_ptr<ModelRuntime> open(bool share) const {
    return open_runtime(model_, options(share)).value();
  }

  // Returns samples of one prompt.
  [[nodiscard]] std::vector<RolloutRequest> group(std::int64_t prompt, std::uint64_t first_id,
                                                  std::uint64_t size) const {
    std::vector<RolloutRequest> requests;
    for (std::uint64_t id = first_id; id < first_id + size; ++id) {
      requests.push_back(sampling_request(id, model_.config, 1, 20));
      requests.back().prompt_ids = sampling_request(3, model_.config, prompt, 0).prompt_ids;
    }
    return requests;
  }

  static Counts run(RolloutEngine& engine, const std::vector<RolloutRequest>& requests,
                    ResultKeeper& results, std::int64_t budget = 512) {
    Counts counts;
    for (const RolloutRequest& request : requests) {
      const Status status = engine.submit(request, results);
      EXPECT_TRUE(status.ok()) << status.to_string();
    }
    while (engine.has_work()) {
      const StepReport report = engine.step({budget}).value();
      counts.prefilled += report.prefill_tokens;
      counts.decoded += report.decode_tokens;
      counts.cached += report.cached_tokens;
      counts.kv_use = std::max(counts.kv_use, report.kv_use);
    }
    return counts;
  }

  void expect_same(const std::vector<RolloutRequest>& requests, const ResultKeeper& actual) const {
    ResultKeeper expected;
    const auto unshared = open(false);
    const Counts counts = run(unshared->rollout(), requests, expected);
    EXPECT_EQ(counts.cached, 0);
    for (const RolloutRequest& request : requests) {
      expect_same_result(actual.at(request.id.value), expected.at(request.id.value));
    }
  }

  ModelFiles model_ = small_model(5);
};

TEST_P(PrefixSharingTest, AGroupComputesItsPromptOnce) {
  for (const std::int64_t prompt : {200, 192, 7}) {
    for (const std::int64_t budget : {512, 60}) {
      const auto runtime = open(true);
      ResultKeeper results;
      const auto requests = group(prompt, 10, 8);
      const Counts counts = run(runtime->rollout(), requests, results, budget);
      EXPECT_EQ(counts.prefilled, prompt);
      EXPECT_EQ(counts.cached, 7 * prompt);
      EXPECT_EQ(counts.decoded, 8 * 19);
      // Shared pages count once: about 13 for the prompt, and at most about 2 per response.
      EXPECT_LE(counts.kv_use, (static_cast<double>(prompt) / 16.0 + 8.0 * 3.0) / 128.0);
      expect_same(requests, results);
    }
  }
}

TEST_P(PrefixSharingTest, LaterSamplesOfAPromptComputeNothingOfIt) {
  const auto runtime = open(true);
  ResultKeeper results;
  run(runtime->rollout(), group(100, 10, 2), results);
  const auto later = group(100, 20, 3);
  const Counts counts = run(runtime->rollout(), later, results);
  EXPECT_EQ(counts.prefilled, 0);
  EXPECT_EQ(counts.cached, 300);
  expect_same(later, results);
}

// Only the tokens that the last response and the next question add are computed.
TEST_P(PrefixSharingTest, AConversationContinuesFromItsPages) {
  const auto runtime = open(true);
  ResultKeeper results;
  const auto first = group(40, 10, 1);
  run(runtime->rollout(), first, results);
  RolloutRequest next = first[0];
  next.id = {11};
  const auto& response = results.at(10).response_ids;
  next.prompt_ids.insert(next.prompt_ids.end(), response.begin(), response.end());
  next.prompt_ids.push_back(1);
  const Counts counts = run(runtime->rollout(), {next}, results);
  EXPECT_EQ(counts.cached, 48) << "59 tokens were cached, which is three full pages";
  EXPECT_EQ(counts.prefilled, 61 - 48);
  expect_same({next}, results);
}

TEST_P(PrefixSharingTest, AScoredPromptIsComputedWhole) {
  const auto runtime = open(true);
  ResultKeeper results;
  run(runtime->rollout(), group(100, 10, 2), results);
  auto scored = group(100, 20, 2);
  scored[0].prompt_logprobs = true;
  scored[1].prompt_logits = true;
  const Counts counts = run(runtime->rollout(), scored, results);
  EXPECT_EQ(counts.prefilled, 200);
  EXPECT_EQ(counts.cached, 0);
  EXPECT_EQ(results.at(20).prompt_logprobs.size(), 99U);
  expect_same(scored, results);
}

// The weights change to others, to equal ones under a new version, and back.
TEST_P(PrefixSharingTest, NothingIsSharedAcrossWeights) {
  const auto snapshot_of = [](const ModelFiles& model, std::uint64_t step) {
    Snapshot snapshot;
    snapshot.version.step = step;
    snapshot.base = model.tensors;
    snapshot.base_digest = digest_tensors(snapshot.base);
    return snapshot;
  };
  const auto runtime = open(true);
  RolloutEngine& engine = runtime->rollout();
  const ModelFiles other = small_model(6);
  ResultKeeper old_results;
  run(engine, group(100, 10, 2), old_results);

  ASSERT_TRUE(engine.load(snapshot_of(other, 1), WeightArrival::kFinish).ok());
  ResultKeeper results;
  const auto requests = group(100, 10, 2);
  Counts counts = run(engine, requests, results);
  EXPECT_EQ(counts.prefilled, 100) << "pages of the old weights were used";
  const auto fresh = open_runtime(other, options(false)).value();
  ResultKeeper expected;
  run(fresh->rollout(), requests, expected);
  for (const std::uint64_t id : {10U, 11U}) {
    EXPECT_EQ(results.at(id).response_ids, expected.at(id).response_ids);
    EXPECT_EQ(results.at(id).behavior_logprobs, expected.at(id).behavior_logprobs);
    EXPECT_NE(results.at(id).behavior_logprobs, old_results.at(id).behavior_logprobs);
  }

  ASSERT_TRUE(engine.load(snapshot_of(other, 2), WeightArrival::kFinish).ok());
  ResultKeeper same_weights;
  counts = run(engine, requests, same_weights);
  EXPECT_EQ(counts.prefilled, 0) << "equal weights, equal pages";
  EXPECT_EQ(same_weights.at(10).behavior_logprobs, results.at(10).behavior_logprobs);
  EXPECT_EQ(same_weights.at(10).versions, (std::vector<VersionSpan>{{{0, 0, 2}, 20}}));

  ASSERT_TRUE(engine.load(snapshot_of(model_, 3), WeightArrival::kFinish).ok());
  ResultKeeper back;
  counts = run(engine, requests, back);
  EXPECT_EQ(counts.prefilled, 100) << "dropped when the weights changed";
  EXPECT_EQ(back.at(10).behavior_logprobs, old_results.at(10).behavior_logprobs);
}

// The name of weights includes the adapter.
TEST_P(PrefixSharingTest, NothingIsSharedAcrossSalts) {
  const auto runtime = open(true);
  ResultKeeper results;
  const auto cached_with = [&](std::uint64_t id, const std::string& salt) {
    auto requests = group(100, id, 1);
    requests[0].cache_salt = salt;
    const Counts counts = run(runtime->rollout(), requests, results);
    EXPECT_EQ(results.at(id).cached_tokens, counts.cached);
    expect_same(requests, results);
    return counts.cached;
  };
  EXPECT_EQ(cached_with(10, ""), 0);
  EXPECT_EQ(cached_with(11, "a"), 0);
  EXPECT_EQ(cached_with(12, "b"), 0);
  EXPECT_EQ(cached_with(13, "a"), 100);
  EXPECT_EQ(cached_with(14, ""), 100);
  EXPECT_EQ(cached_with(15, "ab"), 0);
}

TEST_P(PrefixSharingTest, NothingIsSharedAcrossAdapters) {
  RuntimeOptions with_adapter = options(true);
  with_adapter.adapter = small_adapter(model_.config, 1);
  const auto runtime = open_runtime(model_, with_adapter).value();
  ResultKeeper first;
  run(runtime->rollout(), group(50, 10, 1), first);
  Snapshot snapshot = runtime->initial();
  snapshot.version.step = 1;
  snapshot.base = {};
  snapshot.adapter = small_adapter(model_.config, 2).tensors;
  snapshot.adapter_digest = digest_tensors(snapshot.adapter);
  ASSERT_TRUE(runtime->rollout().load(snapshot, WeightArrival::kFinish).ok());
  ResultKeeper second;
  const Counts counts = run(runtime->rollout(), group(50, 10, 1), second);
  EXPECT_EQ(counts.prefilled, 50);
  EXPECT_NE(first.at(10).behavior_logprobs, second.at(10).behavior_logprobs);
}

TEST_P(PrefixSharingTest, ARequestPastItsTimeLimitReturnsItsTokens) {
  ManualClock clock;
  RuntimeOptions timed = options(true);
  timed.clock = &clock;
  const auto runtime = open_runtime(model_, timed).value();
  RolloutEngine& engine = runtime->rollout();
  auto requests = group(10, 10, 3);
  requests[0].time_limit = std::chrono::milliseconds(1500);
  ResultKeeper results;
  for (const RolloutRequest& request : requests) {
    ASSERT_TRUE(engine.submit(request, results).ok());
  }
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(engine.step({512}).ok());
  }
  clock.advance(std::chrono::milliseconds(1499));
  ASSERT_TRUE(engine.step({512}).ok());
  EXPECT_FALSE(results.has(10));
  clock.advance(std::chrono::milliseconds(1));
  ASSERT_TRUE(engine.step({512}).ok());
  ASSERT_TRUE(results.has(10));
  EXPECT_EQ(results.at(10).finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(results.at(10).response_ids.size(), 6U);
  EXPECT_EQ(results.at(10).error, "exceeded its time limit of 1.500000 s sample_id=10");
  while (engine.has_work()) {
    ASSERT_TRUE(engine.step({512}).ok());
  }
  EXPECT_EQ(results.at(11).finish_reason, FinishReason::kLength);
  EXPECT_EQ(results.at(12).finish_reason, FinishReason::kLength);
}

TEST_P(PrefixSharingTest, ATimeLimitCountsFromTheFirstIterationOfTheRequest) {
  ManualClock clock;
  RuntimeOptions timed = options(true);
  timed.clock = &clock;
  const auto runtime = open_runtime(model_, timed).value();
  RolloutEngine& engine = runtime->rollout();
  auto request = group(10, 10, 1)[0];
  request.time_limit = std::chrono::seconds(2);
  request.min_step = 1;
  ResultKeeper results;
  ASSERT_TRUE(engine.submit(request, results).ok());
  clock.advance(std::chrono::hours(1));
  EXPECT_FALSE(engine.has_work());  // the request waits for its version
  Snapshot next = runtime->initial();
  next.version.step = 1;
  ASSERT_TRUE(engine.load(next, WeightArrival::kFinish).ok());
  clock.advance(std::chrono::hours(1));
  ASSERT_TRUE(engine.step({512}).ok());
  clock.advance(std::chrono::milliseconds(1999));
  ASSERT_TRUE(engine.step({512}).ok());
  EXPECT_FALSE(results.has(10));
  clock.advance(std::chrono::milliseconds(1));
  ASSERT_TRUE(engine.step({512}).ok());
  ASSERT_TRUE(results.has(10));
  EXPECT_EQ(results.at(10).finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(results.at(10).response_ids.size(), 2U);
  EXPECT_FALSE(engine.has_work());
}

TEST_P(PrefixSharingTest, ATimeLimitNeedsAClock) {
  const auto runtime = open(true);
  auto request = group(10, 10, 1)[0];
  ResultKeeper results;
  request.time_limit = std::chrono::seconds(1);
  EXPECT_EQ(runtime->rollout().submit(request, results).message(),
            "time_limit: this runtime has no clock sample_id=10");
  request.time_limit = -std::chrono::seconds(1);
  EXPECT_EQ(runtime->rollout().submit(request, results).code(), Errc::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Backends, PrefixSharingTest,
                         ::testing::Values(Backend::kCpu, Backend::kReference, Backend::kGuarded),
                         [](const auto& test) { return backend_name(test.param); });

}  // namespace
}  // namespace tidemill::engines
