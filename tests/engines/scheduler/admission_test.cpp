// SPDX-License-Identifier: Apache-2.0
// Which sequences start, in which order, and with which pages: no sequence overtakes an older one,
// preempted sequences come first, and limits hold to the page.
#include <deque>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"
#include "engines/scheduler/iteration_planner.hpp"

namespace tidemill::engines {
namespace {

/// A planner, and the sequences that the tests submit to it.
class AdmissionTest : public ::testing::Test {
protected:
  using Started = std::vector<PlannedSequence*>;

  /// Makes a planner over `pages` pages of 16 tokens, without sequences.
  void open(std::int64_t pages, const PlannerOptions& options = {}) {
    planner_.reset();
    pool_.emplace(pages);
    planner_.emplace(*pool_, options);
    sequences_.clear();
    finished_.clear();
  }

  /// Submits a sequence whose tokens no other sequence shares.
  PlannedSequence& submit(std::int64_t prompt, std::int64_t max_new_tokens,
                          std::uint64_t min_step = 0) {
    PlannedSequence& sequence = sequences_.emplace_back();
    const auto first = static_cast<std::int32_t>(1000 * sequences_.size());
    for (std::int64_t i = 0; i < prompt; ++i) {
      sequence.tokens.push_back(first + static_cast<std::int32_t>(i));
    }
    sequence.prompt_length = prompt;
    sequence.max_new_tokens = max_new_tokens;
    sequence.min_step = min_step;
    planner_->submit(sequence);
    return sequence;
  }

  /// Plans an iteration without computing it.
  IterationPlan plan(const AdmissionRule& rule = {true, 0, "w0"}) {
    return planner_->plan({1000, 1000}, rule);
  }

  /// Runs an iteration and returns the sequences that it started. Each sequence whose tokens are
  /// all computed samples one token, and `ends` says whether it then ends.
  template <class Ends>
  Started step(const Ends& ends, std::int64_t budget = 1000) {
    const IterationPlan planned = planner_->plan({budget, budget}, {true, 0, "w0"});
    for (const PlannedSequence& sequence : sequences_) {
      const bool in_flight = !sequence.weights.empty() && !finished_.contains(&sequence);
      EXPECT_TRUE(planned.started.empty() || !in_flight || !sequence.pages.empty())
          << "a new sequence started before a preempted one";
    }
    for (const PlannedChunk& chunk : planned.chunks) {
      PlannedSequence& sequence = *chunk.sequence;
      planner_->advance(chunk, nullptr);
      if (sequence.num_uncached() == 0) {
        sequence.tokens.push_back(7);
        const bool full = sequence.length() - sequence.prompt_length >= sequence.max_new_tokens;
        if (full || ends(sequence)) {
          planner_->finish(sequence);
          finished_.insert(&sequence);
        }
      }
    }
    return planned.started;
  }

  /// Makes the forecast certain that responses with this limit have `length` tokens.
  void learn(std::int64_t max_new_tokens, std::int64_t length, int count) {
    for (int i = 0; i < count; ++i) {
      PlannedSequence& sequence = submit(1, max_new_tokens);
      while (sequence.length() - sequence.prompt_length < length) {
        step([length](const PlannedSequence& s) { return s.length() - 1 >= length; });
      }
    }
    ASSERT_FALSE(planner_->any_in_flight());
    planner_->keep_only({});
  }

  void TearDown() override {
    if (planner_.has_value()) {
      planner_.reset();
      sequences_.clear();
    }
  }

  std::deque<PlannedSequence> sequences_;
  std::set<const PlannedSequence*> finished_;
  std::optional<PagePool> pool_;
  std::optional<IterationPlanner> planner_;
};

TEST_F(AdmissionTest, ASmallSequenceDoesNotOvertakeALargeOne) {
  open(10);
  PlannedSequence& running = submit(64, 32);
  PlannedSequence& large = submit(112, 17);
  PlannedSequence& small = submit(16, 1);
  const auto never = [](const PlannedSequence&) { return false; };
  EXPECT_EQ(step(never), (Started{&running}));
  for (int i = 0; i < 30; ++i) {
    EXPECT_EQ(step(never), Started{}) << "there is room for the small one, but not for the large";
  }
  EXPECT_EQ(step(never), Started{});
  EXPECT_EQ(step(never), (Started{&large, &small}));
}

// Sequences that share nothing and wait for no version start in the order of submission, and none
// starts while a preempted one waits.
TEST_F(AdmissionTest, SequencesStartInTheOrderOfSubmission) {
  std::int64_t preemptions = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    RandomStream random(54, seed);
    PlannerOptions options;
    options.max_running = 1 + static_cast<std::int64_t>(random.below(8));
    options.preempted_share = 5.0;
    open(8 + static_cast<std::int64_t>(random.below(8)), options);
    const auto between = [&random](std::uint64_t low, std::uint64_t high) {
      return static_cast<std::int64_t>(low + random.below(high - low + 1));
    };
    Started started;
    for (int iteration = 0; iteration < 400; ++iteration) {
      if (sequences_.size() < 30 && random.below(2) == 0) {
        submit(between(1, 60), between(1, 60));
      }
      if (random.below(12) == 0) {
        preemptions += planner_->make_room(between(1, 8));  // as training does
      }
      // Early responses are short, so that later ones are preempted.
      const bool brief = sequences_.size() < 10;
      const Started now = step(
          [&](const PlannedSequence&) { return brief || random.below(40) == 0; }, between(1, 40));
      started.insert(started.end(), now.begin(), now.end());
      EXPECT_LE(planner_->num_running(), options.max_running);
    }
    for (std::size_t i = 0; i < started.size(); ++i) {
      ASSERT_EQ(started[i], &sequences_[i]) << "seed " << seed;
    }
    EXPECT_GT(started.size(), 3U);
    for (int i = 0; planner_->any_in_flight() || planner_->any_admissible({true, 0, "w0"}); ++i) {
      ASSERT_LT(i, 10000) << "seed " << seed;
      step([](const PlannedSequence&) { return false; });
    }
    EXPECT_EQ(planner_->num_pages_in_use(), 0);
    planner_->keep_only({});
    EXPECT_EQ(pool_->num_free(), pool_->num_pages());
  }
  EXPECT_GT(preemptions, 100);
}

TEST_F(AdmissionTest, PreemptedSequencesResumeOldestFirstAndBeforeNewOnes) {
  open(12);
  std::vector<PlannedSequence*> old;
  for (int i = 0; i < 4; ++i) {
    old.push_back(&submit(33, 16));  // 3 pages, and never more
  }
  const auto never = [](const PlannedSequence&) { return false; };
  EXPECT_EQ(step(never).size(), 4U);
  PlannedSequence& young = submit(16, 1);
  planner_->drop_cached(12);
  EXPECT_EQ(planner_->make_room(7), 3) << "the youngest first";
  EXPECT_FALSE(old[0]->pages.empty());
  planner_->drop_cached(9);
  std::vector<std::int32_t> borrowed;
  ASSERT_TRUE(pool_->allocate(9, borrowed));
  EXPECT_TRUE(plan().started.empty());
  EXPECT_EQ(planner_->num_running(), 1);
  // Room for one, then for two more, which leaves none for the new sequence.
  for (const std::size_t running : {2U, 3U, 4U}) {
    pool_->release(std::span(borrowed).last(3));
    borrowed.resize(borrowed.size() - 3);
    EXPECT_EQ(plan().started, Started{}) << "they have started before";
    ASSERT_EQ(planner_->num_running(), static_cast<std::int64_t>(running));
    for (std::size_t i = 0; i < old.size(); ++i) {
      EXPECT_EQ(old[i]->pages.empty(), i >= running) << i;
    }
  }
  planner_->remove(*old[1]);
  EXPECT_EQ(plan().started, (Started{&young}));
}

// New weights wait until all sequences in flight have ended, so preempted ones must resume with
// theirs even while no new sequence may start.
TEST_F(AdmissionTest, PreemptedSequencesResumeWithTheirWeightsWhileNoneMayStart) {
  open(8);
  PlannedSequence& preempted = submit(20, 20);
  EXPECT_EQ(plan().started, (Started{&preempted}));
  EXPECT_EQ(planner_->make_room(8), 1);
  PlannedSequence& waiting = submit(20, 20);
  const IterationPlan resumed = plan({false, 1, "w1"});
  EXPECT_TRUE(resumed.started.empty());
  ASSERT_EQ(resumed.chunks.size(), 1U);
  EXPECT_EQ(resumed.chunks[0].sequence, &preempted);
  EXPECT_EQ(resumed.chunks[0].num_tokens, 20) << "everything is computed again";
  EXPECT_EQ(preempted.weights, "w0");
  EXPECT_EQ(plan({true, 1, "w1"}).started, (Started{&waiting}));
  EXPECT_EQ(waiting.weights, "w1");
  EXPECT_EQ(preempted.weights, "w0");
}

TEST_F(AdmissionTest, AsManySequencesRunAsTheOptionSays) {
  PlannerOptions options;
  options.max_running = 3;
  open(100, options);
  for (int i = 0; i < 5; ++i) {
    submit(4, 4);
  }
  EXPECT_EQ(plan().started.size(), 3U);
  EXPECT_EQ(planner_->num_running(), 3);
  EXPECT_TRUE(plan().started.empty());
  planner_->remove(sequences_[1]);
  EXPECT_EQ(plan().started, (Started{&sequences_[3]}));
}

// Nothing is known about lengths, so both sequences may reach their limits of two pages.
TEST_F(AdmissionTest, SequencesOfUnknownLengthStartIfTheirLimitsFitTogether) {
  for (const auto& [pages, running] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {2, 1}, {3, 1}, {4, 2}, {5, 2}, {6, 3}, {7, 3}}) {
    open(pages);
    for (int i = 0; i < 3; ++i) {
      submit(16, 17);  // the last token is never cached
    }
    (void)plan();
    EXPECT_EQ(planner_->num_running(), running) << pages << " pages";
  }
}

// A sequence with a known length starts if its tokens and one more page fit: without it, the
// sequence would soon be preempted.
TEST_F(AdmissionTest, ASequenceThatGrowsNeedsOnePageMoreThanItsTokens) {
  for (const std::int64_t others : {6, 7}) {
    open(8);
    learn(100, 1, 400);
    submit(16 * others - 1, 1);
    PlannedSequence& growing = submit(10, 100);
    const Started started = plan().started;
    EXPECT_EQ(started.size(), others == 6 ? 2U : 1U) << others;
    EXPECT_EQ(growing.pages.size(), others == 6 ? 1U : 0U);
  }
  open(8);
  submit(16 * 7, 1);
  PlannedSequence& fixed = submit(10, 7);  // 16 tokens are cached at most
  EXPECT_EQ(plan().started.size(), 2U);
  EXPECT_EQ(fixed.pages.size(), 1U);
}

// Whether work can start does not depend on the oldest sequence alone.
TEST_F(AdmissionTest, ASequenceThatWaitsForAStepHoldsUpNoOther) {
  open(8);
  PlannedSequence& later = submit(8, 4, 5);
  EXPECT_FALSE(planner_->any_admissible({true, 4, "w4"}));
  EXPECT_TRUE(planner_->any_admissible({true, 5, "w5"}));
  EXPECT_FALSE(planner_->any_admissible({false, 5, "w5"}));
  PlannedSequence& now = submit(8, 4, 4);
  EXPECT_TRUE(planner_->any_admissible({true, 4, "w4"}));
  EXPECT_EQ(plan({true, 4, "w4"}).started, (Started{&now}));
  EXPECT_EQ(plan({true, 5, "w5"}).started, (Started{&later}));
  EXPECT_EQ(later.weights, "w5");
  EXPECT_EQ(now.weights, "w4");
}

// The forecast learns how long responses are, without their prompts.
TEST_F(AdmissionTest, LongPromptsDoNotMakeResponsesLookLong) {
  open(200);
  for (int i = 0; i < 60; ++i) {
    submit(160, 500);
  }
  const auto brief = [](const PlannedSequence& s) { return s.length() - s.prompt_length >= 4; };
  for (int i = 0; i < 2000 && planner_->any_admissible({true, 0, "w0"}); ++i) {
    step(brief);
  }
  while (planner_->any_in_flight()) {
    step(brief);
  }
  for (int i = 0; i < 60; ++i) {
    submit(160, 500);
  }
  // 10 pages each, and one for the next tokens. With 160 tokens more, 20 pages would be reserved.
  EXPECT_GE(plan().started.size(), 15U);
}

// A cancelled response says nothing about lengths.
TEST_F(AdmissionTest, TheForecastLearnsNothingFromCancelledSequences) {
  open(5);
  for (int i = 0; i < 50; ++i) {
    PlannedSequence& cancelled = submit(16, 33);
    EXPECT_EQ(step([](const PlannedSequence&) { return false; }), (Started{&cancelled}));
    planner_->remove(cancelled);
    finished_.insert(&cancelled);
  }
  PlannedSequence& first = submit(16, 33);  // 3 pages at most
  submit(16, 33);
  EXPECT_EQ(plan().started, (Started{&first}));
}

// Each sequence that finishes narrows the margin, so more sequences start at the same time.
TEST_F(AdmissionTest, TheMarginNarrowsAsSequencesFinish) {
  const auto started_with = [this](double preempted_share) {
    PlannerOptions options;
    options.preempted_share = preempted_share;
    open(64, options);
    for (int i = 0; i < 40; ++i) {
      learn(400, i % 4 == 0 ? 200 : 1, 1);
    }
    for (int i = 0; i < 60; ++i) {
      submit(16, 400);
    }
    return plan().started.size();
  };
  EXPECT_GT(started_with(2.0), started_with(0.0));
}

}  // namespace
}  // namespace tidemill::engines
