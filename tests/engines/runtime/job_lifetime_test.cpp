// SPDX-License-Identifier: Apache-2.0
// A job that is paused, captured and restored, or ended in the middle of the work of another job
// and of generation. Neither it nor the others compute other bits.
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"
#include "tests/engines/runtime/job_steps.hpp"
#include "tests/engines/runtime/runtime_bench.hpp"
#include "tests/engines/transformer/random_model.hpp"

namespace tidemill::engines {
namespace {

// What a job has computed.
struct Finished {
  TensorMap moments;
  Snapshot snapshot;
  std::vector<LossSums> sums;
  std::vector<std::vector<float>> logprobs;
};

void expect_same(const Finished& actual, const Finished& expected) {
  EXPECT_TRUE(same_tensors(actual.moments, expected.moments));
  EXPECT_TRUE(same_tensors(actual.snapshot.adapter, expected.snapshot.adapter));
  EXPECT_EQ(actual.snapshot.adapter_digest, expected.snapshot.adapter_digest);
  EXPECT_EQ(actual.sums, expected.sums);
  EXPECT_EQ(actual.logprobs, expected.logprobs);
}

// A job and where it is in its work: two batches, each with its update, and a snapshot.
class Work {
public:
  Work(std::unique_ptr<TrainingJob> job, std::vector<std::vector<TrainSequence>> batches)
      : job_(std::move(job)), batches_(std::move(batches)) {
    go_on();
  }
  Work(const Work&) = delete;  // the job refers to the loss
  Work& operator=(const Work&) = delete;
  ~Work() = default;

  [[nodiscard]] bool done() const noexcept { return stage_ > 2 * batches_.size() + 1; }
  [[nodiscard]] TrainingJob& job() noexcept { return *job_; }
  [[nodiscard]] const Finished& finished() const noexcept { return finished_; }

  // Runs one unit. Returns whether it computed anything.
  bool advance() {
    StepBudget one;
    one.units = 1;
    const auto report = job_->advance(one);
    EXPECT_TRUE(report.ok()) << report.status().to_string();
    if (!job_->has_work()) {
      finish_stage();
      go_on();
    }
    return !report.value().waits_for_pages;
  }

  // Captures the job, drops it, and continues in `make()`. A batch that is not done starts again.
  void capture_and_restore(const std::function<std::unique_ptr<TrainingJob>()>& make) {
    const bool updates = stage_ % 2 == 0 && stage_ <= 2 * batches_.size();
    while (updates && job_->has_work()) {  // its gradients are not part of a capture
      advance_to_end_of_stage();
    }
    if (stage_ > 2 * batches_.size()) {
      return;  // nothing but a snapshot is left
    }
    job_->cancel();
    const Snapshot snapshot = publish(*job_, {0, 0, 9}).value();
    const TensorMap moments = optimizer_state(*job_).value();
    job_.reset();
    job_ = make();
    ASSERT_TRUE(job_->load(snapshot, moments).ok());
    start_stage();
  }

private:
  void advance_to_end_of_stage() {
    ASSERT_TRUE(run_to_end(*job_).ok());
    finish_stage();
    go_on();
  }
  // Stages 1 and 3 are batches, 2 and 4 their updates, and 5 is the snapshot.
  void go_on() {
    ++stage_;
    start_stage();
  }
  void start_stage() {
    if (stage_ == 2 * batches_.size() + 1) {
      ASSERT_TRUE(job_->save({0, 0, 1}).ok());
    } else if (!done() && stage_ % 2 == 0) {
      ASSERT_TRUE(job_->optim_step().ok());
    } else if (!done()) {
      ASSERT_TRUE(begin(*job_, batches_[stage_ / 2], &loss_, 0.9F).ok());
    }
  }
  void finish_stage() {
    if (stage_ == 2 * batches_.size() + 1) {
      finished_.snapshot = job_->take_snapshot();
      finished_.moments = optimizer_state(*job_).value();
    } else if (stage_ % 2 == 0) {
      finished_.sums.push_back(job_->last_update().sums);
    } else {
      for (const TrainSequence& sequence : batches_[stage_ / 2]) {
        finished_.logprobs.push_back(job_->logprobs(sequence.id).value());
      }
    }
  }

  WeightedLoss loss_;
  std::unique_ptr<TrainingJob> job_;
  std::vector<std::vector<TrainSequence>> batches_;
  Finished finished_;
  std::size_t stage_ = 0;
};

class JobLifetimeTest : public ::testing::Test {
protected:
  [[nodiscard]] std::unique_ptr<ModelRuntime> open(std::int64_t cache_tokens) const {
    RuntimeOptions options =
        small_options(model_.config, Backend::kCpu, cache_tokens, Training::kNo);
    options.trains_adapters = true;
    return open_runtime(model_, options).value();
  }

  [[nodiscard]] std::unique_ptr<TrainingJob> open_job(ModelRuntime& runtime,
                                                      std::uint64_t index) const {
    JobOptions options;
    options.adapter = sample_adapter(model_, index == 0 ? "dora" : "lora", 9 + index);
    options.optimizer = *small_options(model_.config, Backend::kCpu, 64, Training::kYes).optimizer;
    options.activation_bytes = std::int64_t{16} << 20U;
    options.window_tokens = 8;
    return runtime.open_job(options).value();
  }

  [[nodiscard]] std::vector<std::vector<TrainSequence>> batches(std::uint64_t index) const {
    std::vector<std::vector<TrainSequence>> all;
    for (std::uint64_t i = 0; i < 2; ++i) {
      RandomStream random(60 + index, i);
      auto& batch = all.emplace_back();
      for (std::uint64_t id = 0; id < 3; ++id) {
        TrainSequence& sequence = batch.emplace_back();
        sequence.id = {id};
        sequence.ids =
            random_ids(model_.config, 10 + static_cast<std::int64_t>(random.below(20)), random);
        sequence.response_mask.assign(sequence.ids.size(), 1);
      }
    }
    return all;
  }

  [[nodiscard]] std::unique_ptr<Work> work(ModelRuntime& runtime, std::uint64_t index) const {
    return std::make_unique<Work>(open_job(runtime, index), batches(index));
  }

  [[nodiscard]] Finished alone(std::uint64_t index) const {
    const auto runtime = open(1024);
    const auto all = work(*runtime, index);
    while (!all->done()) {
      all->advance();
    }
    return all->finished();
  }

  [[nodiscard]] std::vector<RolloutRequest> requests() const {
    std::vector<RolloutRequest> all;
    for (std::uint64_t id = 0; id < 5; ++id) {
      all.push_back(sampling_request(id, model_.config, 4 + static_cast<std::int64_t>(id), 12));
    }
    return all;
  }

  // Lets the first job do `units` units while the second job and generation work too, disturbs the
  // first one, runs the others to their end, and then what is left of the first.
  void disturb(const std::function<void(ModelRuntime&, std::unique_ptr<Work>&)>& action) const {
    const Finished first = alone(0);
    const Finished second = alone(1);
    ResultKeeper generated;
    run_requests(open(1024)->rollout(), requests(), generated);
    int disturbed = 0;
    bool ended = false;
    for (int units = 1; !ended; units += 1 + units / 2) {
      SCOPED_TRACE(units);
      const auto runtime = open(112);
      auto victim = work(*runtime, 0);
      auto other = work(*runtime, 1);
      ResultKeeper results;
      for (const RolloutRequest& request : requests()) {
        ASSERT_TRUE(runtime->rollout().submit(request, results).ok());
      }
      for (int i = 0; i < units && !victim->done(); ++i) {
        victim->advance();
        if (!other->done()) {
          other->advance();
        }
        if (i % 4 == 0 && runtime->rollout().has_work()) {
          ASSERT_TRUE(runtime->rollout().step({4}).ok());
        }
      }
      ended = victim->done();
      action(*runtime, victim);
      ++disturbed;
      for (int turn = 0; !other->done(); ++turn) {
        ASSERT_LT(turn, 100000) << "the job waits for pages";
        if (!other->advance()) {  // the pages of the paused job
          ASSERT_NE(victim, nullptr);
          ASSERT_FALSE(victim->done());
          victim->advance();
        }
      }
      for (int turn = 0; runtime->rollout().has_work(); ++turn) {
        ASSERT_LT(turn, 100000) << "generation waits for pages";
        ASSERT_TRUE(runtime->rollout().step({16}).ok());
        if (victim != nullptr && !victim->done()) {
          victim->advance();
        }
      }
      while (victim != nullptr && !victim->done()) {
        victim->advance();
      }
      if (victim != nullptr) {
        expect_same(victim->finished(), first);
      }
      expect_same(other->finished(), second);
      for (const RolloutRequest& request : requests()) {
        expect_same_result(results.at(request.id.value), generated.at(request.id.value));
      }
      victim.reset();
      other.reset();
      expect_all_pages_free(*runtime);
    }
    EXPECT_GT(disturbed, 10);
  }

  // A sequence of all positions of the cache can be trained.
  void expect_all_pages_free(ModelRuntime& runtime) const {
    const auto job = open_job(runtime, 1);
    RandomStream random(3);
    TrainSequence sequence;
    sequence.id = {1};
    sequence.ids = random_ids(model_.config, 112, random);
    sequence.response_mask.assign(sequence.ids.size(), 1);
    ASSERT_TRUE(begin(*job, {sequence}, nullptr).ok());
    EXPECT_TRUE(run_to_end(*job).ok());
  }

  ModelFiles model_ = small_model(5);
};

TEST_F(JobLifetimeTest, APausedJobContinuesWithItsBits) {
  disturb([](ModelRuntime&, std::unique_ptr<Work>&) {});
}

TEST_F(JobLifetimeTest, ACapturedJobContinuesInAnotherObject) {
  disturb([this](ModelRuntime& runtime, std::unique_ptr<Work>& victim) {
    if (!victim->done()) {
      victim->capture_and_restore([&] { return open_job(runtime, 0); });
    }
  });
}

TEST_F(JobLifetimeTest, AnEndedJobLeavesNothing) {
  disturb([](ModelRuntime&, std::unique_ptr<Work>& victim) { victim.reset(); });
}

}  // namespace
}  // namespace tidemill::engines
