// SPDX-License-Identifier: Apache-2.0
// The memory plans of servers with fine-tuning jobs, on the example model.
#include <regex>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.hpp"
#include "workflows/model_run.hpp"
#include "workflows/serve/job_memory.hpp"
#include "workflows/serve/run_serve.hpp"
#include "workflows/sft/run_sft.hpp"

namespace tidemill::workflows {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// What the process uses before the server starts.
constexpr std::int64_t kProgramBytes = std::int64_t{20} << 20U;

ServeOptions server() {
  ServeOptions options;
  options.model.path = TIDEMILL_SOURCE_DIR "/examples/models/arithmetic";
  options.serve.jobs_path = "jobs";
  options.serve.kv_bytes = std::int64_t{8} << 20U;
  options.device.memory_bytes = std::int64_t{8} << 30U;
  return options;
}

Result<ServerPlan> plan_of(const ServeOptions& options) {
  return plan_memory(options, SystemClock(), kProgramBytes);
}

// Returns what a default job with the longest sequence takes at least.
std::int64_t job_bytes() {
  const ServeOptions options = server();
  TrainOptions train;
  train.adapter.emplace();
  const auto model = open_trained_model(options.model, train, 0);
  EXPECT_TRUE(model.ok()) << model.status().to_string();
  return least_shared_plan({}, model.value(), 64).total();  // the context
}

// Returns the memory for which a server with `jobs` jobs has just enough.
std::int64_t memory_for(std::int32_t jobs) {
  ServeOptions options = server();
  options.serve.tuning.max_running = jobs;
  const auto plan = plan_of(options);
  EXPECT_TRUE(plan.ok()) << plan.status().to_string();
  return plan.value().server.total() + jobs * job_bytes();
}

// Returns the plan of a job with an adapter of this rank and rows of two tokens.
MemoryPlan plan_of_rank(std::int32_t rank) {
  TrainOptions train;
  train.adapter.emplace();
  train.adapter->source.get<NewLora>()->rank = rank;
  const auto model = open_trained_model(server().model, train, 0);
  EXPECT_TRUE(model.ok()) << model.status().to_string();
  return least_shared_plan({}, model.value(), 2);
}

TEST(ServePlan, ARankThatCannotFitIsKnownBeforeItsAdapterIsMade) {
  TrainOptions train;
  train.adapter.emplace();
  auto* lora = train.adapter->source.get<NewLora>();
  const ServeOptions options = server();
  const auto model = open_trained_model(options.model, {}, 0);
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  const JobModel trained{options.model, model.value().files};
  const JobShare share{plan_of_rank(64).total(), 4};
  for (const std::int32_t rank : {1, 16, 64}) {
    lora->rank = rank;
    const Status fits = check_rank(train, trained, share);
    EXPECT_TRUE(fits.ok()) << fits.to_string();
  }
  lora->rank = 256;
  EXPECT_THAT(check_rank(train, trained, share).message(),
              AllOf(StartsWith("train.adapter.rank: a job of rank 256 needs at least "),
                    HasSubstr(", and each of 4 jobs (serve.tuning.max_running) may have "),
                    HasSubstr("; rank 64 fits with short rows; lower serve.tuning.max_running to "
                              "give each job more")));
  lora->rank = 64;
  EXPECT_FALSE(check_rank(train, trained, {share.bytes - 1, 4}).ok());
  EXPECT_THAT(check_rank(train, trained, {1, 1}).message(),
              HasSubstr("the job may have 0.0 MiB; no rank fits with these target_modules"));
}

TEST(ServePlan, FourJobsTrainAtATimeByDefault) {
  const auto plan = plan_of(server());
  ASSERT_TRUE(plan.ok()) << plan.status().to_string();
  EXPECT_EQ(plan.value().max_jobs, 4);
  EXPECT_EQ(plan.value().note, "");
  EXPECT_GT(plan.value().job_bytes, job_bytes());
}

TEST(ServePlan, SaysThatTheContextLimitsTheSequencesOfAJob) {
  ServeOptions options = server();
  options.serve.tuning.job_tokens = 100'000;
  options.serve.tuning.max_running = 1;
  const auto plan = plan_of(options);
  ASSERT_TRUE(plan.ok()) << plan.status().to_string();
  EXPECT_EQ(plan.value().note,
            "serve.tuning.job_tokens exceeds the 64 tokens of the model's context, which limit the "
            "sequences of a job");
}

TEST(ServePlan, FewerJobsTrainAtATimeIfMemoryRequiresIt) {
  ServeOptions options = server();
  options.device.memory_bytes = memory_for(2);
  const auto plan = plan_of(options);
  ASSERT_TRUE(plan.ok()) << plan.status().to_string();
  EXPECT_EQ(plan.value().max_jobs, 2);
  EXPECT_GE(plan.value().job_bytes, job_bytes());
  EXPECT_LE(plan.value().server.total() + 2 * plan.value().job_bytes, options.device.memory_bytes);
  EXPECT_EQ(plan.value().note,
            "memory is enough for 2 of the 4 jobs that train at the same time by default");
}

TEST(ServePlan, AGivenNumberOfJobsMustFit) {
  ServeOptions options = server();
  options.device.memory_bytes = memory_for(2);
  options.serve.tuning.max_running = 3;
  EXPECT_THAT(plan_of(options).status().message(),
              AllOf(StartsWith("device.memory_bytes: "),
                    HasSubstr(" for each of 3 jobs with a sequence of 64 tokens; "
                              "serve.tuning.max_running=2 fits; or raise device.memory_bytes, or "
                              "lower serve.tuning.job_tokens, serve.kv_bytes or "
                              "serve.adapter_bytes")));
  options.serve.tuning.max_running = 2;
  EXPECT_TRUE(plan_of(options).ok());
}

// Returns the number before "MiB are needed" or after "needs", rounded up. Units: bytes.
std::int64_t needed_bytes(const std::string& message) {
  std::smatch found;
  const bool has_number =
      std::regex_search(message, found, std::regex("([0-9.]+) MiB are needed")) ||
      std::regex_search(message, found, std::regex("needs ([0-9.]+) MiB"));
  EXPECT_TRUE(has_number) << message;
  return has_number ? static_cast<std::int64_t>(std::stod(found[1]) * (1 << 20U)) : 0;
}

TEST(ServePlan, TheMemoryThatIsNeededIsEnough) {
  for (const bool with_jobs : {true, false}) {
    ServeOptions options = server();
    options.serve.kv_bytes.reset();    // a part of the memory
    options.serve.max_running = 4096;  // whose caches exceed it
    if (!with_jobs) {
      options.serve.jobs_path.reset();
    }
    options.device.memory_bytes = std::int64_t{64} << 20U;
    const std::int64_t needed = needed_bytes(plan_of(options).status().message());
    options.device.memory_bytes = needed;
    EXPECT_TRUE(plan_of(options).ok()) << plan_of(options).status().message();
    options.device.memory_bytes = needed - (std::int64_t{1} << 20U);
    EXPECT_FALSE(plan_of(options).ok());
  }
}

TEST(ServePlan, OneJobMustFit) {
  ServeOptions options = server();
  options.device.memory_bytes = memory_for(1) - 1;
  EXPECT_THAT(plan_of(options).status().message(),
              AllOf(StartsWith("device.memory_bytes: "),
                    HasSubstr(" for a job with a sequence of 64 tokens; raise "
                              "device.memory_bytes, or lower")));
  options.serve.jobs_path.reset();
  EXPECT_TRUE(plan_of(options).ok());
}

}  // namespace
}  // namespace tidemill::workflows
