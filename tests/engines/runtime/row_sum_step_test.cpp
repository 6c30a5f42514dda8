// SPDX-License-Identifier: Apache-2.0
// Tests a runtime on a backend that keeps R2 (engines/ops/ops.hpp) only at multiples of a step:
// training gives the same bits for every split, and windows that cut sums elsewhere are refused.
#include <cstdint>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"
#include "engines/runtime/backends.hpp"
#include "engines/runtime/runtime_context.hpp"
#include "tests/engines/ops/stepped_ops.hpp"
#include "tests/engines/runtime/job_steps.hpp"
#include "tests/engines/runtime/runtime_bench.hpp"

namespace tidemill::engines {
namespace {

constexpr std::int64_t kSumStep = 8;

class RuntimeSumStepTest : public ::testing::Test {
protected:
  [[nodiscard]] RuntimeOptions options(std::int64_t window_tokens) const {
    RuntimeOptions options = small_options(model_.config, Backend::kReference, 512, Training::kYes);
    options.factory = &stepped_;
    options.window_tokens = window_tokens;
    return options;
  }

  // Returns nine sequences of 2 to 31 tokens. The first three share a prompt of 11 tokens.
  [[nodiscard]] std::vector<TrainSequence> sequences() const {
    RandomStream random(3);
    std::vector<TrainSequence> all;
    for (std::uint64_t id = 0; id < 9; ++id) {
      const RolloutRequest request =
          sampling_request(id, model_.config, 2 + static_cast<std::int64_t>(random.below(30)), 1);
      TrainSequence sequence;
      sequence.id = request.id;
      if (id < 3) {
        sequence.ids = sampling_request(100, model_.config, 11, 1).prompt_ids;
        sequence.response_mask.assign(sequence.ids.size(), 0);
      }
      for (const std::int32_t token : request.prompt_ids) {
        const bool after_prompt = id < 3 && sequence.ids.size() == 11;
        sequence.ids.push_back(token);
        sequence.response_mask.push_back(after_prompt || random.below(3) != 0 ? 1 : 0);
      }
      all.push_back(std::move(sequence));
    }
    return all;
  }

  // Trains one step in micro-batches of `budget` tokens. The moments represent the gradients.
  [[nodiscard]] TensorMap moments(std::int64_t window_tokens, std::int64_t budget) const {
    const auto runtime = open_runtime(model_, options(window_tokens)).value();
    TrainingJob& job = *runtime->policy_job();
    WeightedLoss loss;
    EXPECT_TRUE(begin(job, sequences(), &loss).ok());
    while (job.has_work()) {
      EXPECT_TRUE(job.advance({budget}).ok());
    }
    EXPECT_TRUE(update(job).ok());
    return optimizer_state(job).value();
  }

  ModelFiles model_ = small_model(5);
  SteppedBackend stepped_{kSumStep};
};

TEST_F(RuntimeSumStepTest, AnySplitGivesTheSameBits) {
  for (const std::int64_t window : {std::int64_t{0}, kSumStep, 2 * kSumStep}) {
    const TensorMap whole = moments(window, 100000);
    for (const std::int64_t budget : {1, 20, 33, 64}) {
      EXPECT_TRUE(same_tensors(moments(window, budget), whole)) << window << " " << budget;
    }
  }
}

TEST_F(RuntimeSumStepTest, WindowsThatCutSumsElsewhereAreRefused) {
  const auto refused = open_runtime(model_, options(kSumStep + 4));
  EXPECT_EQ(refused.status().code(), Errc::kInvalidArgument);
  EXPECT_EQ(refused.status().message(),
            "window_tokens: 12 is not a multiple of 8, the rows that backend stepped sums at a "
            "time");
  RuntimeOptions generates = options(kSumStep + 4);
  generates.optimizer.reset();  // windows are of training alone
  EXPECT_TRUE(open_runtime(model_, generates).ok());
}

TEST_F(RuntimeSumStepTest, ChunksOfTheHeadAreMultiplesOfTheStep) {
  ModelConfig config = model_.config;
  EXPECT_EQ(RuntimeContext::chunk_rows(config, 24, {kSumStep}), 24);
  EXPECT_EQ(RuntimeContext::chunk_rows(config, 0, {kSumStep}), 2048);
  config.vocab_size = std::int64_t{1} << 30U;
  EXPECT_EQ(RuntimeContext::chunk_rows(config, 0, {}), 16);
  EXPECT_EQ(RuntimeContext::chunk_rows(config, 0, {12}), 12);
  EXPECT_EQ(RuntimeContext::chunk_rows(config, 0, {64}), 64);
}

TEST(BackendTraits, OfAFactoryAreThoseOfItsDevices) {
  const SteppedBackend stepped(kSumStep);
  Workers workers(1);
  for (const BackendFactory* factory :
       {&backend_factory(Backend::kCpu), &backend_factory(Backend::kReference),
        &backend_factory(Backend::kGuarded), static_cast<const BackendFactory*>(&stepped)}) {
    const auto ops = factory->open(workers, {}).value();
    EXPECT_EQ(ops->traits(), factory->traits()) << factory->name();
    EXPECT_EQ(ops->traits().row_sum_step, factory == &stepped ? kSumStep : 1) << factory->name();
  }
}

}  // namespace
}  // namespace tidemill::engines
