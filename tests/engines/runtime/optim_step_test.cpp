// SPDX-License-Identifier: Apache-2.0
// The parameters and hooks of one optimizer step, and gradients that are accumulated.
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"
#include "base/tensor/float_tensor.hpp"
#include "tests/engines/runtime/job_steps.hpp"
#include "tests/engines/runtime/runtime_bench.hpp"
#include "tests/engines/transformer/random_model.hpp"

namespace tidemill::engines {
namespace {

using Gradients64 = std::map<std::string, std::vector<double>>;

class OptimStepTest : public ::testing::Test {
protected:
  // The options of jobs and of the policy.
  [[nodiscard]] OptimizerOptions optimizer() const {
    OptimizerOptions options =
        *small_options(model_.config, Backend::kCpu, 512, Training::kYes).optimizer;
    options.weight_decay = 0.1;
    options.max_grad_norm = 0.5;
    return options;
  }

  [[nodiscard]] std::unique_ptr<ModelRuntime> open() const {
    RuntimeOptions options = small_options(model_.config, Backend::kCpu, 512, Training::kNo);
    options.trains_adapters = true;
    return open_runtime(model_, options).value();
  }

  [[nodiscard]] std::unique_ptr<TrainingJob> open_job(ModelRuntime& runtime,
                                                      const OptimizerOptions& optimizer,
                                                      bool keeps_anchor = false) const {
    JobOptions options;
    options.adapter = sample_adapter(model_, "lora", 9);
    options.optimizer = optimizer;
    options.activation_bytes = std::int64_t{64} << 20U;
    options.keeps_anchor = keeps_anchor;
    return runtime.open_job(options).value();
  }

  [[nodiscard]] std::vector<TrainSequence> batch(std::uint64_t seed) const {
    RandomStream random(seed);
    std::vector<TrainSequence> all;
    for (std::uint64_t id = 0; id < 5; ++id) {
      TrainSequence& sequence = all.emplace_back();
      sequence.id = {id};
      sequence.ids =
          random_ids(model_.config, 4 + static_cast<std::int64_t>(random.below(20)), random);
      sequence.response_mask.assign(sequence.ids.size(), 1);
    }
    return all;
  }

  static UpdateReport train(TrainingJob& job, const std::vector<TrainSequence>& batch,
                            const OptimStep& step = {}) {
    WeightedLoss loss;
    EXPECT_TRUE(begin(job, batch, &loss).ok());
    EXPECT_TRUE(run_to_end(job).ok());
    const auto report = update(job, step);
    EXPECT_TRUE(report.ok()) << report.status().to_string();
    return report.value();
  }

  static TensorMap weights(TrainingJob& job) { return publish(job, {}).value().adapter; }

  static void expect_equal(TrainingJob& job, TrainingJob& other) {
    EXPECT_TRUE(same_tensors(weights(job), weights(other)));
    EXPECT_TRUE(same_tensors(optimizer_state(job).value(), optimizer_state(other).value()));
  }

  // Returns an `inspect` that keeps what it receives.
  static OptimStep inspecting(Gradients64& kept) {
    OptimStep step;
    step.on_gradient = [&kept](const std::string& name, std::span<const float> gradient) {
      kept[name].assign(gradient.begin(), gradient.end());
    };
    return step;
  }

  ModelFiles model_ = small_model(5);
};

// Each parameter of a step, against a job that was opened with that value.
TEST_F(OptimStepTest, AStepMayReplaceEveryParameterOfTheOptimizer) {
  const auto runtime = open();
  const auto expect_same = [&](const OptimStep& step, const auto& set) {
    OptimizerOptions changed = optimizer();
    set(changed);
    const auto job = open_job(*runtime, optimizer());
    const auto expected = open_job(*runtime, changed);
    const auto plain = open_job(*runtime, optimizer());
    train(*job, batch(1), step);
    train(*job, batch(2), step);
    train(*expected, batch(1));
    train(*expected, batch(2));
    train(*plain, batch(1));
    train(*plain, batch(2));
    expect_equal(*job, *expected);
    EXPECT_FALSE(same_tensors(weights(*job), weights(*plain)));
  };
  OptimStep step;
  step.beta1 = 0.5;
  expect_same(step, [](OptimizerOptions& o) { o.adamw.beta1 = 0.5; });
  step = {};
  step.beta2 = 0.9;
  expect_same(step, [](OptimizerOptions& o) { o.adamw.beta2 = 0.9; });
  step = {};
  step.epsilon = 1e-2;
  expect_same(step, [](OptimizerOptions& o) { o.adamw.epsilon = 1e-2; });
  step = {};
  step.weight_decay = 3.0;
  expect_same(step, [](OptimizerOptions& o) { o.weight_decay = 3.0; });
  step = {};
  step.max_grad_norm = 0.01;
  expect_same(step, [](OptimizerOptions& o) { o.max_grad_norm = 0.01; });
  step = {};
  step.learning_rate = 0.003;
  expect_same(step, [](OptimizerOptions& o) {
    o.schedule = {};
    o.schedule.kind = LearningRateScheduleKind::kConstant;
    o.schedule.learning_rate = 0.003;
  });
}

// Gradients of two batches with other ids add up to those of one batch of all.
TEST_F(OptimStepTest, GradientsAreAccumulatedUntilTheStep) {
  const auto runtime = open();
  const auto whole = open_job(*runtime, optimizer());
  const auto parts = open_job(*runtime, optimizer());
  const UpdateReport expected = train(*whole, batch(1));
  WeightedLoss loss;
  const auto all = batch(1);
  for (const TrainSequence& sequence : all) {
    ASSERT_TRUE(begin(*parts, {sequence}, &loss).ok());
    ASSERT_TRUE(run_to_end(*parts).ok());
  }
  // Log-probabilities alone add nothing.
  ASSERT_TRUE(begin(*parts, batch(7), nullptr).ok());
  ASSERT_TRUE(run_to_end(*parts).ok());
  const UpdateReport report = update(*parts).value();
  EXPECT_EQ(report.gradient_norm, expected.gradient_norm);
  EXPECT_EQ(report.sums, expected.sums);
  expect_equal(*parts, *whole);
  EXPECT_EQ(update(*parts).status().code(), Errc::kInvalidArgument) << "they are used once";
}

TEST_F(OptimStepTest, ALoadThatIsRefusedChangesNothing) {
  const auto runtime = open();
  const auto job = open_job(*runtime, optimizer());
  const auto other = open_job(*runtime, optimizer());
  const Snapshot snapshot = publish(*job, {}).value();
  const UpdateReport expected = train(*other, batch(1));
  WeightedLoss loss;
  ASSERT_TRUE(begin(*job, batch(1), &loss).ok());
  ASSERT_TRUE(run_to_end(*job).ok());
  EXPECT_EQ(job->load(snapshot, {}).code(), Errc::kInvalidArgument);
  const UpdateReport report = update(*job).value();
  EXPECT_EQ(report.gradient_norm, expected.gradient_norm);
  EXPECT_EQ(report.sums, expected.sums);
  expect_equal(*job, *other);
}

TEST_F(OptimStepTest, FrozenTensorsStayAsTheyAre) {
  const auto runtime = open();
  const auto job = open_job(*runtime, optimizer());
  const auto plain = open_job(*runtime, optimizer());
  const TensorMap before = weights(*job);
  train(*plain, batch(1));
  OptimStep step;
  for (const auto& [name, tensor] : before) {
    if (name.find("layers.1.") != std::string::npos) {
      step.frozen.push_back(name);
    }
  }
  ASSERT_GT(step.frozen.size(), 1U);
  const TensorMap state_before = optimizer_state(*job).value();
  const UpdateReport report = train(*job, batch(1), step);
  EXPECT_LT(report.gradient_norm, plain->last_update().gradient_norm);
  const TensorMap after = weights(*job);
  const TensorMap state = optimizer_state(*job).value();
  for (const auto& [name, tensor] : before) {
    const bool frozen = name.find("layers.1.") != std::string::npos;
    EXPECT_EQ(same_tensors({{name, tensor}}, {{name, after.at(name)}}), frozen) << name;
    for (const char* moment : {"first_moment.", "second_moment."}) {
      EXPECT_EQ(
          same_tensors({{name, state_before.at(moment + name)}}, {{name, state.at(moment + name)}}),
          frozen)
          << name;
    }
  }
}

TEST_F(OptimStepTest, AHookSeesTheGradientsThatTheNormCounts) {
  const auto runtime = open();
  const auto job = open_job(*runtime, optimizer());
  const auto plain = open_job(*runtime, optimizer());
  Gradients64 seen;
  const UpdateReport report = train(*job, batch(1), inspecting(seen));
  train(*plain, batch(1));
  expect_equal(*job, *plain);
  double squares = 0.0;
  for (const auto& [name, tensor] : weights(*job)) {
    ASSERT_EQ(seen.at(name).size(), static_cast<std::size_t>(tensor.num_elements()));
    for (const double value : seen.at(name)) {
      squares += value * value;
    }
  }
  EXPECT_EQ(seen.size(), weights(*job).size());
  EXPECT_NEAR(std::sqrt(squares), report.gradient_norm, 1e-9 * report.gradient_norm);
}

// The anchor is where the job started, and after a load where it was loaded.
TEST_F(OptimStepTest, AProximalTermPullsTowardsTheAnchor) {
  const auto runtime = open();
  const auto job = open_job(*runtime, optimizer(), /*keeps_anchor=*/true);
  const TensorMap start = weights(*job);
  train(*job, batch(1));
  const Snapshot moved = publish(*job, {0, 0, 1}).value();
  const TensorMap state = optimizer_state(*job).value();

  const auto gradients_of = [&](TrainingJob& of, double proximal) {
    Gradients64 seen;
    OptimStep step = inspecting(seen);
    step.proximal = proximal;
    train(of, batch(2), step);
    return seen;
  };
  const auto plain = open_job(*runtime, optimizer(), true);
  ASSERT_TRUE(plain->load(moved, state).ok());
  const Gradients64 without = gradients_of(*plain, 0.0);
  const Gradients64 with = gradients_of(*job, 2.0);
  double largest = 0.0;
  for (const auto& [name, tensor] : start) {
    const std::vector<float> from = float_values(tensor);
    const std::vector<float> to = float_values(moved.adapter.at(name));
    for (std::size_t i = 0; i < from.size(); ++i) {
      const double pull = 2.0 * (double{to[i]} - double{from[i]});
      largest = std::max(largest, std::abs(pull));
      // The sum is rounded to a float.
      EXPECT_NEAR(with.at(name)[i], without.at(name)[i] + pull,
                  1e-6 * (std::abs(without.at(name)[i]) + std::abs(pull)) + 1e-9)
          << name;
    }
  }
  EXPECT_GT(largest, 1e-3);
  // At its own anchor, the term is zero.
  const auto loaded = open_job(*runtime, optimizer(), true);
  ASSERT_TRUE(loaded->load(moved, state).ok());
  EXPECT_EQ(gradients_of(*loaded, 2.0), without);
}

TEST_F(OptimStepTest, BadStepsAreRefusedAndKeepTheGradients) {
  const auto runtime = open();
  const auto job = open_job(*runtime, optimizer());
  const auto plain = open_job(*runtime, optimizer());
  WeightedLoss loss;
  ASSERT_TRUE(begin(*job, batch(1), &loss).ok());
  ASSERT_TRUE(run_to_end(*job).ok());
  const auto expect_refused = [&](const OptimStep& step, const char* message) {
    const Status status = update(*job, step).status();
    EXPECT_EQ(status.code(), Errc::kInvalidArgument);
    EXPECT_NE(status.message().find(message), std::string::npos) << status.message();
    EXPECT_FALSE(job->has_work());
  };
  OptimStep step;
  step.learning_rate = -1.0;
  expect_refused(step, "learning_rate");
  step = {};
  step.beta1 = 1.0;
  expect_refused(step, "beta1");
  step = {};
  step.epsilon = 0.0;
  expect_refused(step, "epsilon");
  step = {};
  step.weight_decay = std::nan("");
  expect_refused(step, "weight_decay");
  step = {};
  step.max_grad_norm = -2.0;
  expect_refused(step, "max_grad_norm");
  step = {};
  step.proximal = 1.0;
  expect_refused(step, "proximal: the job was opened without `JobOptions::keeps_anchor`");
  step.proximal = -1.0;
  expect_refused(step, "proximal");
  step = {};
  step.frozen = {"no such tensor"};
  expect_refused(step, "frozen: tensor no such tensor");
  ASSERT_TRUE(update(*job).ok());
  train(*plain, batch(1));
  expect_equal(*job, *plain);
}

// The gradients of the two uses of a tied table are added once, when the step begins.
TEST_F(OptimStepTest, ARefusedStepDoesNotChangeTheOrderOfSums) {
  ModelFiles tied;
  tied.config = small_config({.tied = true});
  tied.tensors = random_weights(tied.config, 3);
  const auto trained = [&](bool refused) {
    const auto runtime =
        open_runtime(tied, small_options(tied.config, Backend::kCpu, 512, Training::kYes)).value();
    TrainingJob& job = *runtime->policy_job();
    WeightedLoss loss;
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      EXPECT_TRUE(begin(job, batch(seed), &loss).ok());
      EXPECT_TRUE(run_to_end(job).ok());
      OptimStep bad;
      bad.beta1 = 1.0;
      EXPECT_TRUE(!refused || !job.optim_step(bad).ok());
    }
    EXPECT_TRUE(update(job).ok());
    return optimizer_state(job).value();
  };
  EXPECT_TRUE(same_tensors(trained(true), trained(false)));
}

TEST_F(OptimStepTest, TheStateOfAHalfDoneStepIsNotCopied) {
  const auto runtime = open();
  const auto job = open_job(*runtime, optimizer());
  WeightedLoss loss;
  ASSERT_TRUE(begin(*job, batch(1), &loss).ok());
  ASSERT_TRUE(run_to_end(*job).ok());
  ASSERT_TRUE(job->optim_step().ok());
  StepBudget one;
  one.units = 1;
  while (job->has_work()) {
    EXPECT_EQ(job->capture().code(), Errc::kUnavailable);
    ASSERT_TRUE(job->advance(one).ok());
  }
  EXPECT_TRUE(job->capture().ok());
  EXPECT_TRUE(job->has_work());
}

// Weights that are not finite are never published.
TEST_F(OptimStepTest, WeightsThatAreNotFiniteAreNotSaved) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const auto runtime = open_runtime(model_, small_options(model_.config, Backend::kCpu, 512,
                                                            Training::kYes, dtype))
                             .value();
    TrainingJob& job = *runtime->policy_job();
    WeightedLoss loss;
    ASSERT_TRUE(begin(job, batch(1), &loss).ok());
    ASSERT_TRUE(run_to_end(job).ok());
    OptimStep step;
    step.learning_rate = 1e38;
    step.weight_decay = 1e10;
    ASSERT_TRUE(update(job, step).ok());
    const auto snapshot = publish(job, {0, 0, 1});
    EXPECT_EQ(snapshot.status().code(), Errc::kInternal);
    EXPECT_NE(snapshot.status().message().find("the weights of tensor "), std::string::npos)
        << snapshot.status().message();
    EXPECT_NE(snapshot.status().message().find(" not finite"), std::string::npos);
    EXPECT_FALSE(job.has_work());
  }
}

TEST_F(OptimStepTest, ABatchWithoutSequencesAddsNoGradients) {
  const auto runtime = open();
  const auto job = open_job(*runtime, optimizer());
  WeightedLoss loss;
  ASSERT_TRUE(begin(*job, {}, &loss).ok());
  ASSERT_TRUE(run_to_end(*job).ok());
  EXPECT_EQ(job->optim_step().code(), Errc::kInvalidArgument);
}

TEST_F(OptimStepTest, ResultsAreTakenOnceAndOnlyIfTheyAreThere) {
  const auto runtime = open();
  const auto job = open_job(*runtime, optimizer());
  EXPECT_DEATH(static_cast<void>(job->take_snapshot()), "no snapshot");
  EXPECT_DEATH(static_cast<void>(job->take_optimizer_state()), "no optimizer state");
  EXPECT_TRUE(publish(*job, {0, 0, 1}).ok());
  EXPECT_DEATH(static_cast<void>(job->take_snapshot()), "no snapshot");
  ASSERT_TRUE(job->save({0, 0, 2}).ok());
  job->cancel();
  EXPECT_DEATH(static_cast<void>(job->take_snapshot()), "no snapshot");
}

// A job that has to wait for another one says so, and takes nothing from generation meanwhile.
TEST_F(OptimStepTest, AJobThatMustWaitForAnotherPreemptsNothing) {
  RuntimeOptions options = small_options(model_.config, Backend::kCpu, 96, Training::kNo);
  options.trains_adapters = true;
  const auto runtime = open_runtime(model_, options).value();
  const auto first = open_job(*runtime, optimizer());
  const auto second = open_job(*runtime, optimizer());
  const auto long_batch = [&](std::uint64_t seed) {
    TrainSequence sequence = batch(seed)[0];
    RandomStream random(seed);
    sequence.ids = random_ids(model_.config, 50, random);
    sequence.response_mask.assign(50, 1);
    return std::vector<TrainSequence>{sequence};
  };
  WeightedLoss loss;
  ASSERT_TRUE(begin(*first, long_batch(1), &loss).ok());
  StepBudget one;
  one.units = 1;
  ASSERT_TRUE(first->advance(one).ok());  // holds 4 of 6 pages
  ResultKeeper results;
  ASSERT_TRUE(runtime->rollout().submit(sampling_request(1, model_.config, 10, 12), results).ok());
  ASSERT_TRUE(runtime->rollout().step({64}).ok());
  ASSERT_TRUE(begin(*second, long_batch(2), &loss).ok());
  for (int i = 0; i < 3; ++i) {
    const StepReport report = second->advance({}).value();
    EXPECT_TRUE(report.waits_for_pages);
    EXPECT_TRUE(report.more);
  }
  EXPECT_EQ(run_to_end(*second).code(), Errc::kUnavailable);
  EXPECT_EQ(runtime->rollout().step({64}).value().preemptions, 0);
  ASSERT_TRUE(run_to_end(*first).ok());
  EXPECT_TRUE(run_to_end(*second).ok());
}

TEST_F(OptimStepTest, JobsThatCannotBeOpenedAreRefused) {
  const auto runtime = open();
  JobOptions options;
  options.adapter = sample_adapter(model_, "lora", 9);
  options.optimizer = optimizer();
  options.activation_bytes = 0;
  EXPECT_EQ(runtime->open_job(options).status().code(), Errc::kInvalidArgument);
  options.activation_bytes = 1 << 20;
  options.adapter.tensors.erase(options.adapter.tensors.begin());
  EXPECT_EQ(runtime->open_job(options).status().code(), Errc::kInvalidArgument);
  options.adapter = sample_adapter(model_, "lora", 9);
  const auto serving =
      open_runtime(model_, small_options(model_.config, Backend::kCpu, 512, Training::kNo)).value();
  const Status refused = serving->open_job(options).status();
  EXPECT_EQ(refused.code(), Errc::kInvalidArgument);
  EXPECT_NE(refused.message().find("trains_adapters"), std::string::npos) << refused.message();
  EXPECT_TRUE(runtime->open_job(options).ok());
}

}  // namespace
}  // namespace tidemill::engines
