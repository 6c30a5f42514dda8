// SPDX-License-Identifier: Apache-2.0
// Compares estimated loads with values calculated by hand.
#include "workflows/rl/rl_load.hpp"

#include <gtest/gtest.h>

namespace tidemill::workflows {
namespace {

actors::Lengths rows_of(std::int64_t count, std::int64_t tokens) {
  actors::Lengths lengths;
  for (std::int64_t i = 0; i < count; ++i) {
    lengths.add(tokens);
  }
  return lengths;
}

RlOptions small_run() {
  RlOptions options;
  options.rollout.group_size = 4;
  options.rollout.max_new_tokens = 8;
  options.train.prompts_per_step = 2;
  options.staleness.max = 1;
  return options;
}

TEST(RlLoad, SmallBatchesStayBelowTheirLimits) {
  const engines::MemoryLoad load = likely_load(small_run(), {rows_of(10, 6), {}, 5});
  // Each prompt once, and its responses.
  EXPECT_EQ(load.train_tokens, 2 * (6 + 4 * 8));
  EXPECT_EQ(load.sequence_tokens, 6 + 8);
  EXPECT_EQ(load.shared_tokens, 2 * 6);
  EXPECT_EQ(load.prompt_tokens, 0) << "no group is split";
  // Two batches are in flight: 16 samples with one token each, and the prompts of 4 groups.
  EXPECT_EQ(load.sampled_tokens, 16);
  EXPECT_EQ(load.rollout_tokens, (16 - 4) + 4 * 6);
  // Each sample caches 13 positions: one page, which includes its prompt. While the first batch is
  // trained, its prompts are still cached, and the other batch is generated.
  EXPECT_EQ(load.kv_tokens, 16 * (2 * 4 * 1 + 2 * 1 + 2 * 4 * 1));
  EXPECT_EQ(load.snapshots, 3);
}

TEST(RlLoad, AShortRunGeneratesNoMoreSamplesThanItTrains) {
  const engines::MemoryLoad load = likely_load(small_run(), {rows_of(10, 6), {}, 1});
  EXPECT_EQ(load.sampled_tokens, 8);
  EXPECT_EQ(load.rollout_tokens, (8 - 2) + 2 * 6);
  // Nothing is generated while the batch is trained.
  EXPECT_EQ(load.kv_tokens, 16 * (2 * 4 * 1 + 2 * 1));
}

TEST(RlLoad, ALimitOfPromptTokensBoundsAnIteration) {
  RlOptions options = small_run();
  const RlFacts facts{rows_of(10, 6), {}, 5};
  EXPECT_EQ(peak_load(options, facts, 6).rollout_tokens, 2048);
  options.rollout.prefill_tokens = 5;
  EXPECT_EQ(likely_load(options, facts).rollout_tokens, 16 + 5);
  EXPECT_EQ(peak_load(options, facts, 6).rollout_tokens, 16 + 5);
}

TEST(RlLoad, WithoutStalenessTrainingAndGenerationTakeTurns) {
  RlOptions options = small_run();
  options.staleness.max = 0;
  EXPECT_EQ(likely_load(options, {rows_of(10, 6), {}, 5}).kv_tokens, 16 * (2 * 4 * 1 + 2 * 1));
}

// Rollout processes generate the samples. Each of a step's eight samples takes a page in training.
TEST(RlLoad, WithRolloutProcessesThisOneCachesOnlyMicroBatchesAndEvaluations) {
  RlOptions options = small_run();
  options.placement.rollout.processes = 2;
  const engines::MemoryLoad load = likely_load(options, {rows_of(10, 6), {}, 5});
  EXPECT_EQ(load.sampled_tokens, 0);
  EXPECT_EQ(load.rollout_tokens, 0);
  EXPECT_EQ(load.kv_tokens, 16 * 8);
  options.eval.common.every_steps = 1;
  const engines::MemoryLoad evaluated = likely_load(options, {rows_of(10, 6), rows_of(3, 6), 5});
  EXPECT_EQ(evaluated.sampled_tokens, 3);
  EXPECT_EQ(evaluated.kv_tokens, 16 * (8 + 3));
}

TEST(RlLoad, RowsAreKeptOnlyOnPolicy) {
  RlOptions options = small_run();
  const RlFacts facts{rows_of(10, 6), {}, 5};
  EXPECT_EQ(likely_load(options, facts).kept_tokens, 0);
  EXPECT_EQ(peak_load(options, facts, 20).kept_tokens, 0);
  options.staleness.max = 0;
  // Two prompts once, and all tokens of eight responses except the last ones.
  EXPECT_EQ(likely_load(options, {rows_of(10, 6), {}, 5}).kept_tokens, 2 * 6 + 8 * 7);
  EXPECT_EQ(peak_load(options, facts, 20).kept_tokens, 2 * 20 + 8 * 7);
  options.train.minibatches = 2;
  EXPECT_EQ(likely_load(options, {rows_of(10, 6), {}, 5}).kept_tokens, 0);
}

TEST(RlLoad, GroupsOfOnePromptShareItsPages) {
  // 20 prompt tokens fill one page. A sample of 27 positions needs one page of its own.
  const engines::MemoryLoad many = likely_load(small_run(), {rows_of(10, 20), {}, 5});
  const engines::MemoryLoad one = likely_load(small_run(), {rows_of(1, 20), {}, 5});
  EXPECT_EQ(many.kv_tokens, 16 * (4 + (2 * 4 + 2) + 2 * (1 + 4)));
  EXPECT_EQ(one.kv_tokens, 16 * (1 + (2 * 4 + 1) + 2 * (1 + 4)));
}

TEST(RlLoad, TheLastCommitIsWrittenAfterTraining) {
  RlOptions options = small_run();
  options.run.checkpoint.every_steps = 5;
  EXPECT_FALSE(likely_load(options, {rows_of(10, 6), {}, 5}).commits);
  EXPECT_TRUE(likely_load(options, {rows_of(10, 6), {}, 6}).commits);
  options.run.checkpoint.every_steps = 0;
  EXPECT_FALSE(likely_load(options, {rows_of(10, 6), {}, 6}).commits);
}

TEST(RlLoad, FinishedSamplesStayCached) {
  RlOptions options = small_run();
  options.rollout.max_new_tokens = 27;
  // 32 positions are two pages. The prompt does not fill a page, so none is shared. Both become
  // full.
  const engines::MemoryLoad load = likely_load(options, {rows_of(10, 6), {}, 5});
  EXPECT_EQ(load.kv_tokens, 16 * (16 * 2) + 16 * 2 * (4 * 2));
}

RlOptions evaluated_run() {
  RlOptions options = small_run();
  options.eval.samples = 2;
  options.eval.common.every_steps = 2;
  options.run.checkpoint.every_steps = 0;
  return options;
}

TEST(RlLoad, EvaluationAddsToTheLoad) {
  const RlOptions options = evaluated_run();
  const engines::MemoryLoad load = likely_load(options, {rows_of(10, 6), rows_of(50, 20), 5});
  EXPECT_EQ(load.sampled_tokens, 16 + 2 * 50);
  EXPECT_EQ(load.rollout_tokens, (load.sampled_tokens - 50) + 50 * 20);
  RlFacts few{rows_of(10, 6), rows_of(50, 20), 5};
  few.max_running = 30;
  EXPECT_EQ(likely_load(options, few).sampled_tokens, 30);
  // The run has only the evaluation after its last step.
  EXPECT_EQ(likely_load(options, {rows_of(10, 6), rows_of(50, 20), 1}).sampled_tokens, 8 + 2 * 50);
}

TEST(RlLoad, AnEvaluationIsCachedWithTheSamplesOfItsStep) {
  const RlFacts facts{rows_of(10, 6), rows_of(50, 20), 5};
  // For each evaluation prompt, its full page and one page for each of its two responses. Then the
  // samples of a step, and training.
  EXPECT_EQ(likely_load(evaluated_run(), facts).kv_tokens, 16 * (50 * (1 + 2) + 8 + 8));
  // At the last step the run has no other work left.
  const RlFacts last{rows_of(10, 6), rows_of(50, 20), 2};
  EXPECT_EQ(likely_load(evaluated_run(), last).kv_tokens, 16 * 50 * (1 + 2));
}

TEST(RlLoad, AllSamplesOfAStepAreCachedIfTheNextWeightsWaitForTheEvaluation) {
  RlOptions options = evaluated_run();
  RlFacts facts{rows_of(10, 6), rows_of(50, 20), 7};
  facts.max_running = 104;
  // One group fits next to the evaluation, both groups after it.
  const std::int64_t soon = 16 * (50 * (1 + 2) + 4 + 8);
  const std::int64_t waiting = 16 * (50 + 96 + 2 + 8 + 8);
  EXPECT_EQ(likely_load(options, facts).kv_tokens, soon);
  options.eval.common.keep_best = true;
  EXPECT_EQ(likely_load(options, facts).kv_tokens, waiting);
  options.eval.common.keep_best = false;
  options.eval.common.patience = 1;
  EXPECT_EQ(likely_load(options, facts).kv_tokens, waiting);
  options.eval.common.patience = 0;
  options.run.checkpoint.every_steps = 3;  // a commit waits for the evaluation of step 6
  EXPECT_EQ(likely_load(options, facts).kv_tokens, waiting);
  facts.steps = 6;
  EXPECT_EQ(likely_load(options, facts).kv_tokens, soon);
}

TEST(RlLoad, SplitGroupsKeepTheirPrompt) {
  RlOptions options = small_run();
  options.train.common.micro_batch_tokens = 32;
  const engines::MemoryLoad load = likely_load(options, {rows_of(10, 6), {}, 5});
  EXPECT_EQ(load.train_tokens, 32);
  EXPECT_EQ(load.prompt_tokens, 6);
}

TEST(RlLoad, TheExpectedLoadDoesNotExceedThePeakLoad) {
  const RlOptions options = evaluated_run();
  const RlFacts facts{rows_of(10, 6), rows_of(50, 20), 5};
  const engines::MemoryLoad most = peak_load(options, facts, 20);
  const engines::MemoryLoad likely = likely_load(options, facts);
  EXPECT_LE(likely.train_tokens, most.train_tokens);
  EXPECT_LE(likely.sequence_tokens, most.sequence_tokens);
  EXPECT_LE(likely.rollout_tokens, most.rollout_tokens);
  EXPECT_LE(likely.kv_tokens, most.kv_tokens);
  EXPECT_LE(likely.score_tokens, most.score_tokens);
  EXPECT_LE(likely.shared_tokens, most.shared_tokens);
  EXPECT_LE(likely.prompt_tokens, most.prompt_tokens);
  EXPECT_LE(likely.snapshots, most.snapshots);
}

TEST(RlLoad, ThePeakLoadHasRoomForTheLongestSequence) {
  RlOptions options = small_run();
  const RlFacts facts{rows_of(10, 6), {}, 5};
  options.train.common.micro_batch_tokens = 1;
  const engines::MemoryLoad load = peak_load(options, facts, 500);
  EXPECT_EQ(longest_sequence(options, 500), 508);
  EXPECT_EQ(load.sequence_tokens, 508);
  EXPECT_EQ(load.train_tokens, 508) << "a micro-batch holds at least one sequence";
  // All 16 samples in flight at full length, and a micro-batch of 508 tokens in 8 sequences.
  EXPECT_EQ(load.kv_tokens, 16 * (16 * 32 + 32 + 8));
}

}  // namespace
}  // namespace tidemill::workflows
