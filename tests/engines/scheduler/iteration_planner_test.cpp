// SPDX-License-Identifier: Apache-2.0
// Tests single iterations, then random operations with every page checked.
#include "engines/scheduler/iteration_planner.hpp"

#include <iostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"
#include "tests/engines/scheduler/simulated_generation.hpp"

namespace tidemill::engines {
namespace {

SimulatedRequest request_of(std::int64_t prompt, std::int64_t response, std::uint64_t seed,
                            std::int32_t first_token = 0) {
  SimulatedRequest request;
  for (std::int64_t i = 0; i < prompt; ++i) {
    request.prompt.push_back(static_cast<std::int32_t>((first_token + i * 7) % 50));
  }
  request.max_new_tokens = response;
  request.response_length = response;
  request.seed = seed;
  return request;
}

void run_to_end(SimulatedGeneration& generation, std::int64_t tokens) {
  while (generation.has_work()) {
    ASSERT_LT(generation.totals().iterations, 100000);
    generation.step({tokens, tokens});
  }
}

// The samples of one prompt compute it once in total, wherever pages and chunks end.
TEST(IterationPlannerTest, AGroupComputesItsPromptOnce) {
  for (const std::int64_t prompt : {1, 15, 16, 17, 250, 256}) {
    for (const std::int64_t budget : {1000, 100, 9}) {
      SimulatedGeneration generation(1000, {});
      for (std::uint64_t sample = 0; sample < 8; ++sample) {
        generation.submit(request_of(prompt, 20, sample));
      }
      run_to_end(generation, budget);
      EXPECT_EQ(generation.totals().prefill_tokens, prompt);
      EXPECT_EQ(generation.totals().cached_tokens, 7 * prompt);
      EXPECT_EQ(generation.totals().computed_tokens, prompt + 8 * 19);
      EXPECT_EQ(generation.totals().preemptions, 0);
    }
  }
}

// Samples that arrive while others of the same prompt are running, or long after they have ended.
TEST(IterationPlannerTest, LaterSamplesComputeNothingOfThePrompt) {
  PlannerOptions options;
  options.max_running = 3;
  SimulatedGeneration generation(1000, options);
  for (std::uint64_t sample = 0; sample < 8; ++sample) {
    generation.submit(request_of(50, static_cast<std::int64_t>(1 + 5 * sample), sample));
  }
  run_to_end(generation, 64);
  generation.submit(request_of(50, 5, 100));
  run_to_end(generation, 64);
  EXPECT_EQ(generation.totals().prefill_tokens, 50);
  EXPECT_EQ(generation.totals().cached_tokens, 8 * 50);
}

// Prompts that share their beginning and differ afterwards.
TEST(IterationPlannerTest, WholePagesOfACommonBeginningAreComputedOnce) {
  SimulatedGeneration generation(1000, {});
  for (std::int32_t question = 0; question < 6; ++question) {
    SimulatedRequest request = request_of(40, 4, static_cast<std::uint64_t>(question));
    request.prompt.push_back(question);
    generation.submit(std::move(request));
  }
  run_to_end(generation, 1000);
  // 32 of 40 tokens are whole pages.
  EXPECT_EQ(generation.totals().prefill_tokens, 41 + 5 * 9);
  EXPECT_EQ(generation.totals().cached_tokens, 5 * 32);
}

TEST(IterationPlannerTest, AScoredSequenceComputesEverything) {
  SimulatedGeneration generation(1000, {});
  generation.submit(request_of(40, 4, 1));
  run_to_end(generation, 1000);
  SimulatedRequest scored = request_of(40, 4, 2);
  scored.prefix_use = PrefixUse::kNone;
  generation.submit(std::move(scored));
  run_to_end(generation, 1000);
  EXPECT_EQ(generation.totals().prefill_tokens, 80);
  EXPECT_EQ(generation.totals().cached_tokens, 0);
}

TEST(IterationPlannerTest, OtherWeightsShareNothing) {
  SimulatedGeneration generation(1000, {});
  generation.submit(request_of(40, 4, 1));
  run_to_end(generation, 1000);
  generation.serve("w1", 1);
  EXPECT_EQ(generation.planner().tree().num_nodes(), 0);
  EXPECT_EQ(generation.pool().num_free(), 1000);
  generation.submit(request_of(40, 4, 2));
  run_to_end(generation, 1000);
  EXPECT_EQ(generation.totals().prefill_tokens, 80);
  generation.serve("w1", 2);  // the same weights under another version
  generation.submit(request_of(40, 4, 3));
  run_to_end(generation, 1000);
  EXPECT_EQ(generation.totals().prefill_tokens, 80);
}

TEST(IterationPlannerTest, DecodesFirstThenPrefillsInChunks) {
  PagePool pool(100);
  IterationPlanner planner(pool, {});
  const auto sequence_of = [](std::int64_t prompt, std::int32_t token) {
    PlannedSequence sequence;
    sequence.tokens.assign(static_cast<std::size_t>(prompt), token);
    sequence.prompt_length = prompt;
    sequence.max_new_tokens = 10;
    return sequence;
  };
  PlannedSequence decoding = sequence_of(3, 1);
  PlannedSequence lengthy = sequence_of(40, 2);
  PlannedSequence other = sequence_of(40, 3);
  planner.submit(lengthy);
  planner.submit(decoding);
  planner.submit(other);
  const auto step = [&](std::int64_t tokens, std::int64_t prefill) {
    const IterationPlan plan = planner.plan({tokens, prefill}, {true, 0, "w"});
    std::vector<std::pair<const PlannedSequence*, std::int64_t>> chunks;
    for (const PlannedChunk& chunk : plan.chunks) {
      chunks.emplace_back(chunk.sequence, chunk.num_tokens);
      planner.advance(chunk, nullptr);
      if (chunk.sequence->num_uncached() == 0) {
        chunk.sequence->tokens.push_back(9);
      }
    }
    return chunks;
  };
  using Chunks = std::vector<std::pair<const PlannedSequence*, std::int64_t>>;
  EXPECT_EQ(step(30, 30), (Chunks{{&lengthy, 30}})) << "oldest first";
  EXPECT_EQ(step(30, 30), (Chunks{{&lengthy, 10}, {&decoding, 3}, {&other, 17}}));
  EXPECT_EQ(step(30, 5), (Chunks{{&lengthy, 1}, {&decoding, 1}, {&other, 5}}));
  EXPECT_EQ(step(2, 30), (Chunks{{&lengthy, 1}, {&decoding, 1}}));
  for (PlannedSequence* sequence : {&decoding, &lengthy, &other}) {
    planner.remove(*sequence);
  }
}

TEST(IterationPlannerTest, BeginsNoFurtherPromptOnceTheTargetIsReached) {
  SimulatedGeneration generation(1000, {});
  const auto prefilled = [&](std::int64_t prefill_tokens) {
    const std::int64_t before = generation.totals().prefill_tokens;
    generation.step({1000, prefill_tokens, 40});
    return generation.totals().prefill_tokens - before;
  };
  for (std::uint64_t i = 0; i < 3; ++i) {
    generation.submit(request_of(50, 20, i, static_cast<std::int32_t>(i)));
  }
  EXPECT_EQ(prefilled(1000), 50);
  EXPECT_EQ(prefilled(30), 30) << "the maximum is less than the target";
  EXPECT_EQ(prefilled(1000), 70) << "the rest of the second prompt is less than the target";
  for (std::uint64_t i = 0; i < 6; ++i) {
    generation.submit(request_of(15, 20, i, static_cast<std::int32_t>(10 + i)));
  }
  generation.submit(request_of(300, 20, 0, 30));
  EXPECT_EQ(prefilled(1000), 45);
  EXPECT_EQ(prefilled(1000), 45);
  EXPECT_EQ(prefilled(1000), 300);
}

TEST(IterationPlannerTest, TrainingTakesCachedPagesFirst) {
  SimulatedGeneration generation(20, {});
  generation.submit(request_of(100, 4, 1));
  run_to_end(generation, 1000);
  EXPECT_EQ(generation.planner().tree().num_evictable(), 7);
  const std::size_t running = generation.submit(request_of(60, 10, 2, 1));
  generation.step({1000, 1000});
  generation.planner().drop_cached(20);
  EXPECT_FALSE(generation.sequence(running).pages.empty());
  EXPECT_EQ(generation.pool().num_free(), 16);
  EXPECT_EQ(generation.planner().make_room(16), 0);
  EXPECT_EQ(generation.planner().make_room(17), 1);
  EXPECT_TRUE(generation.sequence(running).pages.empty());
  run_to_end(generation, 1000);
  EXPECT_TRUE(generation.finished(running));
}

// At first nothing is known about lengths, so only sequences that surely fit start. Later the
// planner knows that responses are short.
TEST(IterationPlannerTest, AdmitsByObservedLengths) {
  SimulatedGeneration generation(64, {});
  const auto submit = [&](int count, std::int64_t response) {
    for (int i = 0; i < count; ++i) {
      SimulatedRequest request = request_of(16, response, 1, static_cast<std::int32_t>(i));
      request.max_new_tokens = 497;  // 32 pages with the prompt
      generation.submit(std::move(request));
    }
  };
  submit(50, 8);
  generation.step({1000, 1000});
  EXPECT_EQ(generation.planner().num_running(), 2);
  run_to_end(generation, 1000);
  submit(50, 8);
  generation.step({1000, 1000});
  EXPECT_GT(generation.planner().num_running(), 10);
  run_to_end(generation, 1000);
  EXPECT_EQ(generation.totals().preemptions, 0);
}

// Random operations with a cache that is far too small. `SimulatedGeneration` checks each page.
TEST(IterationPlannerTest, KeepsItsInvariantsUnderRandomOperations) {
  std::int64_t cached = 0;
  std::int64_t preempted = 0;
  std::int64_t finished = 0;
  for (std::uint64_t seed = 0; seed < 600; ++seed) {
    RandomStream random(53, seed);
    PlannerOptions options;
    options.page_tokens = 4;
    options.max_running = 1 + static_cast<std::int64_t>(random.below(12));
    options.preempted_share = 5.0;  // narrows the margin so fast that preemptions are frequent
    const std::int64_t pages = 12 + static_cast<std::int64_t>(random.below(30));
    SimulatedGeneration generation(pages, options);
    std::uint64_t version = 0;
    const std::size_t wanted = 40;
    while (generation.num_requests() < wanted || generation.has_work()) {
      ASSERT_LT(generation.totals().iterations, 20000) << "seed " << seed;
      if (generation.num_requests() < wanted && random.below(2) == 0) {
        SimulatedRequest request =
            request_of(1 + static_cast<std::int64_t>(random.below(20)),
                       1 + static_cast<std::int64_t>(random.below(24)), random.below(4),
                       static_cast<std::int32_t>(random.below(2)));
        // The first responses are all short, so the forecast is too optimistic.
        const bool brief = generation.num_requests() < 12 || random.below(3) == 0;
        request.response_length = brief ? 1 : request.max_new_tokens;
        request.prefix_use = random.below(8) == 0 ? PrefixUse::kNone : PrefixUse::kShared;
        request.min_step = random.below(10) == 0 ? version : 0;
        request.priority = static_cast<Priority>(random.below(kNumPriorities));
        request.tenant = std::to_string(random.below(3));
        request.cache_salt = random.below(4) == 0 ? "salt" : "";
        generation.submit(std::move(request));
      }
      if (generation.num_requests() > 0 && random.below(30) == 0) {
        generation.cancel(random.below(generation.num_requests()));
      }
      if (random.below(20) == 0) {
        generation.borrow(
            static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(pages))));
        generation.give_back();
      }
      if (!generation.planner().any_in_flight() && random.below(4) == 0) {
        generation.serve("w" + std::to_string(random.below(2)), ++version);
      }
      if (generation.has_work()) {
        const auto tokens = 1 + static_cast<std::int64_t>(random.below(20));
        generation.step({tokens, 1 + static_cast<std::int64_t>(random.below(20))});
      }
    }
    for (std::size_t i = 0; i < generation.num_requests(); ++i) {
      EXPECT_TRUE(generation.finished(i));
    }
    EXPECT_EQ(generation.planner().num_pages_in_use(), 0);
    generation.planner().drop_cached(pages);
    EXPECT_EQ(generation.pool().num_free(), pages) << "a page was leaked";
    cached += generation.totals().cached_tokens;
    preempted += generation.totals().preemptions;
    finished += generation.totals().finished;
  }
  std::cout << "[ checked  ] " << finished << " requests, " << cached << " cached tokens, "
            << preempted << " preemptions\n";
  EXPECT_GT(cached, 50000);
  EXPECT_GT(preempted, 100);
}

}  // namespace
}  // namespace tidemill::engines
