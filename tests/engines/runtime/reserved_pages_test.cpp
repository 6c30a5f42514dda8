// SPDX-License-Identifier: Apache-2.0
// Pages of the cache that are reserved for one job: it never waits for pages, its neighbors cannot
// take them, and no bit changes.
#include <algorithm>
#include <cstdint>
#include <limits>
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

constexpr std::int64_t kCache = 96;     // positions: 6 pages
constexpr std::int64_t kReserved = 64;  // 4 of them

class ReservedPagesTest : public ::testing::Test {
protected:
  [[nodiscard]] std::unique_ptr<ModelRuntime> open(std::int64_t cache_tokens = kCache) const {
    RuntimeOptions options =
        small_options(model_.config, Backend::kCpu, cache_tokens, Training::kNo);
    options.trains_adapters = true;
    return open_runtime(model_, options).value();
  }

  [[nodiscard]] Result<std::unique_ptr<TrainingJob>> open_job(ModelRuntime& runtime,
                                                              std::int64_t reserved) const {
    JobOptions options;
    options.adapter = sample_adapter(model_, "lora", 9);
    options.optimizer = *small_options(model_.config, Backend::kCpu, 64, Training::kYes).optimizer;
    options.activation_bytes = std::int64_t{16} << 20U;
    options.reserved_tokens = reserved;
    return runtime.open_job(options);
  }

  // A group that shares a prompt, and two more sequences. The longest has `longest` rows.
  [[nodiscard]] std::vector<TrainSequence> batch(std::int64_t longest) const {
    RandomStream random(8);
    const auto prompt = random_ids(model_.config, 18, random);
    std::vector<TrainSequence> all;
    for (std::uint64_t id = 0; id < 5; ++id) {
      TrainSequence& sequence = all.emplace_back();
      sequence.id = {id};
      sequence.ids = id < 3 ? prompt : std::vector<std::int32_t>();
      const std::int64_t more = id == 4 ? longest + 1 : 5 + static_cast<std::int64_t>(id);
      const auto ids = random_ids(model_.config, more, random);
      sequence.response_mask.assign(sequence.ids.size(), 0);
      sequence.ids.insert(sequence.ids.end(), ids.begin(), ids.end());
      sequence.response_mask.resize(sequence.ids.size(), 1);
    }
    return all;
  }

  // Does a step on `batch(longest)`, unit by unit, and calls `between` after each unit.
  template <class Between>
  Snapshot train(TrainingJob& job, std::int64_t longest, const Between& between) {
    StepBudget one;
    one.units = 1;
    WeightedLoss loss;
    const auto run = [&] {
      while (job.has_work()) {
        const auto report = job.advance(one);
        ASSERT_TRUE(report.ok()) << report.status().to_string();
        ASSERT_FALSE(report.value().waits_for_pages);
        between();
      }
    };
    EXPECT_TRUE(begin(job, batch(longest), &loss).ok());
    run();
    EXPECT_TRUE(job.optim_step().ok());
    run();
    return publish(job, {0, 0, 1}).value();
  }

  [[nodiscard]] Snapshot alone(std::int64_t longest) {
    const auto runtime = open(1024);
    return train(*open_job(*runtime, 0).value(), longest, [] {});
  }

  [[nodiscard]] std::vector<RolloutRequest> requests() const {
    std::vector<RolloutRequest> all;
    for (std::uint64_t id = 0; id < 8; ++id) {
      all.push_back(sampling_request(id, model_.config, 6 + static_cast<std::int64_t>(id), 18));
    }
    return all;
  }

  void expect_generated(const ResultKeeper& results) const {
    const auto runtime = open(1024);
    ResultKeeper expected;
    run_requests(runtime->rollout(), requests(), expected);
    for (const RolloutRequest& request : requests()) {
      expect_same_result(results.at(request.id.value), expected.at(request.id.value));
    }
  }

  ModelFiles model_ = small_model(5);
};

// Generation and another job use all that is shared. The job with a reservation still starts every
// micro-batch at once, and preempts nothing: generation goes on in its own pages.
TEST_F(ReservedPagesTest, AJobWithAReservationNeverWaits) {
  const auto runtime = open();
  const auto job = open_job(*runtime, kReserved).value();
  const auto neighbor = open_job(*runtime, 0).value();
  ResultKeeper results;
  for (const RolloutRequest& request : requests()) {
    ASSERT_TRUE(runtime->rollout().submit(request, results).ok());
  }
  WeightedLoss loss;
  std::vector<TrainSequence> others = batch(30);
  ASSERT_TRUE(begin(*neighbor, others, &loss).ok());
  StepBudget one;
  one.units = 1;
  int turn = 0;
  int neighbor_waits = 0;
  const Snapshot trained = train(*job, 50, [&] {
    if (++turn % 3 == 0 && runtime->rollout().has_work()) {
      ASSERT_TRUE(runtime->rollout().step({4}).ok());
    }
    if (turn % 5 == 0 && neighbor->has_work()) {
      neighbor_waits += neighbor->advance(one).value().waits_for_pages ? 1 : 0;
    }
  });
  const Snapshot expected = alone(50);
  EXPECT_EQ(trained.adapter_digest, expected.adapter_digest);
  EXPECT_TRUE(same_tensors(trained.adapter, expected.adapter));
  ASSERT_TRUE(run_to_end(*neighbor).ok());
  ASSERT_TRUE(update(*neighbor).ok());
  EXPECT_EQ(publish(*neighbor, {0, 0, 1}).value().adapter_digest, alone(30).adapter_digest);
  run_to_end(runtime->rollout());
  expect_generated(results);
}

// With all shared pages in use by one running request, a job without a reservation preempts it, and
// one with a reservation does not.
TEST_F(ReservedPagesTest, AJobWithAReservationTakesNothingFromGeneration) {
  for (const std::int64_t reserved : {std::int64_t{0}, kReserved}) {
    const auto runtime = open(reserved > 0 ? kCache : kCache - kReserved);
    const auto job = open_job(*runtime, reserved).value();
    ResultKeeper results;
    ASSERT_TRUE(
        runtime->rollout().submit(sampling_request(1, model_.config, 20, 12), results).ok());
    ASSERT_TRUE(runtime->rollout().step({64}).ok());
    ASSERT_TRUE(begin(*job, batch(20), nullptr).ok());
    StepBudget one;
    one.units = 1;
    ASSERT_FALSE(job->advance(one).value().waits_for_pages);
    EXPECT_EQ(runtime->rollout().step({64}).value().preemptions, reserved > 0 ? 0 : 1);
    ASSERT_TRUE(run_to_end(*job).ok());
    run_to_end(runtime->rollout());
    EXPECT_TRUE(results.has(1));
  }
}

TEST_F(ReservedPagesTest, NeighborsCannotTakeReservedPages) {
  const auto runtime = open();
  auto job = open_job(*runtime, kReserved).value();
  const auto neighbor = open_job(*runtime, 0).value();
  ResultKeeper results;
  const RolloutRequest large = sampling_request(1, model_.config, 40, 10);
  const Status request = runtime->rollout().submit(large, results);
  EXPECT_EQ(request.code(), Errc::kResourceExhausted);
  EXPECT_NE(request.message().find("the cache of 32 tokens"), std::string::npos)
      << request.message();
  const Status shared = begin(*neighbor, batch(40), nullptr);
  EXPECT_EQ(shared.code(), Errc::kResourceExhausted);
  EXPECT_NE(shared.message().find("the cache of 32 tokens"), std::string::npos) << shared.message();
  const Status reserved = begin(*job, batch(65), nullptr);
  EXPECT_EQ(reserved.code(), Errc::kResourceExhausted);
  EXPECT_NE(reserved.message().find("the reservation of 64 tokens"), std::string::npos)
      << reserved.message();
  ASSERT_TRUE(begin(*job, batch(64), nullptr).ok());
  EXPECT_TRUE(run_to_end(*job).ok());
  // A job that ends in the middle of its work gives all of them back.
  ASSERT_TRUE(begin(*job, batch(64), nullptr).ok());
  StepBudget one;
  one.units = 1;
  ASSERT_TRUE(job->advance(one).ok());
  job.reset();
  ASSERT_TRUE(begin(*neighbor, batch(kCache), nullptr).ok());
  EXPECT_TRUE(run_to_end(*neighbor).ok());
  EXPECT_TRUE(runtime->rollout().submit(large, results).ok());
  run_to_end(runtime->rollout());
  EXPECT_TRUE(results.has(1));
}

// A reservation preempts requests, but leaves every accepted request and batch the pages it needs.
TEST_F(ReservedPagesTest, AcceptedWorkKeepsThePagesThatItNeeds) {
  const auto runtime = open();
  const auto refused = [&](std::int64_t reserved, Errc code) {
    const Status status = open_job(*runtime, reserved).status();
    EXPECT_EQ(status.code(), code) << status.to_string();
  };
  refused(-1, Errc::kInvalidArgument);
  refused(kCache + 1, Errc::kResourceExhausted);
  refused(std::numeric_limits<std::int64_t>::max(), Errc::kResourceExhausted);
  ResultKeeper results;
  for (const RolloutRequest& request : requests()) {
    ASSERT_TRUE(runtime->rollout().submit(request, results).ok());
  }
  for (int i = 0; i < 6; ++i) {
    ASSERT_TRUE(runtime->rollout().step({64}).ok());
  }
  refused(kReserved + 16, Errc::kResourceExhausted);  // 2 pages for the longest request
  {
    const auto neighbor = open_job(*runtime, 0).value();
    ASSERT_TRUE(begin(*neighbor, batch(40), nullptr).ok());
    refused(kReserved, Errc::kResourceExhausted);  // 3 pages for its longest sequence
    ASSERT_TRUE(run_to_end(*neighbor).ok());
  }
  ASSERT_TRUE(runtime->rollout().step({64}).ok());
  const auto job = open_job(*runtime, kReserved).value();
  train(*job, 40, [] {});
  run_to_end(runtime->rollout());
  expect_generated(results);
}

// Reserved pages are not generation's to use: what is left counts as the whole.
TEST_F(ReservedPagesTest, TheUseOfTheCacheIsThatOfThePagesThatAreShared) {
  const auto use_of = [&](ModelRuntime& runtime) {
    ResultKeeper results;
    for (const RolloutRequest& request : requests()) {
      EXPECT_TRUE(runtime.rollout().submit(request, results).ok());
    }
    std::vector<double> use;
    while (runtime.rollout().has_work()) {
      use.push_back(runtime.rollout().step({64}).value().kv_use);
    }
    return use;
  };
  const auto small = open(kCache - kReserved);
  const std::vector<double> expected = use_of(*small);
  EXPECT_EQ(std::ranges::max(expected), 1.0);
  const auto runtime = open();
  const auto job = open_job(*runtime, kReserved).value();
  EXPECT_EQ(use_of(*runtime), expected);
}

TEST_F(ReservedPagesTest, PagesThatAnotherJobHoldsAreNotReserved) {
  const auto runtime = open();
  const auto neighbor = open_job(*runtime, 0).value();
  ASSERT_TRUE(begin(*neighbor, batch(20), nullptr).ok());
  StepBudget budget{60};
  budget.units = 1;
  ASSERT_TRUE(neighbor->advance(budget).ok());  // holds more than 2 pages
  EXPECT_EQ(open_job(*runtime, kReserved).status().code(), Errc::kUnavailable);
  ASSERT_TRUE(run_to_end(*neighbor).ok());
  EXPECT_TRUE(open_job(*runtime, kReserved).ok());
}

}  // namespace
}  // namespace tidemill::engines
