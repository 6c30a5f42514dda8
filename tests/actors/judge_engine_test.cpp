// SPDX-License-Identifier: Apache-2.0
// A reward engine that asks an actor, on a system with threads.
#include "actors/reward/judge_engine.hpp"

#include <chrono>
#include <map>

#include <caf/all.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

// Rewards the length of a response; keeps the first request back until the second has come.
actors::JudgeActor::behavior_type patient_judge(actors::JudgeActor::pointer self) {
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

// Knows no answer, and dies of some.
actors::JudgeActor::behavior_type bad_judge(actors::JudgeActor::pointer self) {
  return {[self](atom::score, const RewardRequest& request) {
    auto promise = self->make_response_promise<RewardResult>();
    RewardResult result;
    result.error = "no opinion";
    if (request.response == "die") {
      self->quit(caf::exit_reason::kill);
    } else if (request.response != "never") {
      promise.deliver(result);
    }
    return promise;
  }};
}

class JudgeEngineTest : public ::testing::Test {
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

TEST_F(JudgeEngineTest, EverySampleIsAnsweredWhateverTheOrder) {
  const auto engine = actors::make_judge_engine(system_, system_.spawn(patient_judge));
  Results results;
  ask(*engine, results, 7, "first");
  ask(*engine, results, 9, "of two");
  drive(*engine);
  ASSERT_EQ(results.by_sample.size(), 2U);
  EXPECT_EQ(results.by_sample.at({7}).reward, 5.0);
  EXPECT_EQ(results.by_sample.at({9}).reward, 6.0);
}

TEST_F(JudgeEngineTest, WhatTheJudgeDoesNotAnswerForSaysWhy) {
  const auto engine = actors::make_judge_engine(system_, system_.spawn(bad_judge), 200ms);
  Results results;
  ask(*engine, results, 1, "what");
  ask(*engine, results, 2, "never");
  drive(*engine);
  EXPECT_EQ(results.by_sample.at({1}).error, "no opinion");
  EXPECT_THAT(results.by_sample.at({2}).error, HasSubstr("the judge: "));
  ask(*engine, results, 3, "die");
  ask(*engine, results, 4, "behind it");
  drive(*engine);
  EXPECT_THAT(results.by_sample.at({3}).error, HasSubstr("the judge: "));
  EXPECT_THAT(results.by_sample.at({4}).error, HasSubstr("the judge: "));
}

TEST_F(JudgeEngineTest, AnEngineThatGoesTakesItsJudgeWithIt) {
  // ~actor_system() waits for every actor: a judge left behind would hang this test.
  Results results;
  const auto engine = actors::make_judge_engine(system_, system_.spawn(bad_judge), 1h);
  ask(*engine, results, 1, "never");
}

}  // namespace
}  // namespace tidemill::test
