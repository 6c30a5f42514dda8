// SPDX-License-Identifier: Apache-2.0
// Several jobs and generation share one base, one cache and one device. A scheduler that decides at
// random, unit by unit, gives the same bits as each of them alone.
#include <iostream>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"
#include "tests/engines/runtime/job_steps.hpp"
#include "tests/engines/runtime/runtime_bench.hpp"
#include "tests/engines/transformer/random_model.hpp"

namespace tidemill::engines {
namespace {

constexpr std::int64_t kLarge = 100000;
constexpr std::size_t kJobs = 2;
constexpr std::uint64_t kSteps = 3;  // optimizer steps of each job

struct SchedulerKind {
  Backend backend = Backend::kCpu;
  Recompute recompute = Recompute::kNone;
  std::int64_t window_tokens = 0;
  DType dtype = DType::kF32;
};

std::string describe(const SchedulerKind& kind) {
  const char* backend = kind.backend == Backend::kCpu       ? "cpu"
                        : kind.backend == Backend::kGuarded ? "guarded"
                                                            : "reference";
  return std::string(backend) + "_" + std::string(dtype_name(kind.dtype)) + "_" +
         recompute_name(kind.recompute) + "_" + std::to_string(kind.window_tokens);
}

std::ostream& operator<<(std::ostream& out, const SchedulerKind& kind) {
  return out << describe(kind);
}

// What a job has computed.
struct Trained {
  TensorMap moments;
  Snapshot snapshot;
  std::vector<LossSums> sums;
  std::vector<double> norms;
  std::vector<std::vector<float>> logprobs;
};

void expect_same(const Trained& actual, const Trained& expected) {
  EXPECT_TRUE(same_tensors(actual.moments, expected.moments));
  EXPECT_TRUE(same_tensors(actual.snapshot.adapter, expected.snapshot.adapter));
  EXPECT_EQ(actual.snapshot.adapter_digest, expected.snapshot.adapter_digest);
  EXPECT_EQ(actual.snapshot.base_digest, expected.snapshot.base_digest);
  EXPECT_EQ(actual.sums, expected.sums);
  EXPECT_EQ(actual.norms, expected.norms);
  EXPECT_TRUE(actual.logprobs == expected.logprobs);
}

// Takes a job through its steps: two batches whose gradients are accumulated, the optimizer step,
// a snapshot, and a copy of the optimizer state. `advance` may stop anywhere.
class Script {
public:
  Script(std::unique_ptr<TrainingJob> job, std::vector<std::vector<TrainSequence>> batches)
      : job_(std::move(job)), batches_(std::move(batches)) {
    begin_batch();
  }

  [[nodiscard]] bool done() const noexcept { return done_; }
  [[nodiscard]] TrainingJob& job() noexcept { return *job_; }
  [[nodiscard]] const Trained& trained() const noexcept { return trained_; }

  // Returns whether it computed anything.
  bool advance(const StepBudget& budget) {
    const auto report = job_->advance(budget);
    EXPECT_TRUE(report.ok()) << report.status().to_string();
    EXPECT_LE(report.value().train_units, budget.units);
    EXPECT_EQ(report.value().more, job_->has_work());
    if (!job_->has_work()) {
      go_on();
    }
    return !report.value().waits_for_pages;
  }

  // Ends the work and starts the batches of this step again.
  void restart() {
    if (saving_ || stepping_ || capturing_) {
      return;  // its weights may have changed
    }
    job_->cancel();
    EXPECT_FALSE(job_->has_work());
    trained_.logprobs.resize(computed_before_);
    batch_ = 2 * trained_.norms.size();
    begin_batch();
  }

  // Continues in another job, from what this one has saved. Requires that it has just saved.
  void move_to(std::unique_ptr<TrainingJob> job) {
    ASSERT_TRUE(job->load(trained_.snapshot, trained_.moments).ok());
    job_ = std::move(job);
    begin_batch();
  }
  [[nodiscard]] bool just_saved() const noexcept { return just_saved_; }

private:
  void begin_batch() {
    ASSERT_TRUE(begin(*job_, batches_[batch_], &loss_, 0.9F).ok());
    just_saved_ = false;
  }

  void go_on() {
    if (saving_) {
      saving_ = false;
      capturing_ = true;
      trained_.snapshot = job_->take_snapshot();
      ASSERT_TRUE(job_->capture().ok());
    } else if (capturing_) {
      capturing_ = false;
      trained_.moments = job_->take_optimizer_state();
      just_saved_ = true;
      done_ = trained_.norms.size() == kSteps;
      if (!done_) {
        begin_batch();
        just_saved_ = true;
      }
    } else if (stepping_) {
      stepping_ = false;
      saving_ = true;
      trained_.sums.push_back(job_->last_update().sums);
      trained_.norms.push_back(job_->last_update().gradient_norm);
      computed_before_ = trained_.logprobs.size();
      ASSERT_TRUE(job_->save({0, 0, trained_.norms.size()}).ok());
    } else {
      just_saved_ = false;
      for (const TrainSequence& sequence : batches_[batch_]) {
        trained_.logprobs.push_back(job_->logprobs(sequence.id).value());
      }
      if (++batch_ % 2 == 0) {
        stepping_ = true;
        ASSERT_TRUE(job_->optim_step().ok());
      } else {
        begin_batch();
      }
    }
  }

  std::unique_ptr<TrainingJob> job_;
  std::vector<std::vector<TrainSequence>> batches_;
  WeightedLoss loss_;
  Trained trained_;
  std::size_t batch_ = 0;
  std::size_t computed_before_ = 0;
  bool stepping_ = false;
  bool saving_ = false;
  bool capturing_ = false;
  bool just_saved_ = false;
  bool done_ = false;
};

class JobSchedulerTest : public ::testing::TestWithParam<SchedulerKind> {
protected:
  [[nodiscard]] std::unique_ptr<ModelRuntime> open(std::int64_t cache_tokens) const {
    RuntimeOptions options = small_options(model_.config, GetParam().backend, cache_tokens,
                                           Training::kNo, GetParam().dtype);
    options.trains_adapters = true;
    return open_runtime(model_, options).value();
  }

  [[nodiscard]] std::unique_ptr<TrainingJob> open_job(ModelRuntime& runtime,
                                                      std::size_t index) const {
    JobOptions options;
    options.adapter = sample_adapter(model_, index == 0 ? "lora" : "dora", 9 + index);
    options.optimizer =
        *small_options(model_.config, GetParam().backend, 64, Training::kYes, GetParam().dtype)
             .optimizer;
    options.activation_bytes = std::int64_t{64} << 20U;
    options.recompute = GetParam().recompute;
    options.window_tokens = GetParam().window_tokens;
    return runtime.open_job(options).value();
  }

  // Two batches for each step. The first holds a group that shares a prompt.
  [[nodiscard]] std::vector<std::vector<TrainSequence>> batches(std::size_t index) const {
    std::vector<std::vector<TrainSequence>> all;
    for (std::uint64_t i = 0; i < 2 * kSteps; ++i) {
      RandomStream random(40 + index, i);
      auto& batch = all.emplace_back();
      const auto prompt = random_ids(model_.config, 18, random);
      for (std::uint64_t id = 0; id < 4; ++id) {
        TrainSequence& sequence = batch.emplace_back();
        sequence.id = {id};
        if (id < 2) {
          sequence.ids = prompt;
        }
        const auto more =
            random_ids(model_.config, 3 + static_cast<std::int64_t>(random.below(20)), random);
        sequence.ids.insert(sequence.ids.end(), more.begin(), more.end());
        sequence.response_mask.assign(sequence.ids.size() - more.size(), 0);
        sequence.response_mask.resize(sequence.ids.size(), 1);
      }
    }
    return all;
  }

  [[nodiscard]] std::vector<RolloutRequest> requests() const {
    std::vector<RolloutRequest> all;
    for (std::uint64_t id = 0; id < 6; ++id) {
      all.push_back(sampling_request(id, model_.config, 4 + static_cast<std::int64_t>(id), 14));
    }
    return all;
  }

  [[nodiscard]] Trained alone(std::size_t index) const {
    const auto runtime = open(1024);
    Script script(open_job(*runtime, index), batches(index));
    while (!script.done()) {
      script.advance({kLarge});
    }
    return script.trained();
  }

  ModelFiles model_ = small_model(5);
};

TEST_P(JobSchedulerTest, GivesTheBitsOfEachJobAlone) {
  std::vector<Trained> expected;
  for (std::size_t index = 0; index < kJobs; ++index) {
    expected.push_back(alone(index));
  }
  EXPECT_NE(expected[0].norms, expected[1].norms);
  ResultKeeper generated;
  {
    const auto runtime = open(1024);
    run_requests(runtime->rollout(), requests(), generated);
  }
  const int rounds = GetParam().backend == Backend::kCpu ? 12 : 3;
  std::uint64_t waits = 0;
  std::uint64_t restarts = 0;
  std::uint64_t moves = 0;
  std::int64_t preemptions = 0;
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE(round);
    RandomStream random(77, static_cast<std::uint64_t>(round));
    const auto runtime = open(96);  // neither all requests nor two micro-batches fit
    std::vector<std::unique_ptr<Script>> scripts;
    for (std::size_t index = 0; index < kJobs; ++index) {
      scripts.push_back(std::make_unique<Script>(open_job(*runtime, index), batches(index)));
    }
    ResultKeeper results;
    for (const RolloutRequest& request : requests()) {
      ASSERT_TRUE(runtime->rollout().submit(request, results).ok());
    }
    const auto left = [&] {
      return runtime->rollout().has_work() || !scripts[0]->done() || !scripts[1]->done();
    };
    for (int turn = 0; left(); ++turn) {
      ASSERT_LT(turn, 100000) << "no progress";
      const std::uint64_t choice = random.below(kJobs + 1);
      if (choice == kJobs) {
        if (runtime->rollout().has_work()) {
          const auto report =
              runtime->rollout().step({1 + static_cast<std::int64_t>(random.below(12))});
          ASSERT_TRUE(report.ok()) << report.status().to_string();
          preemptions += report.value().preemptions;
        }
        continue;
      }
      Script& script = *scripts[choice];
      if (script.done()) {
        continue;
      }
      if (random.below(300) == 0) {
        script.restart();
        ++restarts;
      }
      if (script.just_saved() && random.below(2) == 0) {
        script.move_to(open_job(*runtime, choice));
        ++moves;
      }
      StepBudget budget;
      budget.tokens = 1 + static_cast<std::int64_t>(random.below(90));
      budget.units = 1 + static_cast<std::int64_t>(random.below(random.below(4) == 0 ? 40 : 4));
      waits += script.advance(budget) ? 0 : 1;
      ASSERT_FALSE(HasFatalFailure());
    }
    for (std::size_t index = 0; index < kJobs; ++index) {
      expect_same(scripts[index]->trained(), expected[index]);
    }
    for (const RolloutRequest& request : requests()) {
      expect_same_result(results.at(request.id.value), generated.at(request.id.value));
    }
  }
  std::cout << "[ checked  ] " << GetParam() << ": " << restarts << " restarts, " << moves
            << " moves, " << preemptions << " preemptions, " << waits << " waits for pages\n";
  EXPECT_GT(restarts, 0U);
  EXPECT_GT(moves, 0U);
  EXPECT_GT(preemptions, 0);
  EXPECT_GT(waits, 0U);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, JobSchedulerTest,
    ::testing::Values(SchedulerKind{Backend::kCpu}, SchedulerKind{Backend::kReference},
                      SchedulerKind{Backend::kGuarded},
                      SchedulerKind{Backend::kCpu, Recompute::kLayer, 7},
                      SchedulerKind{Backend::kCpu, Recompute::kCheap, 16, DType::kBF16},
                      SchedulerKind{Backend::kGuarded, Recompute::kNone, 5}),
    [](const auto& test) { return describe(test.param); });

}  // namespace
}  // namespace tidemill::engines
