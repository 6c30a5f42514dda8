// SPDX-License-Identifier: Apache-2.0
// The memory plans of whole runs on the example model.
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temporary_directory.hpp"
#include "workflows/model_run.hpp"
#include "workflows/rl/run_rl.hpp"
#include "workflows/sft/run_sft.hpp"

namespace tidemill::workflows {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string kExamples = TIDEMILL_SOURCE_DIR "/examples/";

template <class Options>
RunPlans plans_of(const Options& options) {
  const auto model = open_trained_model(options.model, options.train.common, options.run.seed);
  EXPECT_TRUE(model.ok()) << model.status().to_string();
  const auto plans =
      plan_memory(options, model.value(), {"2026-01-31T12:00:00", [](const std::string&) {}});
  EXPECT_TRUE(plans.ok()) << plans.status().to_string();
  return plans.value();
}

RlOptions on_policy_run() {
  RlOptions options;
  options.model.path = kExamples + "models/arithmetic";
  options.data.train = {{kExamples + "arithmetic/data/train.jsonl", {}}};
  options.rollout.max_new_tokens = 4;
  options.train.common.steps = 2;
  return options;
}

TEST(RunPlans, SayWhyStepsAreComputedAgain) {
  RlOptions options = on_policy_run();
  const RunPlans kept = plans_of(options);
  EXPECT_GT(kept.expected.engine.generated_bytes, 0);
  EXPECT_EQ(kept.expected.note, "");

  options.train.common.recompute = RecomputeChoice::kLayer;
  EXPECT_THAT(plans_of(options).expected.note, HasSubstr("because the backward pass recomputes"));

  options = on_policy_run();
  options.staleness.max = 1;  // no step is on policy
  EXPECT_EQ(plans_of(options).expected.note, "");

  options = on_policy_run();
  options.rollout.group_size = 64;
  options.rollout.max_new_tokens = 40;
  options.train.prompts_per_step = 256;
  options.run.device.memory_bytes = std::int64_t{64} << 30U;
  const RunPlans large = plans_of(options);
  EXPECT_EQ(large.expected.engine.generated_bytes, 0);
  EXPECT_THAT(large.expected.note,
              HasSubstr("training computes the rows of generation again, because those of a step "
                        "take "));
  EXPECT_THAT(large.expected.note, HasSubstr("and at most 1024.0 MiB are kept"));
  EXPECT_THAT(to_text(large.expected), HasSubstr("; training computes the rows"));
  EXPECT_THAT(to_text(kept.expected), Not(HasSubstr("; ")));
}

TEST(RunPlans, AFolderOfDataIsRefused) {
  RlOptions options = on_policy_run();
  options.data.train = {{kExamples + "arithmetic/data", {}}};
  const auto model = open_trained_model(options.model, options.train.common, options.run.seed);
  const auto refused = plan_memory(options, model.value(), {"", [](const std::string&) {}});
  EXPECT_EQ(refused.status().message(), "data.train: `" + kExamples +
                                            "arithmetic/data` is a folder; name its files, such "
                                            "as \"" +
                                            kExamples + "arithmetic/data/*.jsonl\"");
}

TEST(RunPlans, TheCacheHasTheSizeOfItsKey) {
  RlOptions options = on_policy_run();
  const std::int64_t chosen = plans_of(options).maximum.budgets.kv_bytes;
  options.rollout.kv_bytes = 2 * chosen;
  EXPECT_EQ(plans_of(options).maximum.budgets.kv_bytes, 2 * chosen);
}

TEST(RunPlans, RolloutProcessesCacheLessIfTheRunWouldNotFit) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the address sanitizer keeps freed memory, so that two plans differ by it";
#endif
  RlOptions options = on_policy_run();
  options.placement.rollout.processes = 2;
  options.rollout.group_size = 16;
  options.rollout.max_new_tokens = 48;
  options.train.prompts_per_step = 32;
  options.run.device.memory_bytes = std::int64_t{64} << 30U;
  const MemoryPlan full = plans_of(options).maximum;
  options.run.device.memory_bytes = full.total() - (std::int64_t{100} << 20U);
  const MemoryPlan small = plans_of(options).maximum;
  EXPECT_LE(small.total(), options.run.device.memory_bytes);
  EXPECT_LT(small.processes.rollout_bytes, full.processes.rollout_bytes);
  EXPECT_EQ(small.processes.shared_bytes, full.processes.shared_bytes);
  EXPECT_THAT(to_text(small), HasSubstr(", rollout processes "));
}

TEST(RunPlans, SayWhyStepsWithRolloutProcessesAreComputedAgain) {
  RlOptions options = on_policy_run();
  options.placement.rollout.processes = 1;
  EXPECT_THAT(plans_of(options).expected.note, HasSubstr("because rollout processes generate"));
}

TEST(RunPlans, MessagesAboutRowsNameTheKeyOfTheirFile) {
  SftOptions options;
  options.model.path = kExamples + "models/arithmetic";
  const std::string good = kExamples + "arithmetic/data/sft.jsonl";
  const test::TemporaryDirectory directory;
  const std::string masked = directory.path() / "masked.jsonl";
  std::ofstream(masked) << R"({"input_ids": [1, 2], "loss_mask": [0, 0]})" << '\n';
  options.train.common.steps = 1;
  options.train.sequences_per_step = 1;
  options.eval.every_steps = 1;
  const auto refusal = [&](const std::string& train, const std::string& eval) {
    options.data.train = {{train, {}}};
    options.data.eval = {eval};
    const auto model = open_trained_model(options.model, options.train.common, options.run.seed);
    return plan_memory(options, model.value(), {"", [](const std::string&) {}}).status().message();
  };
  const std::string problem = ": none of its 1 rows has a target (masked, or too long)";
  EXPECT_EQ(refusal(masked, good), "data.train" + problem);
  EXPECT_EQ(refusal(good, masked), "data.eval" + problem);
}

TEST(RunPlans, ExpectNoCopyForACommitAtTheEnd) {
  SftOptions options;
  options.model.path = kExamples + "models/arithmetic";
  options.data.train = {{kExamples + "arithmetic/data/sft.jsonl", {}}};
  options.train.common.steps = 20;
  for (const std::int64_t every : {0, 20, 19}) {
    options.run.checkpoint.every_steps = every;
    const RunPlans plans = plans_of(options);
    EXPECT_EQ(plans.expected.engine.capture_bytes > 0, every == 19) << every;
    EXPECT_GT(plans.maximum.engine.capture_bytes, 0) << "an upper bound";
  }
}

}  // namespace
}  // namespace tidemill::workflows
