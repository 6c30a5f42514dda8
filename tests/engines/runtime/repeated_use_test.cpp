// SPDX-License-Identifier: Apache-2.0
// A runtime that is used again: what a batch, a failed request, a version or an older snapshot
// leaves behind must not act on what follows.
#include <chrono>
#include <cstdint>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/clock.hpp"
#include "base/digest.hpp"
#include "base/random.hpp"
#include "base/tensor/float_tensor.hpp"
#include "engines/ops/reference/factory.hpp"
#include "engines/runtime/generated_rows.hpp"
#include "engines/runtime/memory_estimate.hpp"
#include "engines/runtime/weight_cache.hpp"
#include "engines/transformer/activations.hpp"
#include "tests/engines/runtime/job_steps.hpp"
#include "tests/engines/runtime/runtime_bench.hpp"
#include "tests/engines/transformer/random_model.hpp"

namespace tidemill::engines {
namespace {

constexpr std::int64_t kLarge = 100000;

// -- batches --------------------------------------------------------------------------------------

// What is trained: a kind of adapter, or all parameters of a model with or without a tied head.
struct Subject {
  std::string adapter;  // of `adapter_samples`; empty: all parameters
  bool tied = false;
  friend std::ostream& operator<<(std::ostream& out, const Subject& subject) {
    return out << (subject.adapter.empty() ? "full" : subject.adapter)
               << (subject.tied ? "_tied" : "");
  }
};

ModelFiles model_of(const Subject& subject, std::uint64_t seed = 5) {
  ModelFiles model;
  model.config = small_config({.tied = subject.tied,
                               .biases = true,
                               .qk_norm = true,
                               .sliding = true,
                               .scaled_rope = false});
  model.tensors = random_weights(model.config, seed);
  return model;
}

class RepeatedUseTest : public ::testing::TestWithParam<Subject> {
protected:
  RepeatedUseTest() : model_(model_of(GetParam())), runtime_(open()) {}

  [[nodiscard]] std::unique_ptr<ModelRuntime> open() const {
    RuntimeOptions options = small_options(model_.config, Backend::kCpu, 512, Training::kYes);
    if (!GetParam().adapter.empty()) {
      options.adapter = sample_adapter(model_, GetParam().adapter, 9);
    }
    return open_runtime(model_, options).value();
  }

  // Returns two groups that share prompts, a group of one, a sequence without targets, and one with
  // masked tokens between its targets.
  [[nodiscard]] std::vector<TrainSequence> sequences(std::uint64_t seed) const {
    RandomStream random(seed);
    std::vector<TrainSequence> all;
    for (const auto& [prompt_tokens, members] :
         std::vector<std::pair<std::int64_t, int>>{{18, 3}, {5, 1}, {33, 2}, {1, 2}}) {
      const auto prompt = random_ids(model_.config, prompt_tokens, random);
      for (int member = 0; member < members; ++member) {
        TrainSequence sequence;
        sequence.id = {all.size()};
        sequence.ids = prompt;
        const auto response =
            random_ids(model_.config, 1 + static_cast<std::int64_t>(random.below(12)), random);
        sequence.ids.insert(sequence.ids.end(), response.begin(), response.end());
        sequence.response_mask.assign(prompt.size(), 0);
        sequence.response_mask.resize(sequence.ids.size(), all.size() == 3 ? 0 : 1);
        if (all.size() == 4) {
          sequence.response_mask[sequence.response_mask.size() / 2 + 16] = 0;
        }
        all.push_back(std::move(sequence));
      }
    }
    return all;
  }

  static void add(TrainingJob& engine, const std::vector<TrainSequence>& batch, TokenLoss* loss) {
    ASSERT_TRUE(begin(engine, batch, loss, 0.8F).ok());
  }

  static UpdateReport train(TrainingJob& engine, const std::vector<TrainSequence>& batch,
                            std::int64_t budget = kLarge) {
    WeightedLoss loss;
    add(engine, batch, &loss);
    while (engine.has_work()) {
      const auto report = engine.advance({budget});
      EXPECT_TRUE(report.ok()) << report.status().to_string();
    }
    return update(engine).value();
  }

  static TensorMap trained(TrainingJob& engine, std::uint64_t step) {
    const Snapshot snapshot = publish(engine, {0, 0, step}).value();
    return GetParam().adapter.empty() ? snapshot.base : snapshot.adapter;
  }

  // Expects that training goes on as in a runtime that has only done `before`.
  void expect_like_fresh(const std::vector<std::uint64_t>& before) {
    const auto fresh = open();
    for (const std::uint64_t seed : before) {
      train(*fresh->policy_job(), sequences(seed));
    }
    const UpdateReport expected = train(*fresh->policy_job(), sequences(7));
    const UpdateReport report = train(engine(), sequences(7));
    EXPECT_EQ(report.sums, expected.sums);
    EXPECT_EQ(report.gradient_norm, expected.gradient_norm);
    EXPECT_EQ(report.optimizer_step, expected.optimizer_step);
    EXPECT_TRUE(same_tensors(trained(engine(), 9), trained(*fresh->policy_job(), 9)));
    EXPECT_TRUE(same_tensors(optimizer_state(engine()).value(),
                             optimizer_state(*fresh->policy_job()).value()));
    EXPECT_EQ(runtime_->rollout().step({1}).value().kv_use, 0.0) << "every page is free";
  }

  TrainingJob& engine() { return *runtime_->policy_job(); }

  ModelFiles model_;
  std::unique_ptr<ModelRuntime> runtime_;
};

// Each budget ends the batch at another place, also between two sequences that share a prompt,
// whose gradient is then carried.
TEST_P(RepeatedUseTest, AnAbandonedBatchLeavesNothing) {
  for (const std::int64_t budget : {1, 24, 60}) {
    WeightedLoss loss;
    add(engine(), sequences(1), &loss);
    ASSERT_TRUE(engine().advance({budget}).ok());
    ASSERT_TRUE(engine().has_work());
    engine().cancel();
    EXPECT_FALSE(engine().has_work());
    EXPECT_EQ(update(engine()).status().code(), Errc::kInvalidArgument);
    EXPECT_EQ(engine().logprobs({0}).status().code(), Errc::kNotFound);
  }
  expect_like_fresh({});
}

// Cancels within a micro-batch: in its forward pass, at the head, and in its backward pass.
TEST_P(RepeatedUseTest, ABatchThatEndsAtAnyUnitLeavesNothing) {
  for (const std::int64_t units : {1, 2, 5, 9, 14, 23, 40}) {
    WeightedLoss loss;
    add(engine(), sequences(1), &loss);
    StepBudget budget{24};  // several micro-batches
    budget.units = units;
    const auto report = engine().advance(budget);
    ASSERT_TRUE(report.ok());
    EXPECT_LE(report.value().train_units, units);
    EXPECT_TRUE(engine().has_work());
    engine().cancel();
    EXPECT_FALSE(engine().has_work());
  }
  add(engine(), sequences(2), nullptr);
  ASSERT_TRUE(engine().advance({24}).ok());
  engine().cancel();
  expect_like_fresh({});
}

// A step that is cancelled before it has changed a weight leaves nothing; a later one is completed,
// with its layout.
TEST_P(RepeatedUseTest, AStepThatEndsAtAnyUnitIsWholeOrNothing) {
  const auto batch = sequences(1);
  const auto fresh = open();
  std::int64_t steps = 0;
  bool ended = false;
  for (std::int64_t units = 1; !ended; units += 1 + units / 3) {
    WeightedLoss loss;
    add(engine(), batch, &loss);
    ASSERT_TRUE(run_to_end(engine()).ok());
    ASSERT_TRUE(engine().optim_step().ok());
    StepBudget budget;
    budget.units = units;
    const auto report = engine().advance(budget);
    ASSERT_TRUE(report.ok()) << report.status().to_string();
    ended = !report.value().more;
    engine().cancel();
    EXPECT_FALSE(engine().has_work());
    const TensorMap state = optimizer_state(engine()).value();
    const std::int64_t now = state.at("step").data.as<std::int64_t>()[0];
    ASSERT_TRUE(now == steps || now == steps + 1) << units;
    EXPECT_TRUE(now == steps + 1 || units < 4) << "units of the norm, before weights change";
    if (now > steps) {
      train(*fresh->policy_job(), batch);
      ++steps;
    }
    EXPECT_TRUE(same_tensors(trained(engine(), 1), trained(*fresh->policy_job(), 1))) << units;
    add(engine(), batch, nullptr);
    add(*fresh->policy_job(), batch, nullptr);
    ASSERT_TRUE(run_to_end(engine()).ok());
    ASSERT_TRUE(run_to_end(*fresh->policy_job()).ok());
    for (const TrainSequence& sequence : batch) {
      EXPECT_EQ(engine().logprobs(sequence.id).value(),
                fresh->policy_job()->logprobs(sequence.id).value())
          << units;
    }
  }
  EXPECT_GT(steps, 2);
  expect_like_fresh(std::vector<std::uint64_t>(static_cast<std::size_t>(steps), 1));
}

// A loss that fails at its second call, when the gradients of the first are already summed.
TEST_P(RepeatedUseTest, ABatchThatFailsLateLeavesNothing) {
  class FailingLater final : public TokenLoss {
  public:
    Status evaluate(std::span<const LossSequence> rows, LossSums& sums) override {
      ++calls_;
      return calls_ < 2 ? loss_.evaluate(rows, sums) : invalid_argument("no advantage");
    }

  private:
    WeightedLoss loss_;
    int calls_ = 0;
  };
  train(engine(), sequences(1));
  FailingLater loss;
  add(engine(), sequences(2), &loss);
  ASSERT_TRUE(engine().advance({1}).ok());
  EXPECT_EQ(engine().advance({1}).status().message(), "no advantage");
  EXPECT_FALSE(engine().has_work());
  expect_like_fresh({1});
}

TEST_P(RepeatedUseTest, EveryMinibatchStartsFromTheWeightsOfTheLast) {
  const TensorMap start = trained(engine(), 0);
  const UpdateReport first = train(engine(), sequences(1));
  const TensorMap after_one = trained(engine(), 1);
  const UpdateReport second = train(engine(), sequences(1), 24);
  const TensorMap after_two = trained(engine(), 2);
  EXPECT_FALSE(same_tensors(after_one, start));
  EXPECT_FALSE(same_tensors(after_two, after_one));
  EXPECT_NE(second.sums.at("loss"), first.sums.at("loss")) << "the same batch under new weights";
  EXPECT_EQ(second.optimizer_step, 2);
  expect_like_fresh({1, 1});
}

// Scores the same sequences under weights that come and go: those of the start, of each update, and
// of an older snapshot again.
TEST_P(RepeatedUseTest, ScoresDependOnTheSnapshotAlone) {
  const auto probe = sequences(3);
  std::vector<Snapshot> snapshots = {runtime_->initial()};
  for (std::uint64_t step = 1; step <= 3; ++step) {
    train(engine(), sequences(step));
    snapshots.push_back(publish(engine(), {0, 0, step}).value());
  }
  train(engine(), sequences(4));  // not committed
  std::vector<std::vector<std::vector<float>>> scores;
  for (const Snapshot& snapshot : snapshots) {
    scores.push_back(engine().score(snapshot, probe, 0.8F).value());
  }
  for (std::size_t i = 1; i < scores.size(); ++i) {
    EXPECT_NE(scores[i], scores[i - 1]) << i;
  }
  for (const std::size_t i : {3UL, 0UL, 2UL, 0UL, 1UL}) {
    EXPECT_EQ(engine().score(snapshots[i], probe, 0.8F).value(), scores[i]) << i;
  }
  const auto other = open();
  EXPECT_EQ(other->policy_job()->score(snapshots[2], probe, 0.8F).value(), scores[2]);
}

TEST_P(RepeatedUseTest, RestoringAnOlderSnapshotContinuesFromIt) {
  train(engine(), sequences(1));
  const Snapshot older = publish(engine(), {0, 0, 1}).value();
  const TensorMap state = optimizer_state(engine()).value();
  const auto probe = sequences(3);
  const auto score = engine().score(older, probe, 0.8F).value();
  for (int round = 0; round < 2; ++round) {
    train(engine(), sequences(2));
    train(engine(), sequences(4));
    (void)publish(engine(), {0, 0, 3}).value();
    WeightedLoss loss;
    add(engine(), sequences(5), &loss);
    ASSERT_TRUE(engine().advance({24}).ok());
    ASSERT_TRUE(engine().load(older, state).ok());
    EXPECT_FALSE(engine().has_work()) << "the open batch ended";
    EXPECT_EQ(update(engine()).status().code(), Errc::kInvalidArgument);
    EXPECT_TRUE(same_tensors(optimizer_state(engine()).value(), state));
    EXPECT_EQ(engine().score(older, probe, 0.8F).value(), score);
    add(engine(), probe, nullptr);
    while (engine().has_work()) {
      ASSERT_TRUE(engine().advance({kLarge}).ok());
    }
    for (std::size_t i = 0; i < probe.size(); ++i) {
      EXPECT_EQ(engine().logprobs(probe[i].id).value(), score[i]);
    }
  }
  expect_like_fresh({1});
}

// Published versions are served one after the other; the first one is served again at the end,
// under a new version.
TEST_P(RepeatedUseTest, EveryPublishedVersionIsServed) {
  RolloutRequest request = sampling_request(1, model_.config, 20, 12);
  const auto generate = [&](ModelRuntime& runtime) {
    ResultKeeper results;
    run_requests(runtime.rollout(), {request}, results);
    return results.at(1);
  };
  const RolloutResult first = generate(*runtime_);
  std::vector<RolloutResult> results;
  for (std::uint64_t step = 1; step <= 4; ++step) {
    train(engine(), sequences(step));
    const Snapshot snapshot = publish(engine(), {0, 0, step}).value();
    ASSERT_TRUE(runtime_->rollout().load(snapshot, WeightArrival::kFinish).ok());
    results.push_back(generate(*runtime_));
    EXPECT_EQ(results.back().versions, (std::vector<VersionSpan>{{{0, 0, step}, 12}}));
    const auto fresh = open();
    ASSERT_TRUE(fresh->policy_job()->load(snapshot, optimizer_state(engine()).value()).ok());
    ASSERT_TRUE(fresh->rollout().load(snapshot, WeightArrival::kFinish).ok());
    expect_same_result(results.back(), generate(*fresh));
  }
  EXPECT_NE(results[0].behavior_logprobs, first.behavior_logprobs);
  EXPECT_NE(results[1].behavior_logprobs, results[0].behavior_logprobs);
  Snapshot again = runtime_->initial();
  again.version.step = 5;
  ASSERT_TRUE(runtime_->rollout().load(again, WeightArrival::kFinish).ok());
  EXPECT_EQ(generate(*runtime_).behavior_logprobs, first.behavior_logprobs);
}

INSTANTIATE_TEST_SUITE_P(Subjects, RepeatedUseTest,
                         ::testing::Values(Subject{}, Subject{"", true}, Subject{"lora"},
                                           Subject{"dora", true}, Subject{"ends", true},
                                           Subject{"norms"}, Subject{"saved", true}),
                         ::testing::PrintToStringParamName());

// -- requests -------------------------------------------------------------------------------------

class RepeatedRequestsTest : public ::testing::Test {
protected:
  RepeatedRequestsTest() { open(256); }

  void open(std::int64_t cache_tokens, Training training = Training::kNo) {
    RuntimeOptions options = small_options(model_.config, Backend::kCpu, cache_tokens, training);
    options.clock = &clock_;
    runtime_ = open_runtime(model_, options).value();
  }

  [[nodiscard]] RolloutRequest request(std::uint64_t id, std::int32_t max_new_tokens) const {
    return sampling_request(id, model_.config, 6, max_new_tokens);
  }

  static Snapshot snapshot_of(const ModelFiles& model, std::uint64_t step) {
    Snapshot snapshot;
    snapshot.version.step = step;
    snapshot.base = model.tensors;
    snapshot.base_digest = digest_tensors(snapshot.base);
    return snapshot;
  }

  RolloutEngine& engine() { return runtime_->rollout(); }

  ManualClock clock_;
  ModelFiles model_ = small_model(3);
  std::unique_ptr<ModelRuntime> runtime_;
};

TEST_F(RepeatedRequestsTest, AnEngineIsAsNewAfterRequestsThatFailed) {
  const RolloutRequest good = request(1, 10);
  ResultKeeper expected;
  run_requests(engine(), {good}, expected);
  open(256);
  for (int round = 0; round < 3; ++round) {
    ResultKeeper results;
    RolloutRequest bad = request(2, 4);
    bad.prompt_ids[0] = -1;
    EXPECT_FALSE(engine().submit(bad, results).ok());
    bad = request(2, 1000);
    EXPECT_EQ(engine().submit(bad, results).code(), Errc::kResourceExhausted);
    bad = request(2, 4);
    bad.stop_strings = {"x", ""};
    EXPECT_FALSE(engine().submit(bad, results).ok());
    bad = request(2, 4);
    bad.adapter = "none";
    EXPECT_EQ(engine().submit(bad, results).code(), Errc::kNotFound);
    ASSERT_TRUE(engine().submit(request(3, 30), results).ok());
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(engine().step({64}).ok());
    }
    engine().cancel({3});
    EXPECT_EQ(results.size(), 1U);
    EXPECT_FALSE(engine().has_work());
    ResultKeeper again;
    run_requests(engine(), {good, request(2, 4)}, again);  // the id of a refused request is free
    expect_same_result(again.at(1), expected.at(1));
    EXPECT_EQ(engine().step({1}).value().kv_use, 0.0) << "every page is free";
  }
}

// The share of pages that running sequences hold, to the page.
TEST_F(RepeatedRequestsTest, TheUseOfTheCacheIsReported) {
  ResultKeeper results;
  RolloutRequest one = request(1, 40);
  one.prompt_ids = sampling_request(1, model_.config, 17, 1).prompt_ids;
  RolloutRequest two = request(2, 40);
  two.prompt_ids = sampling_request(2, model_.config, 30, 1).prompt_ids;
  ASSERT_TRUE(engine().submit(one, results).ok());
  ASSERT_TRUE(engine().submit(two, results).ok());
  EXPECT_EQ(engine().step({64}).value().kv_use, 4.0 / 16.0);
  EXPECT_EQ(engine().step({64}).value().kv_use, 4.0 / 16.0);
  EXPECT_EQ(engine().step({64}).value().kv_use, 4.0 / 16.0);  // 32 tokens
  EXPECT_EQ(engine().step({64}).value().kv_use, 5.0 / 16.0);  // 33
  engine().cancel({2});
  EXPECT_EQ(engine().step({64}).value().kv_use, 2.0 / 16.0);
  engine().cancel({1});
}

// A preemption is reported by the next step, once.
TEST_F(RepeatedRequestsTest, PreemptionsForTrainingAreReportedOnce) {
  RolloutRequest scored = request(1, 20);
  scored.prompt_logprobs = true;
  ResultKeeper undisturbed;
  run_requests(engine(), {scored, request(2, 20)}, undisturbed);
  open(64, Training::kYes);
  ResultKeeper results;
  ASSERT_TRUE(engine().submit(scored, results).ok());
  ASSERT_TRUE(engine().submit(request(2, 20), results).ok());
  EXPECT_EQ(engine().step({64}).value().preemptions, 0);
  TrainSequence long_sequence;
  long_sequence.id = {1};
  long_sequence.ids = sampling_request(5, model_.config, 60, 1).prompt_ids;
  long_sequence.response_mask.assign(60, 1);
  TrainingJob& trainer = *runtime_->policy_job();
  ASSERT_TRUE(begin(trainer, {long_sequence}, nullptr).ok());
  ASSERT_TRUE(trainer.advance({64}).ok());
  EXPECT_EQ(engine().step({64}).value().preemptions, 2);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(engine().step({64}).value().preemptions, 0) << i;
  }
  run_to_end(engine());
  EXPECT_EQ(results.at(1).prompt_logprobs.size(), 5U) << "scored once";
  expect_same_result(results.at(1), undisturbed.at(1));
  expect_same_result(results.at(2), undisturbed.at(2));
}

// Only the first sequence of a micro-batch may take pages from running requests. The second one
// waits for the next micro-batch instead.
TEST_F(RepeatedRequestsTest, TrainingPreemptsNothingToFillAMicroBatch) {
  open(128, Training::kYes);
  ResultKeeper results;
  RolloutRequest running = request(1, 20);
  running.prompt_ids = sampling_request(4, model_.config, 33, 1).prompt_ids;
  ASSERT_TRUE(engine().submit(running, results).ok());
  ASSERT_TRUE(engine().step({64}).ok());  // holds 3 of 8 pages
  TrainingJob& trainer = *runtime_->policy_job();
  std::vector<TrainSequence> batch;
  for (std::uint64_t id = 1; id <= 2; ++id) {
    TrainSequence sequence;
    sequence.id = {id};
    sequence.ids = sampling_request(10 + id, model_.config, 47, 1).prompt_ids;
    sequence.response_mask.assign(47, 1);
    batch.push_back(std::move(sequence));
  }
  ASSERT_TRUE(begin(trainer, std::move(batch), nullptr).ok());
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(trainer.has_work());
    EXPECT_EQ(trainer.advance({kLarge}).value().train_tokens, 46);
  }
  EXPECT_FALSE(trainer.has_work());
  EXPECT_EQ(engine().step({64}).value().preemptions, 0);
  run_to_end(engine());
}

// Weights that wait for the last sequence in flight are served when that sequence exceeds its time
// limit, also the second time.
TEST_F(RepeatedRequestsTest, WaitingWeightsServeWhenTheLastRequestIsOverdue) {
  for (std::uint64_t step = 1; step <= 2; ++step) {
    ResultKeeper results;
    RolloutRequest slow = request(step, 40);
    slow.time_limit = std::chrono::seconds(1);
    ASSERT_TRUE(engine().submit(slow, results).ok());
    ASSERT_TRUE(engine().step({64}).ok());
    ASSERT_TRUE(
        engine().load(snapshot_of(small_model(3 + step), step), WeightArrival::kFinish).ok());
    ASSERT_TRUE(engine().submit(request(10 + step, 3), results).ok());
    EXPECT_EQ(engine().serving_version().step, step - 1);
    clock_.advance(std::chrono::seconds(1));
    ASSERT_TRUE(engine().step({64}).ok());
    EXPECT_EQ(engine().serving_version().step, step);
    EXPECT_TRUE(results.has(step));
    run_to_end(engine());
    EXPECT_EQ(results.at(10 + step).versions, (std::vector<VersionSpan>{{{0, 0, step}, 3}}));
  }
}

TEST_F(RepeatedRequestsTest, OnlyVersionsFromTheNewestOnAreLoaded) {
  const ModelFiles other = small_model(4);
  ASSERT_TRUE(engine().load(snapshot_of(other, 3), WeightArrival::kFinish).ok());
  EXPECT_TRUE(engine().load(snapshot_of(other, 3), WeightArrival::kFinish).ok()) << "again";
  ResultKeeper results;
  ASSERT_TRUE(engine().submit(request(1, 8), results).ok());
  ASSERT_TRUE(engine().step({64}).ok());
  ASSERT_TRUE(engine().load(snapshot_of(model_, 6), WeightArrival::kFinish).ok());
  EXPECT_EQ(engine().serving_version().step, 3U);
  EXPECT_EQ(engine().load(snapshot_of(other, 5), WeightArrival::kFinish).code(),
            Errc::kStaleVersion)
      << "newer than what is served, but older than what waits";
  ASSERT_TRUE(engine().load(snapshot_of(other, 7), WeightArrival::kFinish).ok())
      << "replaces what waits";
  run_to_end(engine());
  EXPECT_EQ(engine().serving_version().step, 7U);
}

// A sink may look at the loaded adapters: a request that has ended uses none.
TEST_F(RepeatedRequestsTest, AFinishedRequestNoLongerUsesItsAdapter) {
  RuntimeOptions options = small_options(model_.config, Backend::kCpu, 256, Training::kNo);
  options.adapter_bytes = std::int64_t{1} << 20U;
  runtime_ = open_runtime(model_, options).value();
  ASSERT_TRUE(runtime_->adapters().load({"a", {}, small_adapter(model_.config, 1)}).ok());
  class Counting final : public RolloutSink {
  public:
    explicit Counting(ModelRuntime& runtime) : runtime_(runtime) {}
    void on_rollout(RolloutResult /*result*/) override {
      users.push_back(runtime_.adapters().loaded()[0].num_requests);
    }
    std::vector<std::int64_t> users;

  private:
    ModelRuntime& runtime_;
  };
  Counting sink(*runtime_);
  for (std::uint64_t id = 1; id <= 3; ++id) {
    RolloutRequest adapted = request(id, static_cast<std::int32_t>(2 * id));
    adapted.adapter = "a";
    ASSERT_TRUE(engine().submit(adapted, sink).ok());
  }
  EXPECT_EQ(runtime_->adapters().loaded()[0].num_requests, 3);
  run_to_end(engine());
  EXPECT_EQ(sink.users, (std::vector<std::int64_t>{2, 1, 0}));
}

// Pages that a replaced adapter computed are freed, so a later adapter with its content computes
// them again.
TEST_F(RepeatedRequestsTest, PagesOfAReplacedAdapterAreDropped) {
  RuntimeOptions options = small_options(model_.config, Backend::kCpu, 256, Training::kNo);
  options.adapter_bytes = std::int64_t{1} << 20U;
  runtime_ = open_runtime(model_, options).value();
  std::uint64_t id = 0;
  const auto cached = [&] {
    ResultKeeper results;
    RolloutRequest adapted = sampling_request(3, model_.config, 40, 3);
    adapted.id = {++id};
    adapted.adapter = "a";
    EXPECT_TRUE(engine().submit(adapted, results).ok());
    std::int64_t tokens = 0;
    while (engine().has_work()) {
      tokens += engine().step({512}).value().cached_tokens;
    }
    return tokens;
  };
  for (std::uint64_t round = 0; round < 3; ++round) {
    const AdapterFiles files = small_adapter(model_.config, 1 + round % 2);
    ASSERT_TRUE(runtime_->adapters().load({"a", PolicyVersion{0, 0, round}, files}).ok());
    EXPECT_EQ(cached(), 0) << round;
    EXPECT_EQ(cached(), 40) << round;
  }
}

// Twenty versions of two adapters in a budget for three.
TEST_F(RepeatedRequestsTest, ReplacedAdaptersGiveTheirMemoryBack) {
  RuntimeOptions options = small_options(model_.config, Backend::kCpu, 256, Training::kNo);
  options.adapter_bytes = std::int64_t{1} << 20U;
  runtime_ = open_runtime(model_, options).value();
  const AdapterFiles files = small_adapter(model_.config, 1);
  ASSERT_TRUE(runtime_->adapters().load({"a", {}, files}).ok());
  const std::int64_t size = runtime_->adapters().loaded()[0].size_bytes;
  options.adapter_bytes = 3 * size;
  runtime_ = open_runtime(model_, options).value();
  NamedAdapters& adapters = runtime_->adapters();
  ASSERT_TRUE(adapters.load({"b", {}, files}).ok());
  for (std::uint64_t step = 0; step < 20; ++step) {
    const Status status =
        adapters.load({"a", PolicyVersion{0, 0, step}, small_adapter(model_.config, step)});
    ASSERT_TRUE(status.ok()) << step << ": " << status.to_string();
    ResultKeeper results;
    RolloutRequest adapted = request(step, 3);
    adapted.adapter = "a";
    run_requests(engine(), {adapted}, results);
    EXPECT_EQ(results.at(step).versions, (std::vector<VersionSpan>{{{0, 0, step}, 3}}));
    EXPECT_EQ(adapters.loaded()[0].version.step, step);
  }
  EXPECT_TRUE(adapters.load({"a", PolicyVersion{0, 0, 19}, files}).ok())
      << "the same version again";
  // A request in flight keeps the version that it started with, which takes the third place.
  ResultKeeper results;
  RolloutRequest adapted = request(100, 10);
  adapted.adapter = "a";
  ASSERT_TRUE(engine().submit(adapted, results).ok());
  ASSERT_TRUE(engine().step({64}).ok());
  ASSERT_TRUE(adapters.load({"a", PolicyVersion{0, 0, 20}, files}).ok());
  EXPECT_EQ(adapters.load({"a", PolicyVersion{0, 0, 21}, files}).code(), Errc::kResourceExhausted);
  EXPECT_EQ(adapters.load({"c", {}, files}).code(), Errc::kResourceExhausted);
  run_to_end(engine());
  EXPECT_EQ(results.at(100).versions, (std::vector<VersionSpan>{{{0, 0, 19}, 10}}));
  EXPECT_TRUE(adapters.load({"c", {}, files}).ok());
}

// -- rows kept by generation ----------------------------------------------------------------------

// A budget for the rows of one version serves every version.
TEST(KeptRowsTest, EveryVersionHasTheWholeRoom) {
  const ModelFiles model = small_model(5);
  RuntimeOptions options = small_options(model.config, Backend::kCpu, 8192, Training::kYes);
  constexpr std::int64_t kPrompt = 30;
  constexpr std::int32_t kResponse = 20;
  // Room for exactly the rows of one version.
  constexpr std::uint64_t kRequests = 40;
  options.generated_bytes =
      generated_bytes(model.config, options, kRequests * (kPrompt + kResponse - 1));
  const auto runtime = open_runtime(model, options).value();
  TrainingJob& engine = *runtime->policy_job();
  for (std::uint64_t step = 1; step <= 4; ++step) {
    std::vector<RolloutRequest> all;
    for (std::uint64_t id = 0; id < kRequests; ++id) {
      all.push_back(sampling_request(1000 * step + id, model.config, kPrompt, kResponse));
      all.back().keep_rows = true;
    }
    // Rows that no request asks to keep take no room.
    for (std::uint64_t id = 0; id < 60; ++id) {
      all.push_back(sampling_request(100000 + 100 * step + id, model.config, 2, kResponse));
    }
    ResultKeeper results;
    run_requests(runtime->rollout(), all, results, kLarge);
    WeightedLoss loss;
    std::vector<TrainSequence> batch;
    std::int64_t computed = 0;
    for (std::uint64_t id = 0; id < kRequests; ++id) {
      batch.push_back(to_sequence(all[id], results.at(all[id].id.value)));
    }
    ASSERT_TRUE(begin(engine, std::move(batch), &loss).ok());
    std::int64_t first = 0;
    while (engine.has_work()) {
      const std::int64_t count = engine.advance({kLarge}).value().train_tokens;
      first = first == 0 ? count : first;
      computed += count;
    }
    for (std::uint64_t id = 0; id < kRequests; ++id) {
      const std::vector<float> logprobs = engine.logprobs(all[id].id).value();
      const std::vector<float> of_response(logprobs.begin() + kPrompt, logprobs.end());
      EXPECT_EQ(of_response, results.at(all[id].id.value).behavior_logprobs) << id;
    }
    const UpdateReport report = update(engine).value();
    EXPECT_EQ(first, kPrompt + kResponse - 1) << "the first sequence is always computed";
    EXPECT_EQ(report.recalled_tokens, computed - first) << step;
    const Snapshot snapshot = publish(engine, {0, 0, step}).value();
    ASSERT_TRUE(runtime->rollout().load(snapshot, WeightArrival::kFinish).ok());
  }
}

// Equal weights under a new version: the rows of the version before are gone, so the prompts are
// computed again although their pages would serve.
TEST(KeptRowsTest, EqualWeightsOfANewVersionKeepAllRowsAgain) {
  const ModelFiles model = small_model(5);
  RuntimeOptions options = small_options(model.config, Backend::kCpu, 1024, Training::kYes);
  options.generated_bytes = std::int64_t{64} << 20U;
  const auto runtime = open_runtime(model, options).value();
  TrainingJob& engine = *runtime->policy_job();
  for (std::uint64_t step = 1; step <= 3; ++step) {
    std::vector<RolloutRequest> all;
    for (std::uint64_t id = 0; id < 4; ++id) {
      all.push_back(sampling_request(id, model.config, 30, 8));
      all.back().id = {10 * step + id};
      all.back().keep_rows = true;
    }
    ResultKeeper results;
    run_requests(runtime->rollout(), all, results);
    std::vector<TrainSequence> batch;
    for (const RolloutRequest& request : all) {
      batch.push_back(to_sequence(request, results.at(request.id.value)));
    }
    ASSERT_TRUE(begin(engine, std::move(batch), nullptr).ok());
    while (engine.has_work()) {
      ASSERT_TRUE(engine.advance({kLarge}).ok());
    }
    for (std::size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(engine.recalled(all[i].id), i > 0) << step << ", " << i;
    }
    const Snapshot snapshot = publish(engine, {0, 0, step}).value();
    ASSERT_TRUE(runtime->rollout().load(snapshot, WeightArrival::kFinish).ok());
  }
}

// Direct counts: a row takes room once, to the last record of the budget, and `clear` frees all.
TEST(KeptRowsTest, RoomIsCountedToTheRow) {
  const ModelConfig config = small_config({});
  const auto ops = make_reference_ops();
  const std::int64_t row_bytes = Activations::bytes_per_row(config, 0);
  constexpr std::int64_t kCapacity = 70;
  const std::int64_t limit = GeneratedRows::bytes_for(kCapacity, config, 0, row_bytes);
  GeneratedRows rows(config, 0, {}, {.row_bytes = row_bytes, .byte_limit = limit}, *ops);
  ASSERT_TRUE(rows.reserve(kCapacity).ok());
  const auto keys_from = [](std::int32_t first, std::int64_t count) {
    std::vector<std::optional<DigestKey>> keys;
    for (std::int64_t i = 0; i < count; ++i) {
      TokenChain chain("weights");
      keys.emplace_back(chain.append(first + static_cast<std::int32_t>(i)));
    }
    return keys;
  };
  for (int round = 0; round < 3; ++round) {
    EXPECT_TRUE(rows.has_room(kCapacity));
    EXPECT_FALSE(rows.has_room(kCapacity + 1));
    std::vector<std::optional<DigestKey>> keys = keys_from(0, 20);
    (void)rows.begin_pass(keys);
    EXPECT_TRUE(rows.has_room(kCapacity - 20));
    EXPECT_FALSE(rows.has_room(kCapacity - 19));
    keys = keys_from(10, 20);  // ten of them again, and one that is not kept
    keys.push_back(std::nullopt);
    (void)rows.begin_pass(keys);
    EXPECT_TRUE(rows.has_room(kCapacity - 30));
    EXPECT_FALSE(rows.has_room(kCapacity - 29));
    EXPECT_EQ(rows.size_bytes(), limit / kCapacity * 30);
    rows.clear();
  }
  EXPECT_EQ(rows.size_bytes(), limit / kCapacity * 30) << "memory is kept for the next version";
}

// -- bases ----------------------------------------------------------------------------------------

// The layout of a DoRA adapter depends on the norms of its base. The same adapter is served over
// one base, over another, and over the first again, in every type of weights.
TEST(TwoBasesTest, AnAdapterWithMagnitudesIsLaidOutForEach) {
  // Every row divides into the blocks of int8 and of NF4.
  const auto model_of_blocks = [](std::uint64_t seed) {
    ModelFiles model;
    model.config = small_config({.biases = true, .qk_norm = true});
    model.config.hidden_size = 64;
    model.config.intermediate_size = 128;
    model.config.num_heads = 8;
    model.tensors = random_weights(model.config, seed);
    return model;
  };
  const ModelFiles first = model_of_blocks(3);
  const ModelFiles second = model_of_blocks(4);
  const AdapterFiles adapter = sample_adapter(first, "dora", 9);
  for (const DType compute : {DType::kF32, DType::kBF16, DType::kBlockI8, DType::kNf4}) {
    SCOPED_TRACE(dtype_name(compute));
    const auto open = [&](const ModelFiles& model) {
      RuntimeOptions options = small_options(model.config, Backend::kCpu, 256, Training::kNo);
      options.compute = compute;
      options.adapter = adapter;
      return open_runtime(model, options).value();
    };
    const auto generate = [&](ModelRuntime& runtime, std::uint64_t id) {
      RolloutRequest request = sampling_request(7, first.config, 9, 12);
      request.id = {id};
      ResultKeeper results;
      run_requests(runtime.rollout(), {request}, results);
      return results.at(id).behavior_logprobs;
    };
    const auto snapshot_of = [&](const ModelFiles& model, std::uint64_t step) {
      Snapshot snapshot;
      snapshot.version.step = step;
      snapshot.base = model.tensors;
      snapshot.base_digest = digest_tensors(snapshot.base);
      snapshot.adapter = adapter.tensors;
      snapshot.adapter_digest = digest_tensors(snapshot.adapter);
      return snapshot;
    };
    const auto over_first = generate(*open(first), 1);
    const auto over_second = generate(*open(second), 1);
    EXPECT_NE(over_first, over_second);
    const auto runtime = open(first);
    EXPECT_EQ(generate(*runtime, 1), over_first);
    std::uint64_t step = 0;
    for (const ModelFiles* model : {&first, &second, &first, &second}) {
      ASSERT_TRUE(
          runtime->rollout().load(snapshot_of(*model, ++step), WeightArrival::kFinish).ok());
      EXPECT_EQ(generate(*runtime, 1), model == &first ? over_first : over_second) << step;
    }
  }
}

}  // namespace
}  // namespace tidemill::engines
