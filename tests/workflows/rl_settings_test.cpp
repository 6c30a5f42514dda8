// SPDX-License-Identifier: Apache-2.0
// Tests the checks of reinforcement-learning options against model and data.
#include "workflows/rl/rl_settings.hpp"

#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "workflows/rl/run_rl.hpp"

namespace tidemill::workflows {
namespace {

using ::testing::HasSubstr;

engines::ModelConfig config_of(std::int64_t max_positions) {
  engines::ModelConfig config;
  config.max_positions = max_positions;
  return config;
}

TEST(RlSettings, PromptsGetTheContextThatResponsesLeave) {
  RlOptions options;
  options.rollout.max_new_tokens = 24;
  EXPECT_EQ(max_prompt_tokens(options, config_of(64)), 40);
  options.data.max_prompt_tokens = 16;
  EXPECT_EQ(max_prompt_tokens(options, config_of(64)), 16);
  options.data.max_prompt_tokens = 60;
  EXPECT_EQ(max_prompt_tokens(options, config_of(64)), 40);
}

TEST(RlSettings, AResponseMustLeaveRoomForAPrompt) {
  RlOptions options;
  options.rollout.max_new_tokens = 63;
  EXPECT_TRUE(check_fit(options, config_of(64)).ok());
  options.rollout.max_new_tokens = 64;
  EXPECT_THAT(check_fit(options, config_of(64)).message(),
              HasSubstr("rollout.max_new_tokens: 64 leaves no room"));
}

TEST(RlSettings, PromptTokensOfAnIterationAreUnlimitedByDefault) {
  RlOptions options;
  EXPECT_EQ(executor_options(options).prefill_tokens, engines::ExecutorOptions{}.prefill_tokens);
  options.rollout.prefill_tokens = 128;
  EXPECT_EQ(executor_options(options).prefill_tokens, 128);
}

TEST(RlSettings, TheStreamMustHoldABatch) {
  RlOptions options;
  options.rollout.max_new_tokens = 4;
  options.rollout.group_size = 2;
  options.train.prompts_per_step = 3;
  actors::PromptFacts facts;
  facts.max_bytes = 100'000;
  facts.largest = "train.jsonl:7";
  EXPECT_TRUE(check_batch_fits(options, facts).ok()) << "with the default of stream.bytes";
  options.stream.bytes = 3 * 2 * (100'000 + 4 * 8 + 1024);
  EXPECT_EQ(static_cast<std::int64_t>(3 * stream_options(options, facts.max_bytes).group_bytes),
            options.stream.bytes);
  EXPECT_TRUE(check_batch_fits(options, facts).ok());
  --options.stream.bytes;
  EXPECT_EQ(check_batch_fits(options, facts).message(),
            "stream.bytes: 606335 cannot hold a batch; 3 prompts with 2 samples each may take "
            "606336 (the largest prompt: train.jsonl:7)");
}

TEST(RlSettings, AFixedOrderNeedsRoomForAllBatchesInFlight) {
  RlOptions options;
  options.rollout.group_size = 2;
  options.train.prompts_per_step = 3;
  options.staleness.max = 2;
  actors::PromptFacts facts;
  facts.max_bytes = 100'000;
  facts.largest = "train.jsonl:7";
  const auto batch =
      static_cast<std::int64_t>(3 * stream_options(options, facts.max_bytes).group_bytes);
  options.stream.bytes = 3 * batch - 1;
  EXPECT_TRUE(check_batch_fits(options, facts).ok());
  options.staleness.schedule = StalenessSchedule::kFixed;
  EXPECT_THAT(check_batch_fits(options, facts).message(),
              HasSubstr("cannot hold the 3 batches that staleness.schedule: fixed needs; 9 prompts "
                        "with 2 samples each"));
  options.stream.bytes = 3 * batch;
  EXPECT_TRUE(check_batch_fits(options, facts).ok());
}

TEST(RlSettings, ACacheMustHoldTheLongestSequenceAndFitInMemory) {
  RlOptions options;
  actors::Lengths prompts;
  prompts.add(40, {"train.jsonl", 3});
  EXPECT_TRUE(check_cache(options, prompts, 5000, 6000).ok()) << "the plan chooses";
  options.rollout.kv_bytes = 5000;
  EXPECT_TRUE(check_cache(options, prompts, 5000, 6000).ok());
  options.rollout.kv_bytes = 4999;
  EXPECT_EQ(check_cache(options, prompts, 5000, 6000).message(),
            "rollout.kv_bytes: 4999 cannot hold the longest sequence, which takes 5000 bytes: a "
            "prompt of 40 tokens (train.jsonl:3) and rollout.max_new_tokens");
  options.rollout.kv_bytes = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(check_cache(options, prompts, 5000, 6000).message(),
            "rollout.kv_bytes: 9223372036854775807 exceeds the 6000 bytes of memory that the run "
            "may use");
}

TEST(RlSettings, LongPromptsAreCountedWithWhatBecameOfThem) {
  DataOptions data;
  data.on_long_prompt = OnLongPrompt::kSkip;
  const actors::LongPrompts two{2, "a.jsonl:3: 9 tokens"};
  EXPECT_EQ(long_prompts_text("data.eval", data, two, 7),
            "data.eval: 2 of 7 prompts are too long and were skipped; the first: a.jsonl:3: 9 "
            "tokens");
  data.on_long_prompt = OnLongPrompt::kTruncateLeft;
  EXPECT_EQ(long_prompts_text("data.train", data, two, 7),
            "data.train: 2 of 7 prompts are too long and were truncated; the first: a.jsonl:3: 9 "
            "tokens");
}

TEST(RlSettings, PromptsAreReadWithTheSettingsOfTheirKeys) {
  RlOptions options;
  options.rollout.max_new_tokens = 24;
  options.data.max_prompt_tokens = 16;
  options.data.on_long_prompt = OnLongPrompt::kSkip;
  const actors::DatasetPromptOptions prompts = prompt_options(options, config_of(64));
  EXPECT_EQ(prompts.max_prompt_tokens, 16);
  EXPECT_EQ(prompts.on_long_prompt, actors::OnLongPrompt::kSkip);
}

TEST(RlSettings, TheLengthOfARunIsCountedInWholeBatches) {
  RlOptions options;
  options.train.prompts_per_step = 4;
  const auto steps = [&](std::uint64_t prompts) { return total_steps(options, prompts).value(); };
  EXPECT_EQ(steps(4), 1U);
  EXPECT_EQ(steps(11), 2U);
  options.data.epochs = 3;
  EXPECT_EQ(steps(11), 8U) << "batches continue into the next epoch";
  EXPECT_EQ(steps(2), 1U);
  const Status refused = total_steps(options, 1).status();
  EXPECT_EQ(refused.code(), Errc::kInvalidArgument);
  EXPECT_EQ(refused.message(),
            "train.prompts_per_step: the data has 1 prompts, fewer than one batch");
  options.train.common.steps = 5;
  EXPECT_EQ(steps(1), 5U);
}

TEST(RlSettings, TheDefaultStreamHoldsPromptsThatFillAnOrdinaryContext) {
  actors::PromptFacts facts;
  facts.max_bytes = 4 * 32'768;
  EXPECT_TRUE(check_batch_fits(RlOptions(), facts).ok());
}

}  // namespace
}  // namespace tidemill::workflows
