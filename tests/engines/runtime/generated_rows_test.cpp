// SPDX-License-Identifier: Apache-2.0
// Training on rows that generation kept gives the same bits as running the layers again, and finds
// no rows of other weights or tokens.
#include "engines/runtime/generated_rows.hpp"

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/engines/runtime/job_steps.hpp"
#include "tests/engines/runtime/runtime_bench.hpp"
#include "tests/engines/transformer/random_model.hpp"

namespace tidemill::engines {
namespace {

struct GeneratedKind {
  Backend backend = Backend::kCpu;
  std::string adapter;  // of `adapter_samples`; empty: all parameters are trained
  DType dtype = DType::kF32;
  std::int64_t window_tokens = 0;
};

std::string describe(const GeneratedKind& kind) {
  return backend_name(kind.backend) + "_" + (kind.adapter.empty() ? "full" : kind.adapter) + "_" +
         std::string(dtype_name(kind.dtype)) + (kind.window_tokens > 0 ? "_windows" : "");
}

std::ostream& operator<<(std::ostream& out, const GeneratedKind& kind) {
  return out << describe(kind);
}

constexpr std::int64_t kManyBytes = std::int64_t{64} << 20U;

RuntimeOptions options_of(const GeneratedKind& kind, const ModelFiles& model,
                          std::int64_t generated_bytes, std::int64_t cache_tokens = 1024) {
  RuntimeOptions options =
      small_options(model.config, kind.backend, cache_tokens, Training::kYes, kind.dtype);
  options.generated_bytes = generated_bytes;
  options.window_tokens = kind.window_tokens;
  options.adapter_bytes = std::int64_t{4} << 20U;
  if (!kind.adapter.empty()) {
    options.adapter = sample_adapter(model, kind.adapter, 9);
  }
  return options;
}

// Returns groups of samples whose prompts end before, at and after the end of a page, prompts that
// share their first page, and samples of one prompt that are not neighbors.
std::vector<RolloutRequest> request_groups(const ModelConfig& model) {
  std::vector<RolloutRequest> all;
  std::uint64_t id = 0;
  for (const auto& [prompt_tokens, members] : std::vector<std::pair<std::int64_t, int>>{
           {16, 3}, {1, 2}, {17, 2}, {2, 3}, {5, 1}, {35, 3}}) {
    const auto prompt = sampling_request(id, model, prompt_tokens, 1).prompt_ids;
    for (int member = 0; member < members; ++member) {
      RolloutRequest request =
          sampling_request(id, model, 1, static_cast<std::int32_t>(2 + (id * 7) % 23));
      request.prompt_ids = prompt;
      request.keep_rows = true;
      all.push_back(std::move(request));
      ++id;
    }
  }
  all.push_back(sampling_request(id++, model, 1, 9));
  all.back().prompt_ids = all.front().prompt_ids;
  all.push_back(sampling_request(id++, model, 1, 4));
  all.back().prompt_ids = all.front().prompt_ids;
  all.back().prompt_ids.push_back(3);
  all[all.size() - 2].keep_rows = all.back().keep_rows = true;
  return all;
}

// The result of training on a batch.
struct TrainedRows {
  LossSums sums;
  std::vector<std::vector<float>> logprobs;
  TensorMap moments;
  std::int64_t rows = 0;
  std::int64_t checked = 0;  // rows of the first step, which are always computed
  std::int64_t recalled = 0;
  bool last_recalled = false;  // whether the last sequence was recalled
};

void expect_same(const TrainedRows& actual, const TrainedRows& expected) {
  EXPECT_EQ(actual.sums, expected.sums);
  EXPECT_EQ(actual.logprobs, expected.logprobs);
  EXPECT_TRUE(same_tensors(actual.moments, expected.moments));
}

// A runtime that generates sequences and trains on sequences.
class Learner {
public:
  explicit Learner(const ModelFiles& model, const RuntimeOptions& options)
      : runtime_(open_runtime(model, options).value()) {}

  std::vector<TrainSequence> generate(const std::vector<RolloutRequest>& requests,
                                      std::int64_t budget = 64) {
    ResultKeeper results;
    run_requests(runtime_->rollout(), requests, results, budget);
    std::vector<TrainSequence> sequences;
    for (const RolloutRequest& request : requests) {
      sequences.push_back(to_sequence(request, results.at(request.id.value)));
    }
    return sequences;
  }

  TrainedRows train(const std::vector<TrainSequence>& batch, std::int64_t budget = 100000) {
    TrainingJob& engine = *runtime_->policy_job();
    TrainedRows trained;
    WeightedLoss loss;
    EXPECT_TRUE(begin(engine, batch, &loss, 0.8F).ok());
    while (engine.has_work()) {
      const auto report = engine.advance({budget});
      EXPECT_TRUE(report.ok()) << report.status().to_string();
      trained.checked = trained.rows == 0 ? report.value().train_tokens : trained.checked;
      trained.rows += report.value().train_tokens;
    }
    for (const TrainSequence& sequence : batch) {
      trained.logprobs.push_back(engine.logprobs(sequence.id).value());
    }
    EXPECT_FALSE(engine.recalled(batch.front().id));
    trained.last_recalled = engine.recalled(batch.back().id);
    const auto report = update(engine);
    EXPECT_TRUE(report.ok()) << report.status().to_string();
    trained.sums = report.value().sums;
    trained.recalled = report.value().recalled_tokens;
    trained.moments = optimizer_state(engine).value();
    return trained;
  }

  void publish(std::uint64_t step) {
    const Snapshot snapshot = engines::publish(*runtime_->policy_job(), {0, 0, step}).value();
    ASSERT_TRUE(runtime_->rollout().load(snapshot, WeightArrival::kFinish).ok());
  }

  ModelRuntime& runtime() { return *runtime_; }

private:
  std::unique_ptr<ModelRuntime> runtime_;
};

class GeneratedRowsTest : public ::testing::TestWithParam<GeneratedKind> {
protected:
  GeneratedRowsTest() : model_(small_model(5)) {}

  [[nodiscard]] static bool trains_adapter() { return !GetParam().adapter.empty(); }
  [[nodiscard]] RuntimeOptions options(std::int64_t generated_bytes,
                                       std::int64_t cache_tokens = 1024) const {
    return options_of(GetParam(), model_, generated_bytes, cache_tokens);
  }

  ModelFiles model_;
};

TEST_P(GeneratedRowsTest, GiveTheSameBitsAsComputingThemAgain) {
  Learner keeping(model_, options(kManyBytes));
  Learner forgetting(model_, options(0));
  for (std::uint64_t step = 1; step <= 3; ++step) {
    const auto requests = request_groups(model_.config);
    const auto batch = keeping.generate(requests, step == 2 ? 7 : 64);
    EXPECT_EQ(batch.size(), forgetting.generate(requests).size());
    const std::int64_t budget = step == 3 ? 40 : 100000;
    const TrainedRows kept = keeping.train(batch, budget);
    const TrainedRows run_again = forgetting.train(batch, budget);
    expect_same(kept, run_again);
    EXPECT_EQ(kept.recalled, kept.rows - kept.checked) << step;
    EXPECT_TRUE(kept.last_recalled);
    EXPECT_EQ(run_again.recalled, 0);
    EXPECT_FALSE(run_again.last_recalled);
    keeping.publish(step);
    forgetting.publish(step);
  }
}

// Generation goes on, and its weights change, while a pass reads rows that were kept: the rows stay
// until the pass is done, and new rows find room only after it.
TEST_P(GeneratedRowsTest, StayWhileAPassReadsThem) {
  Learner keeping(model_, options(kManyBytes));
  Learner forgetting(model_, options(0));
  const auto batch = keeping.generate(request_groups(model_.config));
  (void)forgetting.generate(request_groups(model_.config));
  TrainingJob& job = *keeping.runtime().policy_job();
  Snapshot renamed = engines::publish(job, {0, 0, 1}).value();
  WeightedLoss loss;
  ASSERT_TRUE(begin(job, batch, &loss, 0.8F).ok());
  StepBudget one;
  one.units = 1;
  std::uint64_t turn = 0;  // of the passes after the first, which is always computed
  bool computed = false;
  std::vector<std::vector<float>> logprobs;
  while (job.has_work()) {
    const StepReport step = job.advance(one).value();
    turn += computed ? 1 : 0;
    computed = computed || step.train_tokens > 0;
    if (turn % 5 == 1) {  // other tokens under the same weights, as a new version
      renamed.version.step = 1 + turn;
      ASSERT_TRUE(keeping.runtime().rollout().load(renamed, WeightArrival::kFinish).ok());
      auto others = request_groups(model_.config);
      for (RolloutRequest& request : others) {
        request.draw_key = 1000 * turn + request.id.value;
      }
      EXPECT_EQ(keeping.generate(others).size(), others.size());
    }
  }
  EXPECT_GT(turn, 10U);
  for (const TrainSequence& sequence : batch) {
    logprobs.push_back(job.logprobs(sequence.id).value());
  }
  const UpdateReport report = update(job).value();
  const TrainedRows expected = forgetting.train(batch);
  EXPECT_EQ(logprobs, expected.logprobs);
  EXPECT_EQ(report.sums, expected.sums);
  EXPECT_GT(report.recalled_tokens, 0);
  EXPECT_TRUE(same_tensors(optimizer_state(job).value(), expected.moments));
}

// Rows that are only scored are not those of the batch that is trained.
TEST_P(GeneratedRowsTest, AreCountedForTheTrainedBatchAlone) {
  Learner keeping(model_, options(kManyBytes));
  const auto batch = keeping.generate(request_groups(model_.config));
  TrainingJob& job = *keeping.runtime().policy_job();
  ASSERT_TRUE(begin(job, batch, nullptr, 0.8F).ok());
  ASSERT_TRUE(run_to_end(job).ok());
  const TrainedRows kept = keeping.train(batch);
  EXPECT_EQ(kept.recalled, kept.rows - kept.checked);
}

TEST_P(GeneratedRowsTest, AreKeptForPreemptedSequences) {
  Learner keeping(model_, options(kManyBytes, 112));
  Learner forgetting(model_, options(0, 112));
  const auto batch = keeping.generate(request_groups(model_.config));
  const TrainedRows kept = keeping.train(batch);
  expect_same(kept, forgetting.train(batch));
  EXPECT_EQ(kept.recalled, kept.rows - kept.checked);
}

TEST_P(GeneratedRowsTest, AreKeptOnlyForRequestsThatAskForIt) {
  Learner keeping(model_, options(kManyBytes));
  Learner forgetting(model_, options(0));
  auto requests = request_groups(model_.config);
  requests[5].keep_rows = requests[6].keep_rows = false;  // a whole group
  const auto batch = keeping.generate(requests);
  TrainedRows kept = keeping.train(batch, 30);
  expect_same(kept, forgetting.train(batch, 30));
  EXPECT_GT(kept.recalled, 0);
  EXPECT_LT(kept.recalled, kept.rows);

  // Passes with rows of other adapters keep nothing.
  if (trains_adapter()) {
    Learner mixing(model_, options(kManyBytes));
    ASSERT_TRUE(
        mixing.runtime().adapters().load({"other", {}, small_adapter(model_.config, 3)}).ok());
    auto mixed = request_groups(model_.config);
    mixed[0].adapter = "other";
    mixed[0].max_new_tokens = 40;
    mixed[0].keep_rows = false;
    const auto others = mixing.generate(mixed, 1000);
    Learner again(model_, options(0));
    kept = mixing.train(others, 30);
    expect_same(kept, again.train(others, 30));
    EXPECT_LT(kept.recalled, kept.rows / 2);
  }
}

TEST_P(GeneratedRowsTest, AreNotFoundForOtherTokens) {
  Learner keeping(model_, options(kManyBytes));
  Learner forgetting(model_, options(0));
  auto batch = keeping.generate(request_groups(model_.config));
  batch[3].ids[1] = (batch[3].ids[1] + 1) % 7;  // an early token of a response
  const TrainedRows kept = keeping.train(batch, 30);
  expect_same(kept, forgetting.train(batch, 30));
  EXPECT_LT(kept.recalled, kept.rows);
  EXPECT_GT(kept.recalled, 0);
}

TEST_P(GeneratedRowsTest, AreNotFoundForOtherWeights) {
  Learner keeping(model_, options(kManyBytes));
  Learner forgetting(model_, options(0));
  const auto batch = keeping.generate(request_groups(model_.config));
  EXPECT_GT(keeping.train(batch).recalled, 0);
  (void)forgetting.train(batch);
  // First after an update without publication, then after a publication without generation.
  for (const bool published : {false, true}) {
    if (published) {
      keeping.publish(1);
      forgetting.publish(1);
    }
    const TrainedRows again = keeping.train(batch);
    EXPECT_EQ(again.recalled, 0) << published;
    expect_same(again, forgetting.train(batch));
  }
}

TEST_P(GeneratedRowsTest, AreKeptUntilMemoryIsFull) {
  Learner forgetting(model_, options(0));
  const auto requests = request_groups(model_.config);
  const auto batch = forgetting.generate(requests);
  const TrainedRows run_again = forgetting.train(batch, 30);
  std::int64_t smallest = -1;
  std::int64_t largest = 0;
  // Two MiB hold no rows or a part of them, depending on the kind. One byte holds none.
  for (const std::int64_t bytes : {std::int64_t{1}, std::int64_t{2} << 20U, kManyBytes}) {
    Learner keeping(model_, options(bytes));
    EXPECT_EQ(keeping.generate(requests).size(), batch.size());
    const TrainedRows kept = keeping.train(batch, 30);
    expect_same(kept, run_again);
    EXPECT_GE(kept.recalled, largest);
    largest = kept.recalled;
    smallest = smallest < 0 ? kept.recalled : smallest;
  }
  EXPECT_EQ(smallest, 0);
  EXPECT_GT(largest, run_again.rows / 2);
}

INSTANTIATE_TEST_SUITE_P(Kinds, GeneratedRowsTest,
                         ::testing::Values(GeneratedKind{Backend::kReference, "lora"},
                                           GeneratedKind{Backend::kReference, ""},
                                           GeneratedKind{Backend::kGuarded, "lora"},
                                           GeneratedKind{Backend::kGuarded, ""},
                                           GeneratedKind{Backend::kCpu, ""},
                                           GeneratedKind{Backend::kCpu, "lora"},
                                           GeneratedKind{Backend::kCpu, "lora", DType::kBF16},
                                           GeneratedKind{Backend::kCpu, "", DType::kBF16},
                                           GeneratedKind{Backend::kCpu, "lora", DType::kF32, 7},
                                           GeneratedKind{Backend::kCpu, "", DType::kF32, 16},
                                           GeneratedKind{Backend::kGuarded, "lora", DType::kF32, 5},
                                           GeneratedKind{Backend::kCpu, "dora"},
                                           GeneratedKind{Backend::kCpu, "ia3", DType::kBF16}),
                         [](const auto& test) { return describe(test.param); });

TEST(TokenChainTest, KeysDependOnWeightsAndAllTokens) {
  const auto name_of = [](std::string_view weights, const std::vector<std::int32_t>& tokens) {
    TokenChain chain(weights);
    DigestKey key;
    for (const std::int32_t token : tokens) {
      key = chain.append(token);
    }
    EXPECT_EQ(chain.length(), std::ssize(tokens));
    return key;
  };
  EXPECT_EQ(name_of("weights a", {1, 2}), name_of("weights a", {1, 2}));
  EXPECT_NE(name_of("weights a", {1, 2}), name_of("weights b", {1, 2}));
  EXPECT_NE(name_of("a", {1, 2}), name_of("a", {2, 2}));
  EXPECT_NE(name_of("a", {1, 2}), name_of("a", {1, 3}));
  EXPECT_NE(name_of("a", {2}), name_of("a", {1, 2}));
}

}  // namespace
}  // namespace tidemill::engines
