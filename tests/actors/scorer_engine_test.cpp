// SPDX-License-Identifier: Apache-2.0
// The contract of actors/reward/scorer_engine.hpp, on an actor system with threads and in virtual
// time.
#include "actors/reward/scorer_engine.hpp"

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>

#include <caf/all.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/actor_test.hpp"

namespace tidemill::test {
namespace {

using engines::RewardRequest;
using engines::RewardResult;
using namespace std::chrono_literals;
using ::testing::HasSubstr;

struct Results final : engines::RewardSink {
  void on_reward(RewardResult result) override {
    const SampleId id = result.id;
    EXPECT_TRUE(by_sample.emplace(id, std::move(result)).second) << "two results";
  }
  std::map<SampleId, RewardResult> by_sample;
};

// Scores a response by its length. Delays the reply to the request "first" until the next request.
actors::ScorerActor::behavior_type delaying_scorer(actors::ScorerActor::pointer self) {
  const auto kept = std::make_shared<caf::typed_response_promise<RewardResult>>();
  return {[self, kept](atom::score, const RewardRequest& request) {
    auto promise = self->make_response_promise<RewardResult>();
    RewardResult result;
    result.reward = static_cast<double>(request.response.size());
    if (request.response == "first") {
      *kept = promise;
    } else {
      promise.deliver(result);
      result.reward = 5.0;
      kept->deliver(result);
    }
    return promise;
  }};
}

// Replies with an error, or not at all to "never".
actors::ScorerActor::behavior_type failing_scorer(actors::ScorerActor::pointer self) {
  return {[self](atom::score, const RewardRequest& request) {
    auto promise = self->make_response_promise<RewardResult>();
    RewardResult result;
    result.error = "no opinion";
    if (request.response != "never") {
      promise.deliver(result);
    }
    return promise;
  }};
}

class ScorerEngineTest : public ::testing::Test {
protected:
  static caf::actor_system_config& configure(caf::actor_system_config& config) {
    actors::add_message_types(config);
    config.set("scheduler.max-threads", 1);
    return config;
  }
  static void ask(engines::RewardEngine& engine, Results& results, std::uint64_t id,
                  const std::string& response) {
    ASSERT_TRUE(engine.submit({{id}, "p", response, "a", "{}"}, results).ok());
  }
  static void drive(engines::RewardEngine& engine) {
    for (int i = 0; i < 1000 && engine.has_work(); ++i) {
      ASSERT_TRUE(engine.step(100ms).ok());
    }
    EXPECT_FALSE(engine.has_work());
  }
  caf::actor_system_config config_;
  caf::actor_system system_{configure(config_)};
};

TEST_F(ScorerEngineTest, EverySampleHasAResultWhateverTheOrderOfReplies) {
  const auto engine = actors::make_scorer_engine(system_, system_.spawn(delaying_scorer));
  Results results;
  ask(*engine, results, 7, "first");
  ask(*engine, results, 9, "of two");
  drive(*engine);
  ASSERT_EQ(results.by_sample.size(), 2U);
  EXPECT_EQ(results.by_sample.at({7}).reward, 5.0);
  EXPECT_EQ(results.by_sample.at({9}).reward, 6.0);
}

TEST_F(ScorerEngineTest, ASampleThatIsNotScoredHasAnError) {
  const auto engine = actors::make_scorer_engine(system_, system_.spawn(failing_scorer), 200ms);
  Results results;
  ask(*engine, results, 1, "what");
  ask(*engine, results, 2, "never");
  drive(*engine);
  EXPECT_EQ(results.by_sample.at({1}).error, "no opinion");
  EXPECT_THAT(results.by_sample.at({2}).error, HasSubstr("the scorer: "));
}

TEST_F(ScorerEngineTest, TheDestructorTerminatesTheScorer) {
  // ~actor_system() waits for every actor, so a scorer that is not terminated would hang this test.
  Results results;
  const auto engine = actors::make_scorer_engine(system_, system_.spawn(failing_scorer), 1h);
  ask(*engine, results, 1, "never");
}

// -- in virtual time ------------------------------------------------------------------------------

using Held = std::deque<caf::typed_response_promise<RewardResult>>;

// Holds requests, and replies to the first of them when it receives "go".
actors::ScorerActor::behavior_type stepwise_scorer(actors::ScorerActor::pointer self,
                                                   const std::shared_ptr<Held>& held) {
  return {[self, held](atom::score, const RewardRequest& request) {
    auto promise = self->make_response_promise<RewardResult>();
    RewardResult result;
    result.reward = 1.0;
    if (request.response == "go") {
      held->front().deliver(result);
      held->pop_front();
      promise.deliver(result);
    } else {
      held->push_back(promise);
    }
    return promise;
  }};
}

class ScorerTimeTest : public ActorTest {
protected:
  ScorerTimeTest()
      : scorer_(system().spawn(stepwise_scorer, held_)),
        engine_(actors::make_scorer_engine(system(), scorer_, 30s)) {}
  void TearDown() override {
    engine_.reset();
    ActorTest::TearDown();
  }
  void ask(std::uint64_t count) {
    for (; count > 0; --count) {
      ASSERT_TRUE(engine_->submit({{next_++}, "p", "r", "a", "{}"}, results_).ok());
    }
    drain();
  }
  void reply_to_first() {
    caf::anon_send(scorer_, atom::score_v, RewardRequest{{0}, "p", "go", "a", "{}"});
    drain();
  }
  [[nodiscard]] std::size_t num_failed() const {
    std::size_t failed = 0;
    for (const auto& [id, result] : results_.by_sample) {
      failed += result.error.empty() ? 0 : 1;
    }
    return failed;
  }

  std::shared_ptr<Held> held_ = std::make_shared<Held>();
  actors::ScorerActor scorer_;
  std::unique_ptr<engines::RewardEngine> engine_;
  Results results_;
  std::uint64_t next_ = 0;
};

TEST_F(ScorerTimeTest, NoneOfManySamplesFailsWhileTheScorerReplies) {
  ask(1000);
  std::size_t peak_held = 0;
  for (int i = 0; i < 1000 && !held_->empty(); ++i) {
    peak_held = std::max(peak_held, held_->size());
    advance(1s);
    reply_to_first();
    ASSERT_TRUE(engine_->step(0ms).ok());
  }
  EXPECT_EQ(results_.by_sample.size(), 1000U);
  EXPECT_EQ(num_failed(), 0U);
  EXPECT_EQ(peak_held, 64U);
}

TEST_F(ScorerTimeTest, SamplesInFlightFailTheDeadlineAfterTheLastReply) {
  ask(66);
  advance(20s);
  reply_to_first();  // the deadlines of the others start again, and one more sample is sent
  advance(29'999ms);
  ASSERT_TRUE(engine_->step(0ms).ok());
  EXPECT_EQ(results_.by_sample.size(), 1U);
  advance(1ms);
  ASSERT_TRUE(engine_->step(0ms).ok());
  EXPECT_EQ(results_.by_sample.size(), 65U);
  EXPECT_EQ(results_.by_sample.at({1}).error, "the scorer: no reply within 30000 ms");
  reply_to_first();  // too late
  ASSERT_TRUE(engine_->step(0ms).ok());
  EXPECT_EQ(results_.by_sample.size(), 65U);
  advance(30s);
  ASSERT_TRUE(engine_->step(0ms).ok());
  EXPECT_EQ(num_failed(), 65U);
  EXPECT_FALSE(engine_->has_work());
}

TEST_F(ScorerTimeTest, AReplyToALaterSampleDoesNotExtendTheDeadlineOfAnEarlierOne) {
  ask(2);
  advance(20s);
  std::swap(held_->front(), held_->back());
  reply_to_first();
  advance(10s);
  ASSERT_TRUE(engine_->step(0ms).ok());
  EXPECT_EQ(results_.by_sample.at({0}).error, "the scorer: no reply within 30000 ms");
  EXPECT_EQ(results_.by_sample.at({1}).error, "");
}

TEST_F(ScorerTimeTest, ALateReplyDoesNotExtendTheDeadlineOfALaterSample) {
  ask(1);
  advance(30s);  // given up
  ask(1);
  advance(20s);
  reply_to_first();
  advance(10s - 1ms);
  ASSERT_TRUE(engine_->step(0ms).ok());
  EXPECT_EQ(results_.by_sample.size(), 1U);
  EXPECT_EQ(num_failed(), 1U);
  advance(1ms);
  ASSERT_TRUE(engine_->step(0ms).ok());
  EXPECT_EQ(num_failed(), 2U);
}

TEST_F(ScorerTimeTest, TheEngineFailsOnceTheScorerHasTerminated) {
  ask(100);
  reply_to_first();
  const caf::error why = actors::to_caf_error(invalid_argument("out of opinions"));
  caf::anon_send(caf::actor_cast<caf::actor>(scorer_), caf::exit_msg{scorer_->address(), why});
  drain();
  ASSERT_TRUE(engine_->step(0ms).ok());  // delivers the reply that arrived before
  EXPECT_EQ(results_.by_sample.size(), 1U);
  const Status ended = engine_->step(0ms);
  EXPECT_EQ(ended.code(), Errc::kUnavailable);
  EXPECT_EQ(ended.message(), "the scorer: it terminated: out of opinions");
  EXPECT_EQ(results_.by_sample.size(), 100U);
  EXPECT_EQ(results_.by_sample.at({99}).error, ended.message());
  EXPECT_FALSE(engine_->has_work());
}

// A scorer may pass its requests on, so a reply can follow the termination that failed the sample.
TEST_F(ScorerTimeTest, AReplyAfterTheTerminationIsDropped) {
  const auto held = std::make_shared<Held>();
  const auto helper = keep(system().spawn(stepwise_scorer, held));
  const auto passing = system().spawn(
      [helper](actors::ScorerActor::pointer self) -> actors::ScorerActor::behavior_type {
        return {[self, helper](atom::score, const RewardRequest& request) {
          return self->delegate(helper, atom::score_v, request);
        }};
      });
  engine_ = actors::make_scorer_engine(system(), passing, 30s);
  ask(2);
  ASSERT_EQ(held->size(), 2U);
  kill(passing);
  ask(1);
  EXPECT_EQ(engine_->step(0ms).code(), Errc::kUnavailable);
  EXPECT_EQ(num_failed(), 3U);
  caf::anon_send(helper, atom::score_v, RewardRequest{{0}, "p", "go", "a", "{}"});
  drain();
  EXPECT_EQ(engine_->step(0ms).code(), Errc::kUnavailable);
  advance(31s);  // the deadline of the second sample
  EXPECT_EQ(engine_->step(0ms).code(), Errc::kUnavailable);
  EXPECT_EQ(results_.by_sample.size(), 3U);
  EXPECT_EQ(num_failed(), 3U);
}

TEST_F(ScorerTimeTest, ATerminationWhileIdleIsReportedWithTheNextSample) {
  kill(scorer_);
  EXPECT_FALSE(engine_->has_work());
  ask(1);
  EXPECT_TRUE(engine_->has_work());
  const Status ended = engine_->step(0ms);
  EXPECT_EQ(ended.code(), Errc::kUnavailable);
  EXPECT_EQ(ended.message(), "the scorer: it terminated");
  EXPECT_EQ(results_.by_sample.at({0}).error, ended.message());
}

}  // namespace
}  // namespace tidemill::test
