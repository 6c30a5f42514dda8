// SPDX-License-Identifier: Apache-2.0
// Compares training on sequences with a shared prompt, whose rows are computed once, with training
// on the same sequences stepped one by one, which share nothing.
#include "engines/runtime/shared_prompts.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/random.hpp"
#include "tests/engines/runtime/job_steps.hpp"
#include "tests/engines/runtime/runtime_bench.hpp"
#include "tests/engines/transformer/random_model.hpp"

namespace tidemill::engines {
namespace {

// Returns a sequence of a prompt and random response tokens. The first `untargeted` response tokens
// are not targets.
TrainSequence sequence_of(std::uint64_t id, const std::vector<std::int32_t>& prompt,
                          std::int64_t response_tokens, std::int64_t untargeted,
                          const ModelConfig& model, RandomStream& random) {
  TrainSequence sequence;
  sequence.id = {id};
  sequence.ids = prompt;
  const auto response = random_ids(model, response_tokens, random);
  sequence.ids.insert(sequence.ids.end(), response.begin(), response.end());
  sequence.response_mask.assign(prompt.size(), 0);
  for (std::int64_t t = 0; t < response_tokens; ++t) {
    sequence.response_mask.push_back(t == untargeted || (t > untargeted && random.below(4) != 0));
  }
  return sequence;
}

// Returns groups whose prompts end before, at and after the end of a page, and sequences that share
// nothing: a single one, one without targets, and one with another first target.
std::vector<TrainSequence> groups(const ModelConfig& model) {
  RandomStream random(7);
  std::vector<TrainSequence> all;
  std::uint64_t id = 0;
  for (const auto& [prompt_tokens, members] : std::vector<std::pair<std::int64_t, int>>{
           {16, 3}, {1, 2}, {17, 2}, {2, 4}, {5, 1}, {35, 3}, {18, 2}}) {
    const auto prompt = random_ids(model, prompt_tokens, random);
    for (int member = 0; member < members; ++member) {
      const auto tokens = static_cast<std::int64_t>(1 + random.below(24));
      all.push_back(sequence_of(id++, prompt, tokens, 0, model, random));
    }
    if (members == 4) {
      all.push_back(sequence_of(id++, prompt, 9, 2, model, random));
      all.push_back(sequence_of(id++, prompt, 9, 9, model, random));
      all.push_back(sequence_of(id++, prompt, 9, 0, model, random));
    }
  }
  return all;
}

std::vector<SharedPrompt> prompts_of(const std::vector<TrainSequence>& sequences) {
  std::vector<const TrainSequence*> pointers;
  for (const TrainSequence& sequence : sequences) {
    pointers.push_back(&sequence);
  }
  return find_shared_prompts(pointers);
}

TEST(SharedPromptsTest, AreThoseOfNeighborsWithTheSameBeginning) {
  std::vector<std::pair<std::int64_t, bool>> found;
  for (const SharedPrompt& prompt : prompts_of(groups(small_model(5).config))) {
    found.emplace_back(prompt.num_tokens, prompt.last);
  }
  const std::vector<std::pair<std::int64_t, bool>> expected{
      {15, false}, {15, false}, {15, true},  {0, true},  {0, true},   {16, false}, {16, true},
      {1, false},  {1, false},  {1, false},  {1, true},  {0, true},   {0, true},   {0, true},
      {0, true},   {34, false}, {34, false}, {34, true}, {17, false}, {17, true}};
  EXPECT_EQ(found, expected);
  EXPECT_THAT(find_shared_prompts({}), ::testing::IsEmpty());
}

struct Kind {
  Backend backend = Backend::kCpu;
  std::string adapter;  // of `adapter_samples`; empty: all parameters are trained
  DType dtype = DType::kF32;
  Recompute recompute = Recompute::kNone;
  std::int64_t window_tokens = 0;
};

std::string describe(const Kind& kind) {
  std::string words = backend_name(kind.backend) + "_" +
                      (kind.adapter.empty() ? "full" : kind.adapter) + "_" +
                      std::string(dtype_name(kind.dtype)) + "_" + recompute_name(kind.recompute) +
                      (kind.window_tokens > 0 ? "_windows" : "");
  return words;
}

std::ostream& operator<<(std::ostream& out, const Kind& kind) {
  return out << describe(kind);
}

// The result of a batch: loss, log-probabilities, and moments, which represent the gradients.
struct Trained {
  LossSums sums;
  std::vector<std::vector<float>> logprobs;
  TensorMap moments;
  std::int64_t rows = 0;
};

class SharedPromptTrainingTest : public ::testing::TestWithParam<Kind> {
protected:
  SharedPromptTrainingTest() : model_(small_model(5)), batch_(groups(model_.config)) {}

  [[nodiscard]] RuntimeOptions options() const {
    RuntimeOptions options =
        small_options(model_.config, GetParam().backend, 1024, Training::kYes, GetParam().dtype);
    options.recompute = GetParam().recompute;
    options.window_tokens = GetParam().window_tokens;
    if (!GetParam().adapter.empty()) {
      options.adapter = sample_adapter(model_, GetParam().adapter, 9);
    }
    return options;
  }

  // Trains on the batch in steps of `budget`. If `apart` is set, each sequence is a batch of
  // its own, and all gradients are accumulated.
  [[nodiscard]] Trained train(const RuntimeOptions& options, std::int64_t budget,
                              bool apart = false) const {
    const auto runtime = open_runtime(model_, options).value();
    TrainingJob& engine = *runtime->policy_job();
    Trained trained;
    WeightedLoss loss;
    const auto run = [&](const std::vector<TrainSequence>& batch) {
      ASSERT_TRUE(begin(engine, batch, &loss, 0.8F).ok());
      while (engine.has_work()) {
        const auto report = engine.advance({budget});
        ASSERT_TRUE(report.ok()) << report.status().to_string();
        trained.rows += report.value().train_tokens;
      }
      for (const TrainSequence& sequence : batch) {
        trained.logprobs.push_back(engine.logprobs(sequence.id).value());
      }
    };
    if (apart) {
      for (const TrainSequence& sequence : batch_) {
        run({sequence});
      }
    } else {
      run(batch_);
    }
    const auto report = update(engine);
    EXPECT_TRUE(report.ok()) << report.status().to_string();
    trained.sums = report.value().sums;
    trained.moments = optimizer_state(engine).value();
    return trained;
  }

  ModelFiles model_;
  std::vector<TrainSequence> batch_;
};

TEST_P(SharedPromptTrainingTest, GivesTheSameBitsForEverySplit) {
  const Trained whole = train(options(), 100000);
  RuntimeOptions tight = options();
  tight.kv_bytes =
      small_options(model_.config, GetParam().backend, 96, Training::kYes, GetParam().dtype)
          .kv_bytes;
  tight.threads = 1;
  EXPECT_TRUE(same_tensors(train(tight, 100000).moments, whole.moments));
  for (const std::int64_t budget : {1, 17, 40, 64, 101}) {
    const Trained split = train(options(), budget);
    EXPECT_EQ(split.sums, whole.sums) << budget;
    EXPECT_EQ(split.logprobs, whole.logprobs) << budget;
    EXPECT_TRUE(same_tensors(split.moments, whole.moments)) << budget;
  }
}

TEST_P(SharedPromptTrainingTest, GivesTheResultsOfTheSameSequencesAlone) {
  const Trained shared = train(options(), 100000);
  const Trained alone = train(options(), 100000, /*apart=*/true);
  EXPECT_EQ(shared.logprobs, alone.logprobs);
  EXPECT_EQ(shared.rows, alone.rows - 2 * 15 - 16 - 3 * 1 - 2 * 34 - 17);
  // In f32, only the order of sums differs. With bfloat16, the backward pass also rounds one
  // gradient of the shared prompt instead of several gradients that are summed.
  const double tolerance = GetParam().dtype == DType::kF32 ? 1e-5 : 1.0 / 128.0;
  double largest = 0.0;
  for (const auto& [name, tensor] : alone.moments) {
    if (!name.starts_with("first_moment.")) {
      continue;
    }
    const auto expected = tensor.data.as<float>();
    const auto actual = shared.moments.at(name).data.as<float>();
    double apart = 0.0;
    double size = 0.0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      apart = std::max(apart, std::abs(double{actual[i]} - double{expected[i]}));
      size = std::max(size, std::abs(double{expected[i]}));
    }
    EXPECT_LE(apart, tolerance * size) << name << ", " << size;
    largest = std::max(largest, size > 0.0 ? apart / size : 0.0);
  }
  EXPECT_GT(largest, 0.0) << "nothing was shared";
  std::cout << "[ measured ] " << GetParam() << ": at most " << largest << " apart\n";
}

TEST_P(SharedPromptTrainingTest, AnAbandonedBatchLeavesNoTrace) {
  const Trained expected = train(options(), 100000);
  const auto runtime = open_runtime(model_, options()).value();
  TrainingJob& engine = *runtime->policy_job();
  WeightedLoss loss;
  ASSERT_TRUE(begin(engine, batch_, &loss, 0.8F).ok());
  ASSERT_TRUE(engine.advance({20}).ok());  // the gradient of the first prompt is carried
  engine.cancel();
  ASSERT_TRUE(begin(engine, batch_, &loss, 0.8F).ok());
  while (engine.has_work()) {
    ASSERT_TRUE(engine.advance({100000}).ok());
  }
  ASSERT_TRUE(update(engine).ok());
  EXPECT_TRUE(same_tensors(optimizer_state(engine).value(), expected.moments));
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, SharedPromptTrainingTest,
    ::testing::Values(Kind{Backend::kReference, "lora"}, Kind{Backend::kReference, ""},
                      Kind{Backend::kGuarded, ""}, Kind{Backend::kGuarded, "lora"},
                      Kind{Backend::kCpu, ""}, Kind{Backend::kCpu, "lora"},
                      Kind{Backend::kCpu, "lora", DType::kBF16},
                      Kind{Backend::kCpu, "", DType::kBF16},
                      Kind{Backend::kCpu, "lora", DType::kBF16, Recompute::kCheap},
                      Kind{Backend::kCpu, "lora", DType::kF32, Recompute::kLayer},
                      Kind{Backend::kCpu, "lora", DType::kF32, Recompute::kNone, 8},
                      Kind{Backend::kReference, "", DType::kF32, Recompute::kCheap, 5},
                      Kind{Backend::kCpu, "norms", DType::kF32, Recompute::kLayer, 8},
                      Kind{Backend::kCpu, "saved", DType::kBF16, Recompute::kLayer, 7}),
    [](const auto& test) { return describe(test.param); });

}  // namespace
}  // namespace tidemill::engines
