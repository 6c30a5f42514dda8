// SPDX-License-Identifier: Apache-2.0
// Tests what priorities, tenants and salts decide: which sequences start, which are preempted, and
// which pages they share. `SimulatedGeneration` checks the contents of all pages meanwhile.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/engines/scheduler/simulated_generation.hpp"

namespace tidemill::engines {
namespace {

constexpr IterationBudget kBudget{1000, 1000};

class PriorityTest : public ::testing::Test {
protected:
  void open(std::int64_t pages, std::int64_t max_running) {
    PlannerOptions options;
    options.max_running = max_running;
    generation_ = std::make_unique<SimulatedGeneration>(pages, options);
    prompts_ = 0;
  }

  // A request whose prompt no other request shares.
  SimulatedRequest request(std::int64_t prompt, std::int64_t response,
                           Priority priority = Priority::kNormal, std::string tenant = {}) {
    SimulatedRequest made;
    const std::int32_t first = 100 * ++prompts_;
    for (std::int64_t i = 0; i < prompt; ++i) {
      made.prompt.push_back(first + static_cast<std::int32_t>(i));
    }
    made.max_new_tokens = response;
    made.response_length = response;
    made.priority = priority;
    made.tenant = std::move(tenant);
    return made;
  }
  std::size_t submit(std::int64_t prompt, std::int64_t response,
                     Priority priority = Priority::kNormal, std::string tenant = {}) {
    return generation_->submit(request(prompt, response, priority, std::move(tenant)));
  }

  void step(int count = 1) {
    for (int i = 0; i < count; ++i) {
      generation_->step(kBudget);
    }
  }
  void run_to_end() {
    while (generation_->has_work()) {
      ASSERT_LT(generation_->totals().iterations, 100000);
      generation_->step(kBudget);
    }
  }
  [[nodiscard]] bool runs(std::size_t number) const {
    return !generation_->finished(number) && !generation_->sequence(number).pages.empty();
  }
  // The numbers of those that run.
  [[nodiscard]] std::vector<std::size_t> running() const {
    std::vector<std::size_t> numbers;
    for (std::size_t i = 0; i < generation_->num_requests(); ++i) {
      if (runs(i)) {
        numbers.push_back(i);
      }
    }
    return numbers;
  }
  // The requests that have started, in the order in which they did.
  [[nodiscard]] std::vector<std::size_t> started() const {
    std::vector<std::size_t> numbers;
    for (std::size_t i = 0; i < generation_->num_requests(); ++i) {
      if (!generation_->sequence(i).weights.empty()) {
        numbers.push_back(i);
      }
    }
    std::ranges::sort(numbers, {}, [this](std::size_t number) {
      return generation_->sequence(number).start_order;
    });
    return numbers;
  }

  using Numbers = std::vector<std::size_t>;

  std::unique_ptr<SimulatedGeneration> generation_;
  std::int32_t prompts_ = 0;
};

TEST_F(PriorityTest, HigherPrioritiesStartFirst) {
  open(100, 1);
  const std::size_t first = submit(16, 4, Priority::kHigh);
  step();
  const std::size_t rollout = submit(16, 4, Priority::kBackground);
  const std::size_t low = submit(16, 4, Priority::kLow);
  const std::size_t normal = submit(16, 4);
  const std::size_t other = submit(16, 4);
  const std::size_t high = submit(16, 4, Priority::kHigh);
  run_to_end();
  EXPECT_EQ(started(), (Numbers{first, high, normal, other, low, rollout}));
  EXPECT_EQ(generation_->totals().preemptions, 0);
}

// All slots are taken by rollouts. A client's request takes the slot of the one that started last.
TEST_F(PriorityTest, AClientTakesTheSlotOfARollout) {
  open(100, 2);
  const std::size_t first = submit(16, 40, Priority::kBackground);
  const std::size_t second = submit(16, 40, Priority::kBackground);
  step(5);
  ASSERT_EQ(running(), (Numbers{first, second}));
  const std::size_t client = submit(16, 10);
  step();
  EXPECT_EQ(running(), (Numbers{first, client}));
  EXPECT_EQ(generation_->totals().preemptions, 1);
  const std::int64_t computed = generation_->totals().prefill_tokens;
  step(9);
  EXPECT_TRUE(generation_->finished(client));
  step();
  EXPECT_EQ(running(), (Numbers{first, second}));
  EXPECT_LE(generation_->totals().prefill_tokens - computed, 16)
      << "whole pages of the preempted one were still cached";
  run_to_end();
  EXPECT_TRUE(generation_->finished(first) && generation_->finished(second));
}

TEST_F(PriorityTest, EqualPrioritiesTakeNoSlots) {
  open(100, 2);
  const std::size_t first = submit(16, 40);
  const std::size_t second = submit(16, 40);
  step(5);
  submit(16, 10, Priority::kNormal, "another tenant");
  step(5);
  EXPECT_EQ(running(), (Numbers{first, second}));
  EXPECT_EQ(generation_->totals().preemptions, 0);
}

// The forecast for a client does not count rollouts, so it starts at once, and rollouts give their
// pages up only when they are needed.
TEST_F(PriorityTest, RolloutsGiveUpTheirPagesWhenTheyAreNeeded) {
  open(10, 10);
  const std::size_t rollout = submit(16, 129, Priority::kBackground);  // 9 pages
  step();
  const std::size_t client = submit(16, 129);  // 9 pages
  const std::size_t late = submit(16, 60, Priority::kBackground);
  step(30);
  EXPECT_EQ(running(), (Numbers{rollout, client})) << "both still fit; the third would not";
  step(60);
  EXPECT_EQ(running(), (Numbers{client}));
  EXPECT_EQ(generation_->totals().preemptions, 1);
  run_to_end();
  EXPECT_EQ(started(), (Numbers{rollout, client, late}));
  for (const std::size_t number : {rollout, client, late}) {
    EXPECT_TRUE(generation_->finished(number));
  }
}

// Training takes pages from the lowest priority first, and within it from the one that started
// last.
TEST_F(PriorityTest, TheLowestPriorityThenTheLatestIsPreempted) {
  open(100, 10);
  const std::size_t low_first = submit(16, 60, Priority::kLow);
  const std::size_t normal = submit(16, 60);
  const std::size_t rollout = submit(16, 60, Priority::kBackground);
  const std::size_t high = submit(16, 60, Priority::kHigh);
  step();
  const std::size_t low_second = submit(16, 60, Priority::kLow);
  const std::size_t normal_second = submit(16, 60);
  step();
  ASSERT_EQ(running().size(), 6U);
  Numbers order;
  while (!running().empty()) {
    const Numbers before = running();
    const IterationPlanner& planner = generation_->planner();
    const std::int64_t unused = generation_->pool().num_pages() - planner.num_pages_in_use();
    ASSERT_EQ(generation_->planner().make_room(unused + 1), 1);
    const Numbers after = running();
    std::ranges::set_difference(before, after, std::back_inserter(order));
  }
  EXPECT_EQ(order, (Numbers{rollout, low_second, low_first, normal_second, normal, high}));
  step();
  EXPECT_EQ(running().size(), 6U);
  run_to_end();
}

// A small rollout would fit, but a client waits for room.
TEST_F(PriorityTest, NothingStartsWhileAHigherPriorityWaitsForRoom) {
  open(10, 10);
  const std::size_t running_client = submit(80, 60);  // 9 pages
  step();
  const std::size_t waiting_client = submit(80, 17);
  const std::size_t rollout = submit(8, 4, Priority::kBackground);
  step(20);
  EXPECT_EQ(running(), (Numbers{running_client}));
  run_to_end();
  EXPECT_EQ(started(), (Numbers{running_client, waiting_client, rollout}));
}

// The requests of a need 20 iterations each, 4 at a time.
TEST_F(PriorityTest, ATenantWithManyRequestsDoesNotDelayATenantWithOne) {
  for (const bool tenants : {true, false}) {
    open(1000, 4);
    for (int i = 0; i < 100; ++i) {
      submit(16, 20, Priority::kNormal, tenants ? "a" : "");
    }
    step(10);
    const std::size_t one = submit(16, 20, Priority::kNormal, tenants ? "b" : "");
    std::int64_t waited = 0;
    for (; generation_->sequence(one).weights.empty(); ++waited) {
      step();
    }
    EXPECT_EQ(waited, tenants ? 11 : 491);
  }
}

// While both tenants have requests waiting, each has got the same number of tokens, up to what its
// running requests have, although the responses of a are 8 times as long.
TEST_F(PriorityTest, TenantsGetEqualNumbersOfTokens) {
  constexpr std::int64_t kSlots = 8;
  open(1000, kSlots);
  std::map<std::string, Numbers> requests;
  for (int i = 0; i < 100; ++i) {
    requests["a"].push_back(submit(16, 64, Priority::kNormal, "a"));
  }
  for (int i = 0; i < 400; ++i) {
    requests["b"].push_back(submit(16, 8, Priority::kNormal, "b"));
  }
  const auto tokens_of = [&](const std::string& tenant) {
    std::int64_t tokens = 0;
    for (const std::size_t number : requests[tenant]) {
      tokens += generation_->sequence(number).num_charged;
    }
    return tokens;
  };
  for (int i = 0; i < 600; ++i) {
    step();
    ASSERT_LE(std::abs(tokens_of("a") - tokens_of("b")), kSlots * (16 + 64)) << i;
  }
  EXPECT_GT(tokens_of("a"), 4000);
  EXPECT_TRUE(generation_->sequence(requests["a"].back()).weights.empty()) << "still waiting";
  EXPECT_TRUE(generation_->sequence(requests["b"].back()).weights.empty()) << "still waiting";
}

TEST_F(PriorityTest, SequencesShareOnlyPagesOfTheirSalt) {
  open(100, 4);
  const auto cached_by = [this](const std::string& salt) {
    SimulatedRequest made;
    made.prompt.assign(40, 3);
    made.cache_salt = salt;
    const std::int64_t before = generation_->totals().cached_tokens;
    generation_->submit(std::move(made));
    step();
    return generation_->totals().cached_tokens - before;
  };
  EXPECT_EQ(cached_by(""), 0);
  EXPECT_EQ(cached_by(""), 40);
  EXPECT_EQ(cached_by("a"), 0);
  EXPECT_EQ(cached_by("b"), 0);
  EXPECT_EQ(cached_by("a"), 40);
  EXPECT_EQ(cached_by("b"), 40);
  EXPECT_EQ(generation_->planner().tree().num_scopes(), 3);
  // Nor does a sequence wait for one of another salt that is computing the same prompt.
  SimulatedRequest slow = request(60, 4);
  SimulatedRequest same = slow;
  SimulatedRequest salted = slow;
  salted.cache_salt = "a";
  const std::size_t first = generation_->submit(std::move(slow));
  const std::size_t waits = generation_->submit(std::move(same));
  const std::size_t starts = generation_->submit(std::move(salted));
  generation_->step({20, 20});
  EXPECT_EQ(running(), (Numbers{first, starts}));
  EXPECT_FALSE(runs(waits));
  run_to_end();
  generation_->planner().drop_cached(100);
  EXPECT_EQ(generation_->planner().tree().num_scopes(), 0) << "a salt without pages is forgotten";
}

}  // namespace
}  // namespace tidemill::engines
