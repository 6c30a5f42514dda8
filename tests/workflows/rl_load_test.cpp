// SPDX-License-Identifier: Apache-2.0
// What goes through the model at once, by hand.
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

TEST(RlLoad, SmallBatchesDoNotFillTheirCaps) {
  const engines::MemoryLoad load = likely_load(small_run(), {rows_of(10, 6), {}, 5});
  // A prompt once, and its answers.
  EXPECT_EQ(load.train_tokens, 2 * (6 + 4 * 8));
  EXPECT_EQ(load.sequence_tokens, 6 + 8);
  EXPECT_EQ(load.shared_tokens, 2 * 6);
  EXPECT_EQ(load.prompt_tokens, 0) << "no group is cut";
  // Two batches are in flight: 16 samples, one token each, and the prompts of 4 groups.
  EXPECT_EQ(load.draws, 16);
  EXPECT_EQ(load.rollout_tokens, (16 - 4) + 4 * 6);
  // 13 positions are cached of a sample: a page, in which its prompt lies; in training again.
  EXPECT_EQ(load.kv_tokens, 16 * (16 * 1) + 16 * 2 * (4 * 1));
  EXPECT_EQ(load.snapshots, 3);
}

TEST(RlLoad, WhatIsFinishedStaysCached) {
  RlOptions options = small_run();
  options.rollout.max_new_tokens = 27;
  // 32 positions: two pages, of which the prompt's own one is not shared; both become full.
  const engines::MemoryLoad load = likely_load(options, {rows_of(10, 6), {}, 5});
  EXPECT_EQ(load.kv_tokens, 16 * (16 * 2) + 16 * 2 * (4 * 2));
}

TEST(RlLoad, EvaluationGoesThroughTheModelToo) {
  RlOptions options = small_run();
  options.eval.samples = 2;
  const engines::MemoryLoad load = likely_load(options, {rows_of(10, 6), rows_of(50, 20), 5});
  EXPECT_EQ(load.draws, 16 + 2 * 50);
  EXPECT_EQ(load.rollout_tokens, (load.draws - 50) + 50 * 20);
  RlFacts few{rows_of(10, 6), rows_of(50, 20), 5};
  few.max_running = 30;
  EXPECT_EQ(likely_load(options, few).draws, 30);
}

TEST(RlLoad, CutGroupsCarryTheirPromptOn) {
  RlOptions options = small_run();
  options.train.common.micro_batch_tokens = 32;
  const engines::MemoryLoad load = likely_load(options, {rows_of(10, 6), {}, 5});
  EXPECT_EQ(load.train_tokens, 32);
  EXPECT_EQ(load.prompt_tokens, 6);
}

TEST(RlLoad, NothingIsLikelierThanTheMost) {
  engines::ModelConfig config;
  config.max_positions = 64;
  const RlOptions options = small_run();
  const engines::MemoryLoad most = most_load(options, config);
  const engines::MemoryLoad likely = likely_load(options, {rows_of(10, 6), rows_of(50, 20), 5});
  EXPECT_LE(likely.train_tokens, most.train_tokens);
  EXPECT_LE(likely.sequence_tokens, most.sequence_tokens);
  EXPECT_LE(likely.rollout_tokens, most.rollout_tokens);
  EXPECT_LE(likely.kv_tokens, most.kv_tokens);
  EXPECT_LE(likely.score_tokens, most.score_tokens);
  EXPECT_LE(likely.shared_tokens, most.shared_tokens);
  EXPECT_LE(likely.prompt_tokens, most.prompt_tokens);
  EXPECT_LE(likely.snapshots, most.snapshots);
}

}  // namespace
}  // namespace tidemill::workflows
