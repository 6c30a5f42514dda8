// SPDX-License-Identifier: Apache-2.0
// How responses end, when new weights serve, and which requests are refused.
#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/digest.hpp"
#include "base/tensor/float_tensor.hpp"
#include "tests/engines/runtime/runtime_bench.hpp"

namespace tidemill::engines {
namespace {

Snapshot snapshot_of(const ModelFiles& model, std::uint64_t step) {
  Snapshot snapshot;
  snapshot.version.step = step;
  snapshot.base = model.tensors;
  snapshot.base_digest = digest_tensors(snapshot.base);
  return snapshot;
}

class RolloutViewTest : public ::testing::Test {
protected:
  RolloutViewTest() : model_(small_model(3)), runtime_(open(model_)) {}

  static std::unique_ptr<ModelRuntime> open(const ModelFiles& model) {
    return open_runtime(model, small_options(model.config, Backend::kCpu, 256, Training::kNo))
        .value();
  }

  RolloutRequest request(std::uint64_t id, std::int32_t max_new_tokens) const {
    return sampling_request(id, model_.config, 6, max_new_tokens);
  }

  RolloutResult run(const RolloutRequest& request) {
    ResultKeeper results;
    run_requests(engine(), {request}, results);
    return results.at(request.id.value);
  }

  void expect_refused(const RolloutRequest& request, Errc code, const std::string& message) {
    const Status status = engine().submit(request, keeper_);
    EXPECT_EQ(status.code(), code) << status.to_string();
    EXPECT_NE(status.message().find(message), std::string::npos) << status.message();
    EXPECT_FALSE(engine().has_work());
  }

  RolloutEngine& engine() { return runtime_->rollout(); }

  ModelFiles model_;
  std::unique_ptr<ModelRuntime> runtime_;
  ResultKeeper keeper_;
};

TEST_F(RolloutViewTest, EndsAtTheMaximumLength) {
  const RolloutResult result = run(request(1, 12));
  EXPECT_EQ(result.finish_reason, FinishReason::kLength);
  EXPECT_EQ(result.response_ids.size(), 12U);
  EXPECT_EQ(result.behavior_logprobs.size(), 12U);
  EXPECT_EQ(result.versions, (std::vector<VersionSpan>{{PolicyVersion{}, 12}}));
}

// `ResultKeeper` compares the streamed tokens of every test with the results.
TEST_F(RolloutViewTest, EachTokenIsStreamedByTheStepThatGeneratesIt) {
  ASSERT_TRUE(engine().submit(request(1, 12), keeper_).ok());
  ASSERT_TRUE(engine().submit(request(2, 12), keeper_).ok());
  while (keeper_.streamed().num_calls() < 5) {
    ASSERT_TRUE(engine().step({64}).ok());
  }
  EXPECT_EQ(keeper_.size(), 0U) << "no response has ended";
  engine().cancel({2});
  EXPECT_EQ(keeper_.at(2).finish_reason, FinishReason::kCancelled);
  EXPECT_FALSE(keeper_.at(2).response_ids.empty());
  run_to_end(engine());
  EXPECT_EQ(keeper_.streamed().num_calls(),
            keeper_.at(1).response_ids.size() + keeper_.at(2).response_ids.size());
}

TEST_F(RolloutViewTest, TokensDependOnTheDrawKeyAndNotOnTheId) {
  RolloutRequest original = request(1, 12);
  RolloutRequest same_key = original;
  same_key.id = {2};
  same_key.draw_key = 1;
  RolloutRequest other_key = original;
  other_key.id = {3};
  ResultKeeper results;
  run_requests(engine(), {original, same_key, other_key}, results);
  RolloutResult renamed = results.at(2);
  renamed.id = original.id;
  expect_same_result(renamed, results.at(1));
  EXPECT_NE(results.at(3).response_ids, results.at(1).response_ids);
}

TEST_F(RolloutViewTest, AStopIdIsTheLastToken) {
  const RolloutResult whole = run(request(1, 12));
  RolloutRequest stopped = request(1, 12);
  stopped.stop_ids = {whole.response_ids[5]};
  const RolloutResult result = run(stopped);
  const auto first =
      std::ranges::find(whole.response_ids, whole.response_ids[5]) - whole.response_ids.begin();
  EXPECT_EQ(result.finish_reason, FinishReason::kStop);
  EXPECT_EQ(result.response_ids, std::vector<std::int32_t>(whole.response_ids.begin(),
                                                           whole.response_ids.begin() + first + 1));
}

// Both ends are due in the same token: the response is complete, not cut off.
TEST_F(RolloutViewTest, AStopInTheLastAllowedTokenIsAStop) {
  const RolloutResult whole = run(request(1, 12));
  const auto text = small_options(model_.config, Backend::kCpu, 64, Training::kNo).token_text;
  const std::int32_t stop = whole.response_ids[5];
  const auto first = std::ranges::find(whole.response_ids, stop) - whole.response_ids.begin();
  const auto size = static_cast<std::int32_t>(first) + 1;
  RolloutRequest by_id = request(1, size);
  by_id.stop_ids = {stop};
  RolloutRequest by_text = request(1, size);
  by_text.stop_strings = {text(stop)};
  for (const RolloutRequest& stopped : {by_id, by_text}) {
    const RolloutResult result = run(stopped);
    EXPECT_EQ(result.finish_reason, FinishReason::kStop);
    EXPECT_EQ(std::ssize(result.response_ids), size);
  }
}

TEST_F(RolloutViewTest, AStopStringIsFoundAcrossTokens) {
  const RolloutResult whole = run(request(1, 12));
  const auto text = small_options(model_.config, Backend::kCpu, 64, Training::kNo).token_text;
  RolloutRequest stopped = request(1, 12);
  std::string stop;
  for (int t = 4; t < 7; ++t) {
    stop += text(whole.response_ids[static_cast<std::size_t>(t)]);
  }
  stopped.stop_strings = {stop};
  const RolloutResult result = run(stopped);
  EXPECT_EQ(result.finish_reason, FinishReason::kStop);
  std::string seen;
  for (const std::int32_t token : result.response_ids) {
    seen += text(token);
  }
  EXPECT_TRUE(seen.ends_with(stop)) << seen;
  EXPECT_LE(result.response_ids.size(), 7U);
}

TEST_F(RolloutViewTest, ScoresAPromptWithoutGenerating) {
  RolloutRequest scored = request(1, 0);
  scored.prompt_logprobs = true;
  scored.prompt_logits = true;
  const RolloutResult result = run(scored);
  EXPECT_EQ(result.finish_reason, FinishReason::kLength);
  EXPECT_TRUE(result.response_ids.empty());
  EXPECT_TRUE(result.versions.empty());
  EXPECT_EQ(result.prompt_logprobs.size(), 5U);
  EXPECT_EQ(result.prompt_logits.size(), 6U * static_cast<std::size_t>(model_.config.vocab_size));
}

// Logits are computed for at most 2,048 rows at a time. A pass with more rows has several parts.
TEST_F(RolloutViewTest, APromptLongerThanAPartOfTheLogitsIsScoredLikeAShortOne) {
  const auto scores = [&](std::int64_t budget) {
    const auto runtime =
        open_runtime(model_, small_options(model_.config, Backend::kCpu, 2304, Training::kNo))
            .value();
    RolloutRequest scored = request(1, 3);
    scored.prompt_ids = sampling_request(9, model_.config, 2200, 1).prompt_ids;
    scored.prompt_logprobs = true;
    ResultKeeper results;
    run_requests(runtime->rollout(), {scored}, results, budget);
    return results.at(1);
  };
  const RolloutResult in_chunks = scores(700);
  EXPECT_EQ(in_chunks.prompt_logprobs.size(), 2199U);
  expect_same_result(scores(2300), in_chunks);
}

// Prompts are scored without the temperature, in the order of their tokens.
TEST_F(RolloutViewTest, ReturnsTheMostProbableTokens) {
  RolloutRequest asked = request(1, 5);
  asked.prompt_logprobs = true;
  asked.top_logprobs = 4;
  asked.prompt_top_logprobs = 2;
  asked.sampling.temperature = 0.7F;
  const RolloutResult result = run(asked);
  ASSERT_EQ(result.top_logprobs.size(), 5U * 4U);
  ASSERT_EQ(result.prompt_top_logprobs.size(), (asked.prompt_ids.size() - 1) * 2);
  const auto check = [](std::span<const TokenLogprob> top, std::int32_t token, float logprob) {
    for (std::size_t i = 0; i < top.size(); ++i) {
      if (i > 0) {
        EXPECT_GE(top[i - 1].logprob, top[i].logprob);
      }
      if (top[i].token == token) {
        EXPECT_EQ(top[i].logprob, logprob);  // the same bits
        return;
      }
    }
    EXPECT_LE(logprob, top.back().logprob);
  };
  for (std::size_t i = 0; i < 5; ++i) {
    check(std::span(result.top_logprobs).subspan(4 * i, 4), result.response_ids[i],
          result.behavior_logprobs[i]);
  }
  for (std::size_t i = 0; i + 1 < asked.prompt_ids.size(); ++i) {
    check(std::span(result.prompt_top_logprobs).subspan(2 * i, 2), asked.prompt_ids[i + 1],
          result.prompt_logprobs[i]);
  }
  // Asking for them changes no token.
  RolloutRequest plain = asked;
  plain.top_logprobs = plain.prompt_top_logprobs = 0;
  EXPECT_EQ(run(plain).response_ids, result.response_ids);
}

TEST_F(RolloutViewTest, ReportsTheTokensFoundInTheCache) {
  RolloutRequest first = sampling_request(1, model_.config, 40, 2);
  EXPECT_EQ(run(first).cached_tokens, 0);
  RolloutRequest second = first;
  second.id = {2};
  EXPECT_EQ(run(second).cached_tokens, 40);
}

TEST_F(RolloutViewTest, ScoresOfAPromptDoNotDependOnTheTemperature) {
  RolloutRequest scored = request(1, 2);
  scored.prompt_logprobs = true;
  const RolloutResult plain = run(scored);
  scored.sampling.temperature = 0.5F;
  const RolloutResult sharper = run(scored);
  EXPECT_EQ(sharper.prompt_logprobs, plain.prompt_logprobs);
  EXPECT_NE(sharper.behavior_logprobs, plain.behavior_logprobs);
}

// Requests of one pass keep their own temperatures, whatever their order.
TEST_F(RolloutViewTest, TemperaturesOfOtherRequestsDoNotMatter) {
  std::vector<RolloutRequest> requests;
  for (const float temperature : {1.0F, 0.5F, 0.0F, 0.5F, 2.0F, 2.0F, 1.0F}) {
    requests.push_back(request(requests.size(), 6));
    requests.back().sampling.temperature = temperature;
  }
  ResultKeeper mixed;
  run_requests(engine(), requests, mixed);
  for (const RolloutRequest& each : requests) {
    expect_same_result(mixed.at(each.id.value), run(each));
  }
}

// The frequency and presence penalties count the response only, the repetition penalty the prompt
// too.
TEST_F(RolloutViewTest, PenaltiesDistinguishPromptAndResponse) {
  RolloutRequest penalized = request(1, 3);
  const std::int32_t favorite = penalized.prompt_ids[2];
  penalized.sampling.temperature = 0.0F;
  penalized.sampling.logit_bias = {{favorite, 1000.0F}};
  EXPECT_EQ(run(penalized).response_ids, std::vector<std::int32_t>(3, favorite));
  for (float SamplingOptions::*penalty :
       {&SamplingOptions::frequency_penalty, &SamplingOptions::presence_penalty}) {
    RolloutRequest once = penalized;
    once.sampling.*penalty = 2000.0F;
    const auto response = run(once).response_ids;
    EXPECT_EQ(response[0], favorite) << "it occurs only in the prompt";
    EXPECT_NE(response[1], favorite);
    EXPECT_NE(response[2], favorite);
  }
  penalized.sampling.repetition_penalty = 1e6F;
  EXPECT_NE(run(penalized).response_ids[0], favorite);
}

TEST_F(RolloutViewTest, CancelReturnsTheTokensGenerated) {
  ASSERT_TRUE(engine().submit(request(1, 12), keeper_).ok());
  ASSERT_TRUE(engine().submit(request(2, 12), keeper_).ok());
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(engine().step({64}).ok());
  }
  engine().cancel({1});
  engine().cancel({99});
  EXPECT_EQ(keeper_.at(1).finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(keeper_.at(1).response_ids.size(), 4U);
  run_to_end(engine());
  EXPECT_EQ(keeper_.at(2).response_ids.size(), 12U);
  EXPECT_EQ(keeper_.size(), 2U);
}

TEST_F(RolloutViewTest, ARequestWaitsForItsStep) {
  RolloutRequest later = request(1, 3);
  later.min_step = 2;
  ASSERT_TRUE(engine().submit(later, keeper_).ok());
  EXPECT_FALSE(engine().has_work());
  ASSERT_TRUE(engine().submit(request(2, 3), keeper_).ok());
  run_to_end(engine());
  EXPECT_TRUE(keeper_.has(2));
  ASSERT_TRUE(engine().load(snapshot_of(small_model(4), 1), WeightArrival::kFinish).ok());
  EXPECT_FALSE(engine().has_work());
  ASSERT_TRUE(engine().load(snapshot_of(small_model(4), 2), WeightArrival::kFinish).ok());
  EXPECT_TRUE(engine().has_work());
  run_to_end(engine());
  EXPECT_EQ(keeper_.at(1).versions, (std::vector<VersionSpan>{{PolicyVersion{0, 0, 2}, 3}}));
}

TEST_F(RolloutViewTest, NewWeightsServeOnceSequencesInFlightHaveEnded) {
  const RolloutResult before = run(request(1, 8));
  ASSERT_TRUE(engine().submit(request(1, 8), keeper_).ok());
  ASSERT_TRUE(engine().step({64}).ok());
  ASSERT_TRUE(engine().load(snapshot_of(small_model(4), 1), WeightArrival::kFinish).ok());
  ASSERT_TRUE(engine().submit(request(2, 8), keeper_).ok());
  EXPECT_EQ(engine().serving_version(), PolicyVersion{});
  run_to_end(engine());
  EXPECT_EQ(engine().serving_version(), (PolicyVersion{0, 0, 1}));
  expect_same_result(keeper_.at(1), before);
  EXPECT_EQ(keeper_.at(2).versions, (std::vector<VersionSpan>{{PolicyVersion{0, 0, 1}, 8}}));
  // The same as in an engine that was opened with the new weights.
  const auto fresh = open(small_model(4));
  ResultKeeper results;
  run_requests(fresh->rollout(), {request(2, 8)}, results);
  EXPECT_EQ(results.at(2).response_ids, keeper_.at(2).response_ids);
  EXPECT_EQ(results.at(2).behavior_logprobs, keeper_.at(2).behavior_logprobs);
}

TEST_F(RolloutViewTest, CancellingTheLastSequenceInFlightActivatesNewWeights) {
  ASSERT_TRUE(engine().submit(request(1, 8), keeper_).ok());
  ASSERT_TRUE(engine().step({2}).ok());
  ASSERT_TRUE(engine().load(snapshot_of(small_model(4), 1), WeightArrival::kFinish).ok());
  EXPECT_EQ(engine().serving_version().step, 0U);
  engine().cancel({1});
  EXPECT_EQ(engine().serving_version().step, 1U);
}

TEST_F(RolloutViewTest, SnapshotsAreVerified) {
  Snapshot damaged = snapshot_of(small_model(4), 1);
  damaged.base_digest[0] = damaged.base_digest[0] == '0' ? '1' : '0';
  EXPECT_EQ(engine().load(damaged, WeightArrival::kFinish).code(), Errc::kCorruptData);

  Snapshot partial = snapshot_of(small_model(4), 1);
  partial.base.erase("model.norm.weight");
  partial.base_digest = digest_tensors(partial.base);
  const Status missing = engine().load(partial, WeightArrival::kFinish);
  EXPECT_EQ(missing.code(), Errc::kInvalidArgument);
  EXPECT_NE(missing.message().find("model.norm.weight"), std::string::npos);

  Snapshot adapted = snapshot_of(model_, 1);
  adapted.adapter = small_adapter(model_.config, 1).tensors;
  adapted.adapter_digest = digest_tensors(adapted.adapter);
  EXPECT_EQ(engine().load(adapted, WeightArrival::kFinish).code(), Errc::kInvalidArgument);

  Snapshot unknown = snapshot_of(small_model(4), 1);
  unknown.base.clear();
  EXPECT_EQ(engine().load(unknown, WeightArrival::kFinish).code(), Errc::kInvalidArgument);

  ASSERT_TRUE(engine().load(snapshot_of(model_, 5), WeightArrival::kFinish).ok());
  const Status stale = engine().load(snapshot_of(model_, 4), WeightArrival::kFinish);
  EXPECT_EQ(stale.code(), Errc::kStaleVersion);
  Snapshot same = snapshot_of(model_, 6);
  same.base.clear();  // an equal digest keeps the base
  EXPECT_TRUE(engine().load(same, WeightArrival::kFinish).ok());
  EXPECT_EQ(engine().serving_version().step, 6U);
}

TEST_F(RolloutViewTest, NonFiniteLogitsFailOnlyTheirSample) {
  const std::int32_t poison = 7;
  ModelFiles broken = model_;
  Tensor& table = broken.tensors.at("model.embed_tokens.weight");
  std::vector<float> values(static_cast<std::size_t>(table.num_elements()));
  widen_floats(table, values);
  std::fill_n(values.begin() + poison * model_.config.hidden_size, model_.config.hidden_size,
              std::numeric_limits<float>::quiet_NaN());
  table = make_float_tensor(values, table.shape, DType::kF32);
  const auto runtime = open(broken);
  std::vector<RolloutRequest> requests;
  for (std::uint64_t id = 0; id < 4; ++id) {
    RolloutRequest r = request(id, 8);
    std::ranges::replace(r.prompt_ids, poison, 8);
    r.sampling.logit_bias = {{poison, -std::numeric_limits<float>::max()}};
    requests.push_back(r);
  }
  ResultKeeper sound;
  for (const std::uint64_t id : {0U, 1U, 3U}) {
    run_requests(runtime->rollout(), {requests[id]}, sound);
  }
  requests[2].prompt_ids[3] = poison;
  requests[2].prompt_logprobs = true;
  ResultKeeper mixed;
  run_requests(runtime->rollout(), requests, mixed);
  EXPECT_EQ(mixed.at(2).finish_reason, FinishReason::kFailed);
  EXPECT_NE(mixed.at(2).error.find("finite"), std::string::npos) << mixed.at(2).error;
  EXPECT_NE(mixed.at(2).error.find("2"), std::string::npos) << mixed.at(2).error;
  for (const std::uint64_t id : {0U, 1U, 3U}) {
    EXPECT_EQ(mixed.at(id).finish_reason, FinishReason::kLength);
    expect_same_result(mixed.at(id), sound.at(id));
  }
  // Pages that held non-finite values do not affect the sequences that get them next.
  ResultKeeper again;
  run_requests(runtime->rollout(), {requests[0]}, again);
  expect_same_result(again.at(0), sound.at(0));
}

TEST_F(RolloutViewTest, BadRequestsAreRefused) {
  RolloutRequest bad = request(1, 4);
  bad.prompt_ids.clear();
  expect_refused(bad, Errc::kInvalidArgument, "empty prompt sample_id=1");
  bad = request(1, 4);
  bad.prompt_ids[2] = static_cast<std::int32_t>(model_.config.vocab_size);
  expect_refused(bad, Errc::kInvalidArgument, "prompt_ids: token");
  bad.prompt_ids[2] = -1;
  expect_refused(bad, Errc::kInvalidArgument, "outside the vocabulary");
  bad = request(1, -1);
  expect_refused(bad, Errc::kInvalidArgument, "max_new_tokens");
  bad = request(1, 4);
  bad.sampling.temperature = -1.0F;
  expect_refused(bad, Errc::kInvalidArgument, "temperature");
  bad = request(1, 4);
  bad.top_logprobs = kMaxTopLogprobs + 1;
  expect_refused(bad, Errc::kInvalidArgument, "top_logprobs");
  bad = request(1, 4);
  bad.prompt_top_logprobs = 1;
  expect_refused(bad, Errc::kInvalidArgument, "needs prompt_logprobs");
  bad = request(1, 4);
  bad.stop_strings = {""};
  expect_refused(bad, Errc::kInvalidArgument, "stop");
  bad = request(1, std::numeric_limits<std::int32_t>::max());
  expect_refused(bad, Errc::kResourceExhausted, "exceed the context of");
  bad = request(1, 251);
  ASSERT_GE(model_.config.max_positions, 257);
  EXPECT_TRUE(engine().submit(bad, keeper_).ok()) << "256 tokens are cached";
  EXPECT_EQ(engine().submit(bad, keeper_).code(), Errc::kInvalidArgument) << "already queued";
  engine().cancel({1});
  bad = request(1, 252);
  expect_refused(bad, Errc::kResourceExhausted, "exceed the cache of 256 tokens sample_id=1");
}

TEST_F(RolloutViewTest, StopStringsNeedTheTextOfTokens) {
  RuntimeOptions options = small_options(model_.config, Backend::kCpu, 64, Training::kNo);
  options.token_text = nullptr;
  const auto runtime = open_runtime(model_, options).value();
  RolloutRequest bad = request(1, 4);
  bad.stop_strings = {"x"};
  EXPECT_EQ(runtime->rollout().submit(bad, keeper_).code(), Errc::kInvalidArgument);
}

// A sink may submit and cancel from inside a step.
TEST_F(RolloutViewTest, ASinkMaySubmitAndCancel) {
  class Chain final : public RolloutSink {
  public:
    Chain(RolloutEngine& engine, const ModelConfig& model) : engine_(engine), model_(model) {}
    void on_rollout(RolloutResult result) override {
      const std::uint64_t id = result.id.value;
      ids.push_back(id);
      engine_.cancel({id + 100});
      if (id < 5) {
        ASSERT_TRUE(engine_.submit(sampling_request(id + 1, model_, 6, 2), *this).ok());
      }
    }
    std::vector<std::uint64_t> ids;

  private:
    RolloutEngine& engine_;
    const ModelConfig& model_;
  };
  Chain chain(engine(), model_.config);
  ASSERT_TRUE(engine().submit(request(1, 2), chain).ok());
  ASSERT_TRUE(engine().submit(request(101, 2), keeper_).ok());
  run_to_end(engine());
  EXPECT_EQ(chain.ids, (std::vector<std::uint64_t>{1, 2, 3, 4, 5}));
  EXPECT_EQ(keeper_.at(101).finish_reason, FinishReason::kLength)
      << "it ended in the same step as the first request";
}

}  // namespace
}  // namespace tidemill::engines
