// SPDX-License-Identifier: Apache-2.0
// Tests the order in which waiting sequences of several tenants start.
#include "engines/scheduler/fair_queue.hpp"

#include <algorithm>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"

namespace tidemill::engines {
namespace {

class FairQueueTest : public ::testing::Test {
protected:
  PlannedSequence& push(const std::string& tenant, std::int64_t prompt = 10) {
    PlannedSequence& sequence = sequences_.emplace_back();
    sequence.tokens.assign(static_cast<std::size_t>(prompt), 1);
    sequence.prompt_length = prompt;
    sequence.tenant = tenant;
    sequence.serial = sequences_.size();
    queue_->push(sequence);
    return sequence;
  }

  // Starts the next `count` sequences and returns their tenants, one letter each.
  std::string take(std::size_t count) {
    std::string tenants;
    FairQueue::Visit visit(*queue_);
    for (std::size_t i = 0; i < count; ++i) {
      PlannedSequence* next = visit.next();
      if (next == nullptr) {
        return tenants + "-";
      }
      tenants += next->tenant;
      visit.take();
    }
    return tenants;
  }

  // Computes tokens of a sequence's response, after its prompt.
  static void decode(PlannedSequence& sequence, std::int64_t tokens) {
    sequence.num_cached = sequence.prompt_length + tokens;
    FairQueue::charge(sequence);
  }

  std::deque<PlannedSequence> sequences_;
  std::optional<FairQueue> queue_{std::in_place};
};

TEST_F(FairQueueTest, OneTenantStartsInTheOrderOfSubmission) {
  for (int i = 0; i < 4; ++i) {
    push("a", 10 - i);
  }
  FairQueue::Visit visit(*queue_);
  EXPECT_EQ(visit.next(), &sequences_[0]);
  EXPECT_EQ(visit.next(), &sequences_[0]) << "`next` alone changes nothing";
  visit.skip();
  EXPECT_EQ(visit.next(), &sequences_[1]);
  visit.take();
  EXPECT_EQ(visit.next(), &sequences_[2]);
  visit.skip();
  EXPECT_EQ(visit.next(), &sequences_[3]);
  visit.skip();
  EXPECT_EQ(visit.next(), nullptr);
  EXPECT_EQ(queue_->size(), 3U);
  EXPECT_EQ(take(4), "aaa-");
}

// Prompts of a have 10 tokens, those of b 20: b gets half as many turns.
TEST_F(FairQueueTest, TenantsGetEqualTokens) {
  for (int i = 0; i < 100; ++i) {
    push("a", 10);
  }
  for (int i = 0; i < 100; ++i) {
    push("b", 20);
  }
  EXPECT_EQ(take(9), "abaabaaba");
}

TEST_F(FairQueueTest, TheFirstRequestOfATenantStartsNext) {
  for (int i = 0; i < 100; ++i) {
    push("a");
  }
  EXPECT_EQ(take(4), "aaaa");
  push("b");
  decode(sequences_[0], 1);
  EXPECT_EQ(take(3), "baa");
}

TEST_F(FairQueueTest, TokensOfResponsesCountOnce) {
  PlannedSequence& first = push("a");
  push("a");
  PlannedSequence& other = push("b");
  push("b");
  EXPECT_EQ(take(2), "ab");
  decode(first, 1);
  EXPECT_EQ(first.share->counter, 11);
  first.num_cached = 0;  // preempted, and computed again
  decode(first, 1);
  EXPECT_EQ(first.share->counter, 11);
  decode(first, 7);
  EXPECT_EQ(first.share->counter, 17);
  decode(other, 6);
  EXPECT_EQ(other.share->counter, 16);
  EXPECT_EQ(take(2), "ba");
}

// The part of a prompt that is in the cache is free, but a start counts at least one token.
TEST_F(FairQueueTest, CachedTokensAreNotCharged) {
  PlannedSequence& sequence = push("a", 40);
  sequence.num_cached = 32;
  EXPECT_EQ(take(1), "a");
  EXPECT_EQ(sequence.share->counter, 8);
  PlannedSequence& cached = push("a", 40);
  cached.num_cached = 40;
  EXPECT_EQ(take(1), "a");
  EXPECT_EQ(cached.share->counter, 9);
}

// b was idle while a ran 1,000 tokens. If b had saved its share up, it would start 100 sequences.
TEST_F(FairQueueTest, AnIdleTenantSavesNoShareUp) {
  push("b");
  EXPECT_EQ(take(1), "b");
  for (int i = 0; i < 100; ++i) {
    push("a");
  }
  (void)take(100);
  for (int i = 0; i < 4; ++i) {
    push("b");
  }
  for (int i = 0; i < 4; ++i) {
    push("a");
  }
  EXPECT_EQ(take(8), "babababa");
}

TEST_F(FairQueueTest, RemovesSequencesInAnyState) {
  PlannedSequence& started = push("a");
  PlannedSequence& waiting = push("a");
  push("b");
  EXPECT_EQ(take(1), "a");
  EXPECT_FALSE(queue_->remove(started));
  EXPECT_TRUE(queue_->remove(waiting));
  EXPECT_EQ(queue_->size(), 1U);
  EXPECT_EQ(take(2), "b-");
}

TEST_F(FairQueueTest, ForgetsTenantsWithoutSequences) {
  for (int i = 0; i < 1000; ++i) {
    PlannedSequence& sequence = push("tenant " + std::to_string(i));
    FairQueue::Visit visit(*queue_);
    ASSERT_EQ(visit.next(), &sequence);
    visit.take();
    EXPECT_FALSE(queue_->remove(sequence));
  }
  EXPECT_LE(queue_->num_tenants(), 2U);
}

// While two tenants wait, what they have got differs by at most what one start or one iteration
// costs, whatever the lengths of their prompts and responses are.
TEST_F(FairQueueTest, TheDifferenceBetweenWaitingTenantsIsBounded) {
  constexpr std::int64_t kMaxPrompt = 50;
  constexpr std::int64_t kMaxResponse = 100;
  constexpr std::size_t kSlots = 8;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    RandomStream random(71, seed);
    queue_.emplace();
    sequences_.clear();
    std::vector<std::pair<PlannedSequence*, std::int64_t>> running;  // with the rest of responses
    for (int i = 0; i < 400; ++i) {
      // a: long prompts; b: long responses; c: anything
      for (const char* tenant : {"a", "b", "c"}) {
        push(tenant,
             tenant[0] == 'b' ? 1 : 1 + static_cast<std::int64_t>(random.below(kMaxPrompt)));
      }
    }
    for (int iteration = 0; iteration < 1000; ++iteration) {
      FairQueue::Visit visit(*queue_);
      while (running.size() < kSlots) {
        PlannedSequence* next = visit.next();
        ASSERT_NE(next, nullptr);
        running.emplace_back(next, next->tenant == "a" ? 1 : 1 + random.below(kMaxResponse));
        visit.take();
        next->num_cached = next->prompt_length;
      }
      for (auto& [sequence, left] : running) {
        decode(*sequence, sequence->num_cached - sequence->prompt_length + 1);
        --left;
      }
      std::int64_t least = sequences_[0].share->counter;
      std::int64_t most = least;
      for (std::size_t i = 1; i < 3; ++i) {
        least = std::min(least, sequences_[sequences_.size() - i].share->counter);
        most = std::max(most, sequences_[sequences_.size() - i].share->counter);
      }
      // Source: theorem 4.4 of the paper, whose bound is twice the larger of the longest prompt and
      // of what can run at a time.
      ASSERT_LE(most - least, 2 * static_cast<std::int64_t>(kSlots) * kMaxResponse);
      std::erase_if(running, [](const auto& one) { return one.second == 0; });
    }
  }
}

}  // namespace
}  // namespace tidemill::engines
