// SPDX-License-Identifier: Apache-2.0
// A layout of changed weights that runs out of device memory. The step is kept, and the layout is
// repeated before the weights are used.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"
#include "tests/engines/runtime/job_steps.hpp"
#include "tests/engines/runtime/runtime_bench.hpp"
#include "tests/engines/transformer/random_model.hpp"

namespace tidemill::engines {
namespace {

// What a job has computed after two steps, the first of which may have been disturbed.
struct Outcome {
  Snapshot first;
  Snapshot second;
  TensorMap state;
  std::vector<float> logprobs;  // after the first step
};

void expect_same(const Outcome& actual, const Outcome& expected) {
  for (const auto& [a, b] :
       {std::pair(&actual.first, &expected.first), std::pair(&actual.second, &expected.second)}) {
    EXPECT_TRUE(same_tensors(a->base, b->base));
    EXPECT_TRUE(same_tensors(a->adapter, b->adapter));
    EXPECT_EQ(a->base_digest, b->base_digest);
    EXPECT_EQ(a->adapter_digest, b->adapter_digest);
  }
  EXPECT_TRUE(same_tensors(actual.state, expected.state));
  EXPECT_EQ(actual.logprobs, expected.logprobs);
}

class JobFailuresTest : public ::testing::Test {
protected:
  [[nodiscard]] std::unique_ptr<ModelRuntime> open(Training training,
                                                   std::int64_t device_bytes) const {
    RuntimeOptions options = small_options(model_.config, Backend::kCpu, 128, training);
    options.trains_adapters = true;
    options.device_bytes = device_bytes;
    return open_runtime(model_, options).value();
  }

  [[nodiscard]] JobOptions job_options(const std::string& adapter) const {
    JobOptions options;
    options.adapter = sample_adapter(model_, adapter, 9);
    options.optimizer = *small_options(model_.config, Backend::kCpu, 64, Training::kYes).optimizer;
    options.activation_bytes = std::int64_t{1} << 20U;
    return options;
  }

  // Opens a job that does nothing but hold memory.
  [[nodiscard]] std::unique_ptr<TrainingJob> open_holder(ModelRuntime& runtime) const {
    return runtime.open_job(job_options("lora")).value();
  }

  [[nodiscard]] std::vector<TrainSequence> batch(std::uint64_t seed) const {
    RandomStream random(seed);
    TrainSequence sequence;
    sequence.id = {4};
    sequence.ids = random_ids(model_.config, 12, random);
    sequence.response_mask.assign(sequence.ids.size(), 1);
    return {std::move(sequence)};
  }

  void add_gradients(TrainingJob& job, std::uint64_t seed) const {
    WeightedLoss loss;
    ASSERT_TRUE(begin(job, batch(seed), &loss).ok());
    ASSERT_TRUE(run_to_end(job).ok());
  }

  // Expects that the work of `job` fails because a layout finds too little memory, and that the job
  // then has no work and no gradients.
  static void expect_too_little(TrainingJob& job) {
    const Status status = run_to_end(job);
    EXPECT_EQ(status.code(), Errc::kResourceExhausted) << status.to_string();
    EXPECT_FALSE(job.has_work());
    EXPECT_EQ(job.optim_step().code(), Errc::kInvalidArgument);
  }

  // Every verb repeats the layout, and fails while there is too little memory.
  void expect_no_verb_works(TrainingJob& job) const {
    job.cancel();
    EXPECT_FALSE(job.has_work());
    ASSERT_TRUE(job.save({0, 0, 1}).ok());
    expect_too_little(job);
    ASSERT_TRUE(begin(job, batch(5), nullptr).ok());
    expect_too_little(job);
    WeightedLoss loss;
    ASSERT_TRUE(begin(job, batch(5), &loss).ok());
    expect_too_little(job);
    EXPECT_EQ(job.last_update().optimizer_step, 1);
  }

  // Computes what is left to do after the first step.
  [[nodiscard]] Outcome finish(TrainingJob& job) const {
    Outcome outcome;
    EXPECT_TRUE(begin(job, batch(5), nullptr).ok());
    EXPECT_TRUE(run_to_end(job).ok());
    outcome.logprobs = job.logprobs({4}).value();
    outcome.first = publish(job, {0, 0, 1}).value();
    add_gradients(job, 2);
    EXPECT_TRUE(update(job).ok());
    outcome.second = publish(job, {0, 0, 2}).value();
    outcome.state = optimizer_state(job).value();
    return outcome;
  }

  ModelFiles model_ = small_model(5);
};

// The policy's weights are laid out beside those that generation serves, so their gains and biases
// take memory. Less and less of it is left, so the layout fails at one part after the other.
TEST_F(JobFailuresTest, ALayoutOfTheBaseThatFailsIsRepeated) {
  Outcome expected;
  std::int64_t held = 0;
  std::int64_t needed = 0;
  {
    const auto runtime = open(Training::kYes, 0);
    TrainingJob& job = *runtime->policy_job();
    add_gradients(job, 1);
    const auto holder = open_holder(*runtime);
    held = runtime->device_use().bytes;
    ASSERT_TRUE(update(job).ok());
    needed = runtime->device_use().bytes - held;
    expected = finish(job);
  }
  ASSERT_GT(needed, 0);
  constexpr std::int64_t kCuts = 8;
  for (std::int64_t cut = 0; cut < kCuts; ++cut) {
    SCOPED_TRACE(cut);
    const auto runtime = open(Training::kYes, held + needed * cut / kCuts);
    TrainingJob& job = *runtime->policy_job();
    add_gradients(job, 1);
    auto holder = open_holder(*runtime);
    ASSERT_EQ(runtime->device_use().bytes, held);
    ASSERT_TRUE(job.optim_step().ok());
    expect_too_little(job);
    expect_no_verb_works(job);
    holder.reset();
    expect_same(finish(job), expected);
  }
}

// An adapter's old layout is freed first. Another job takes its memory before the new layout does.
TEST_F(JobFailuresTest, ALayoutOfAnAdapterThatFailsIsRepeated) {
  Outcome expected;
  std::int64_t used = 0;    // while the adapter is laid out
  std::int64_t freed = 0;   // while it is not
  std::int64_t holder = 0;  // of another job
  StepBudget one;
  one.units = 1;
  {
    const auto runtime = open(Training::kNo, 0);
    const auto job = runtime->open_job(job_options("dora")).value();
    add_gradients(*job, 1);
    used = runtime->device_use().bytes;
    ASSERT_TRUE(job->optim_step().ok());
    for (freed = used; job->has_work();) {
      ASSERT_TRUE(job->advance(one).ok());
      freed = std::min(freed, runtime->device_use().bytes);
    }
    EXPECT_EQ(runtime->device_use().bytes, used);
    const auto other = open_holder(*runtime);
    holder = runtime->device_use().bytes - used;
    expected = finish(*job);
  }
  ASSERT_LT(freed, used);
  constexpr std::int64_t kCuts = 8;
  for (std::int64_t cut = 0; cut < kCuts; ++cut) {
    SCOPED_TRACE(cut);
    const auto runtime = open(Training::kNo, freed + holder + (used - freed) * cut / kCuts);
    const auto job = runtime->open_job(job_options("dora")).value();
    add_gradients(*job, 1);
    ASSERT_TRUE(job->optim_step().ok());
    while (runtime->device_use().bytes > freed) {
      ASSERT_TRUE(job->has_work());
      ASSERT_TRUE(job->advance(one).ok());
    }
    auto other = open_holder(*runtime);
    expect_too_little(*job);
    expect_no_verb_works(*job);
    other.reset();
    expect_same(finish(*job), expected);
  }
}

// Between the failure and the next verb, the weights may be replaced.
TEST_F(JobFailuresTest, AJobWhoseLayoutFailedIsRestored) {
  Outcome expected;
  std::int64_t held = 0;
  {
    const auto runtime = open(Training::kYes, 0);
    TrainingJob& job = *runtime->policy_job();
    add_gradients(job, 1);
    const auto holder = open_holder(*runtime);
    held = runtime->device_use().bytes;
    ASSERT_TRUE(update(job).ok());
    expected = finish(job);
  }
  const auto runtime = open(Training::kYes, held);
  TrainingJob& job = *runtime->policy_job();
  const Snapshot start = publish(job, {0, 0, 0}).value();
  const TensorMap state = optimizer_state(job).value();
  for (int round = 0; round < 2; ++round) {
    add_gradients(job, 1);
    auto holder = open_holder(*runtime);
    ASSERT_TRUE(job.optim_step().ok());
    expect_too_little(job);
    EXPECT_EQ(optimizer_state(job).status().code(), Errc::kResourceExhausted);
    EXPECT_EQ(job.last_update().optimizer_step, 1) << "the step is kept";
    ASSERT_TRUE(job.load(start, state).ok()) << "the served layout has these weights";
    EXPECT_TRUE(same_tensors(optimizer_state(job).value(), state));
    holder.reset();
  }
  add_gradients(job, 1);
  ASSERT_TRUE(update(job).ok());
  expect_same(finish(job), expected);
}

}  // namespace
}  // namespace tidemill::engines
