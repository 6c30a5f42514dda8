// SPDX-License-Identifier: Apache-2.0
// Units of updates, layouts and snapshots: no unit handles more than a part of a large table, and
// the division changes no bit.
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/digest.hpp"
#include "base/random.hpp"
#include "base/tensor/float_tensor.hpp"
#include "engines/ops/op_types.hpp"
#include "engines/transformer/parameter_set.hpp"
#include "tests/engines/runtime/job_steps.hpp"
#include "tests/engines/runtime/runtime_bench.hpp"
#include "tests/engines/transformer/random_model.hpp"

namespace tidemill::engines {
namespace {

std::int64_t ceil_divided(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

// Runs the work of `job` one unit at a time. Returns the number of units.
std::int64_t run_units(TrainingJob& job) {
  StepBudget one;
  one.units = 1;
  std::int64_t units = 0;
  while (job.has_work()) {
    const auto report = job.advance(one);
    EXPECT_TRUE(report.ok()) << report.status().to_string();
    EXPECT_EQ(report.value().train_units, 1);
    ++units;
  }
  return units;
}

// Runs the work of `job` one unit at a time. Returns what the job says about each unit before it.
std::vector<UnitKind> kinds_of_work(TrainingJob& job) {
  StepBudget one;
  one.units = 1;
  std::vector<UnitKind> kinds;
  while (job.has_work()) {
    kinds.push_back(job.next_unit());
    const auto report = job.advance(one);
    EXPECT_TRUE(report.ok()) << report.status().to_string();
  }
  return kinds;
}

// Returns the stages of units that follow each other, each once.
std::vector<UnitStage> stages_of(const std::vector<UnitKind>& kinds) {
  std::vector<UnitStage> stages;
  for (const UnitKind& kind : kinds) {
    if (stages.empty() || stages.back() != kind.stage) {
      stages.push_back(kind.stage);
    }
  }
  return stages;
}

// A tied model whose table takes two units.
class JobUnitsTest : public ::testing::TestWithParam<DType> {
protected:
  JobUnitsTest() {
    model_.config = small_config({.tied = true});
    model_.config.vocab_size = 70001;
    model_.tensors = random_weights(model_.config, 3);
    for (const auto& [name, tensor] : model_.tensors) {
      elements_ += tensor.num_elements();
      parts_ += num_unit_parts(tensor.num_elements());
    }
    table_ = model_.config.vocab_size * model_.config.hidden_size;
    EXPECT_GT(table_, kUnitElements);
    EXPECT_GT(parts_, static_cast<std::int64_t>(model_.tensors.size()));
  }

  [[nodiscard]] std::unique_ptr<ModelRuntime> open(bool trains_adapters = false) const {
    RuntimeOptions options =
        small_options(model_.config, Backend::kCpu, 256, Training::kYes, GetParam());
    options.optimizer->weight_decay_exclude = DecayExclude::kNone;  // one range of elements
    options.trains_adapters = trains_adapters;
    return open_runtime(model_, options).value();
  }

  [[nodiscard]] std::vector<TrainSequence> batch(std::uint64_t seed) const {
    RandomStream random(seed);
    std::vector<TrainSequence> all;
    for (std::uint64_t id = 0; id < 3; ++id) {
      TrainSequence& sequence = all.emplace_back();
      sequence.id = {id};
      sequence.ids = random_ids(model_.config, 6 + static_cast<std::int64_t>(id), random);
      sequence.response_mask.assign(sequence.ids.size(), 1);
    }
    return all;
  }

  void add_gradients(TrainingJob& job, std::uint64_t seed) const {
    WeightedLoss loss;
    ASSERT_TRUE(begin(job, batch(seed), &loss).ok());
    ASSERT_TRUE(run_to_end(job).ok());
  }

  [[nodiscard]] std::vector<std::vector<float>> logprobs(TrainingJob& job) const {
    EXPECT_TRUE(begin(job, batch(9), nullptr).ok());
    EXPECT_TRUE(run_to_end(job).ok());
    std::vector<std::vector<float>> all;
    for (const TrainSequence& sequence : batch(9)) {
      all.push_back(job.logprobs(sequence.id).value());
    }
    return all;
  }

  // Expects that `job` computes with the weights that it publishes. Another runtime lays them out
  // from the snapshot, tensor by tensor.
  void expect_laid_out(TrainingJob& job) const {
    const Snapshot snapshot = publish(job, {0, 0, 7}).value();
    EXPECT_EQ(snapshot.base_digest, digest_tensors(snapshot.base));
    const auto other = open();
    ASSERT_TRUE(other->policy_job()->load(snapshot, optimizer_state(job).value()).ok());
    EXPECT_EQ(logprobs(job), logprobs(*other->policy_job()));
  }

  // Returns the units that lay out a matrix.
  [[nodiscard]] static std::int64_t layout_units(const std::vector<std::int64_t>& shape) {
    const std::int64_t rows = kUnitElements / (shape[1] * kFeatureStep) * kFeatureStep;
    return ceil_divided(shape[0], rows);
  }

  ModelFiles model_;
  std::int64_t elements_ = 0;  // of all parameters
  std::int64_t parts_ = 0;     // of all tensors
  std::int64_t table_ = 0;     // elements
};

// The time of a unit is predicted from its description.
TEST_P(JobUnitsTest, TheNextUnitIsDescribedBeforeItRuns) {
  const auto runtime = open();
  TrainingJob& job = *runtime->policy_job();
  WeightedLoss loss;
  ASSERT_TRUE(begin(job, batch(1), &loss).ok());
  const std::vector<UnitKind> first = kinds_of_work(job);
  using enum UnitStage;
  EXPECT_EQ(stages_of(first), (std::vector{kForward, kHead, kLoss, kHeadBackward, kBackward}));
  const std::int64_t rows = 5 + 6 + 7;  // the last token of a sequence is only a target
  for (const UnitKind& kind : first) {
    EXPECT_LE(kind.rows, rows);
    EXPECT_LE(kind.span, rows);
  }
  EXPECT_EQ(std::ranges::count(first, UnitKind{kLoss, 0, rows, 0}), 1);

  ASSERT_TRUE(begin(job, batch(2), &loss).ok());
  EXPECT_EQ(kinds_of_work(job), first) << "of a batch of the same lengths";

  ASSERT_TRUE(job.optim_step().ok());
  EXPECT_EQ(stages_of(kinds_of_work(job)), (std::vector{kOptimizer, kWeights}));
  ASSERT_TRUE(job.save({0, 0, 1}).ok());
  const std::vector<UnitKind> saving = kinds_of_work(job);
  EXPECT_EQ(stages_of(saving), std::vector{kWeights});
  ASSERT_TRUE(job.capture().ok());
  const std::vector<UnitKind> capturing = kinds_of_work(job);
  EXPECT_EQ(stages_of(capturing), std::vector{kWeights});
  EXPECT_NE(saving.front(), capturing.front());
}

TEST_P(JobUnitsTest, ASnapshotIsCopiedAndDigestedInParts) {
  const auto runtime = open();
  TrainingJob& job = *runtime->policy_job();
  ASSERT_TRUE(job.save({0, 0, 1}).ok());
  EXPECT_EQ(run_units(job), parts_);
  const Snapshot snapshot = job.take_snapshot();
  EXPECT_TRUE(same_tensors(snapshot.base, to_float_type(model_.tensors, GetParam())));
  EXPECT_EQ(snapshot.base_digest, digest_tensors(snapshot.base));
  EXPECT_EQ(snapshot.base_digest, runtime->initial().base_digest);
}

TEST_P(JobUnitsTest, TheOptimizerStateIsCopiedInParts) {
  const auto runtime = open();
  TrainingJob& job = *runtime->policy_job();
  add_gradients(job, 1);
  ASSERT_TRUE(update(job).ok());
  ASSERT_TRUE(job.capture().ok());
  // The two moments and, if weights are published rounded, the weights.
  EXPECT_EQ(run_units(job), (GetParam() == DType::kBF16 ? 3 : 2) * parts_);
  const TensorMap state = job.take_optimizer_state();

  // A copy that is cancelled leaves no work, and the next one is whole.
  ASSERT_TRUE(job.capture().ok());
  EXPECT_EQ(job.capture().code(), Errc::kUnavailable);
  StepBudget one;
  one.units = 1;
  ASSERT_TRUE(job.advance(one).ok());
  job.cancel();
  EXPECT_FALSE(job.has_work());
  EXPECT_TRUE(same_tensors(optimizer_state(job).value(), state));
}

TEST_P(JobUnitsTest, AnUpdateAndItsLayoutAreDivided) {
  const ModelConfig& config = model_.config;
  const std::int64_t apart =
      ceil_divided(config.vocab_size, kUnitElements / config.hidden_size);  // of the tied head
  const std::int64_t pass = num_unit_parts(elements_);
  std::int64_t layout = 0;
  for (const auto& [name, tensor] : model_.tensors) {
    layout += tensor.shape.size() == 2 ? layout_units(tensor.shape) : 1;
  }
  layout += layout_units({config.vocab_size, config.hidden_size});  // the table is the head too
  EXPECT_EQ(apart, 2);
  // Both gradients of the table are added up, then come the norm, the update, and zeros.
  const std::int64_t expected = apart + pass + pass + (pass + apart) + layout;
  for (const bool trains_adapters : {false, true}) {
    const auto runtime = open(trains_adapters);
    const auto whole = open(trains_adapters);
    TrainingJob& job = *runtime->policy_job();
    for (std::uint64_t step = 1; step <= 2; ++step) {
      add_gradients(job, step);
      add_gradients(*whole->policy_job(), step);
      ASSERT_TRUE(job.optim_step().ok());
      // A base that adapters are created from is kept as tensors too.
      EXPECT_EQ(run_units(job), expected + (trains_adapters ? parts_ : 0));
      ASSERT_TRUE(update(*whole->policy_job()).ok());
      EXPECT_EQ(job.last_update().gradient_norm, whole->policy_job()->last_update().gradient_norm);
    }
    EXPECT_TRUE(
        same_tensors(optimizer_state(job).value(), optimizer_state(*whole->policy_job()).value()));
    expect_laid_out(job);
  }
}

// Stops at every unit of an update. The weights keep all of the step or nothing, no gradient is
// left, and the weights are laid out before they are used.
TEST_P(JobUnitsTest, AnUpdateThatIsCancelledAtAnyUnitIsWholeOrNothing) {
  const auto with_step = open();
  add_gradients(*with_step->policy_job(), 1);
  ASSERT_TRUE(update(*with_step->policy_job()).ok());
  const TensorMap after = optimizer_state(*with_step->policy_job()).value();
  const auto expected = logprobs(*with_step->policy_job());
  const auto runtime = open();
  TrainingJob& job = *runtime->policy_job();
  const Snapshot start = publish(job, {0, 0, 1}).value();
  const TensorMap before = optimizer_state(job).value();
  const auto expected_before = logprobs(job);
  std::int64_t completed = 0;
  bool ended = false;
  for (std::int64_t units = 1; !ended; ++units) {
    SCOPED_TRACE(units);
    add_gradients(job, 1);
    ASSERT_TRUE(job.optim_step().ok());
    StepBudget budget;
    budget.units = units;
    const auto report = job.advance(budget);
    ASSERT_TRUE(report.ok()) << report.status().to_string();
    ended = !report.value().more;
    job.cancel();
    EXPECT_FALSE(job.has_work());
    EXPECT_EQ(job.optim_step().code(), Errc::kInvalidArgument) << "no gradients are left";
    const auto computed = logprobs(job);
    const TensorMap now = optimizer_state(job).value();
    const bool whole = same_tensors(now, after);
    EXPECT_EQ(job.last_update().optimizer_step, whole ? 1 : 0);
    EXPECT_EQ(job.last_update().sums.contains("loss"), whole);
    EXPECT_TRUE(whole || same_tensors(now, before));
    EXPECT_TRUE(whole || completed == 0);
    completed += whole ? 1 : 0;
    EXPECT_EQ(computed, whole ? expected : expected_before);
    ASSERT_TRUE(job.load(start, before).ok());
  }
  EXPECT_GT(completed, 5);
}

// A job that trains the table as a whole module of an adapter.
TEST_P(JobUnitsTest, GradientsAreInspectedAndPulledInParts) {
  RuntimeOptions runtime_options =
      small_options(model_.config, Backend::kCpu, 256, Training::kNo, GetParam());
  runtime_options.trains_adapters = true;
  const auto runtime = open_runtime(model_, runtime_options).value();
  JobOptions options;
  options.adapter.config.rank = 2;
  options.adapter.config.targets = {ModuleSelector::Kind::kNames, {"q_proj"}, {}};
  options.adapter.config.modules_to_save = {"embed_tokens"};
  options.adapter.modules =
      resolve_adapter(options.adapter.config, model_.config, "adapter").value();
  options.adapter.tensors = random_adapter(spec_of(options.adapter.config, model_.config),
                                           model_.config, model_.tensors, 4);
  options.optimizer =
      *small_options(model_.config, Backend::kCpu, 64, Training::kYes, GetParam()).optimizer;
  options.activation_bytes = std::int64_t{64} << 20U;
  options.keeps_anchor = true;
  std::map<std::string, std::vector<float>> seen[2];
  TensorMap moved;
  std::int64_t units[2] = {0, 0};
  for (int i = 0; i < 2; ++i) {
    const auto job = runtime->open_job(options).value();
    add_gradients(*job, 1);
    ASSERT_TRUE(update(*job).ok());
    moved = publish(*job, {}).value().adapter;
    add_gradients(*job, 2);
    OptimStep step;
    step.proximal = i == 0 ? 0.0 : 2.0;
    step.on_gradient = [&seen, i](const std::string& name, std::span<const float> gradient) {
      seen[i][name].assign(gradient.begin(), gradient.end());
    };
    ASSERT_TRUE(job->optim_step(step).ok());
    units[i] = run_units(*job);
  }
  EXPECT_EQ(units[0], units[1]);
  ASSERT_EQ(seen[0].size(), moved.size());
  std::int64_t parts = 0;
  for (const auto& [name, tensor] : moved) {
    parts += num_unit_parts(tensor.num_elements());
    const std::vector<float> from = float_values(options.adapter.tensors.at(name));
    const std::vector<float> to = float_values(tensor);
    ASSERT_EQ(seen[0].at(name).size(), to.size()) << name;
    ASSERT_EQ(seen[1].at(name).size(), to.size()) << name;
    for (std::size_t i = 0; i < to.size(); ++i) {
      const double pull = 2.0 * (double{to[i]} - double{from[i]});
      const double without = seen[0].at(name)[i];
      // The sum is rounded to a float.
      ASSERT_NEAR(seen[1].at(name)[i], without + pull,
                  1e-6 * (std::abs(without) + std::abs(pull)) + 1e-9)
          << name << " " << i;
    }
  }
  EXPECT_GT(parts, static_cast<std::int64_t>(moved.size()));
  EXPECT_GT(units[0], parts);
}

INSTANTIATE_TEST_SUITE_P(Types, JobUnitsTest, ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

}  // namespace
}  // namespace tidemill::engines
