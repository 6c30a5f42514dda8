// SPDX-License-Identifier: Apache-2.0
// The contract of actors/evaluator/handles.hpp.
#include <array>
#include <chrono>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/device/spawn.hpp"
#include "actors/evaluator/spawn.hpp"
#include "engines/replay/factory.hpp"
#include "tests/support/actor_test.hpp"
#include "tests/support/fake_actors.hpp"
#include "tests/support/fake_reward_engine.hpp"

namespace tidemill::test {
namespace {

using actors::EvalReport;
using engines::FinishReason;
using namespace std::chrono_literals;
using ::testing::ElementsAre;

class EvaluatorTest : public ActorTest {
protected:
  void SetUp() override {
    device_handle_ = keep(spawn_fake_device(system(), device_));
    deps_.serving = device_handle_;
    deps_.engine = engine_;
    deps_.decode = [](const std::vector<std::int32_t>& ids) { return std::to_string(ids.size()); };
    deps_.samples = 2;
    deps_.seed = 5;
    deps_.sampling.temperature = 0.5F;
    deps_.max_new_tokens = 7;
    deps_.stop_ids = {2};
    deps_.stop_strings = {"end"};
    deps_.port = &port();
    for (std::int32_t i = 0; i < 2; ++i) {
      actors::Prompt prompt;
      prompt.ids = {i};
      prompt.prompt = "p" + std::to_string(i);
      prompt.reference_answer = "a" + std::to_string(i);
      deps_.prompts.push_back(prompt);
    }
  }
  Reply<EvalReport> evaluate(std::uint64_t step) {
    if (!evaluator_) {
      evaluator_ = keep(actors::spawn_evaluator(system(), deps_));
      exit_ = exit_of(evaluator_);
    }
    auto reply = ask<EvalReport>(evaluator_, atom::start_v, step);
    drain();
    return reply;
  }
  void stop() {
    caf::anon_send(evaluator_, atom::stop_v);
    drain();
  }
  void respond(std::uint64_t step, FinishReason reason = FinishReason::kStop) {
    auto pending = take(device_->generations);
    engines::RolloutResult result;
    result.id = pending.request.id;
    result.response_ids = {1, 2};
    result.versions = {{{0, 0, step}, 2}};
    result.finish_reason = reason;
    pending.reply(std::move(result));
    drain();
  }

  std::shared_ptr<FakeDevice> device_ = std::make_shared<FakeDevice>();
  std::shared_ptr<FakeRewardEngine> engine_ = std::make_shared<FakeRewardEngine>();
  actors::DeviceActor device_handle_;
  actors::EvaluatorDeps deps_;
  actors::EvaluatorActor evaluator_;
  std::shared_ptr<std::optional<Status>> exit_;
};

TEST_F(EvaluatorTest, GeneratesAndScoresKResponsesPerPrompt) {
  const auto reply = evaluate(3);
  ASSERT_EQ(device_->generations.size(), 4U);
  const engines::RolloutRequest& third = device_->generations[2].request;
  EXPECT_EQ(third.prompt_ids, (std::vector<std::int32_t>{1}));
  EXPECT_EQ(third.min_step, 3U);  // weights of this step or newer
  EXPECT_EQ(third.seed, 5U);
  EXPECT_EQ(third.sampling.temperature, 0.5F);
  EXPECT_EQ(third.max_new_tokens, 7);
  EXPECT_THAT(third.stop_ids, ElementsAre(2));
  EXPECT_THAT(third.stop_strings, ElementsAre("end"));
  const std::uint64_t first_id = device_->generations[0].request.id.value;
  engine_->reward = 0.0;
  engine_->reward_of[first_id + 1] = 1.0;
  respond(4);
  respond(4);
  respond(3);
  EXPECT_TRUE(engine_->requests.empty());  // scored only after all are generated
  respond(5);
  EXPECT_EQ(engine_->requests.size(), 4U);
  advance(0s);
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply.value().step, 3U);  // the smallest that generated
  EXPECT_EQ(reply.value().num_prompts, 2U);
  EXPECT_EQ(reply.value().num_samples, 2U);
  EXPECT_EQ(reply.value().mean_at_k, 0.25);
  EXPECT_EQ(reply.value().pass_at_k, 0.5);
  EXPECT_EQ(reply.value().num_failed, 0U);
  EXPECT_EQ(engine_->requests[3].reference_answer, "a1");
  EXPECT_EQ(engine_->requests[3].response, "2");
}

TEST_F(EvaluatorTest, ARequestWithoutAReplyIsCancelledBeforeTheNextIsSent) {
  deps_.max_in_flight = 1;
  deps_.response_deadline = 30s;
  evaluate(1);
  ASSERT_EQ(device_->generations.size(), 1U);
  const SampleId first = device_->generations.front().request.id;
  advance(30s);
  EXPECT_THAT(device_->cancelled, ElementsAre(first));
  EXPECT_EQ(device_->generations.size(), 2U);
}

TEST_F(EvaluatorTest, ThePartsOfASumHaveMeansOverAllSamples) {
  const auto reply = evaluate(1);
  const std::uint64_t first_id = device_->generations[0].request.id.value;
  engine_->parts = {1.0, 0.5};
  engine_->error_of[first_id] = "no opinion";  // counts as 0
  for (int i = 0; i < 4; ++i) {
    respond(1);
  }
  advance(0s);
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply.value().part_means, (std::vector<double>{0.75, 0.375}));
}

TEST_F(EvaluatorTest, TheMeansOfPartsDoNotDependOnTheOrderOfResults) {
  constexpr std::array kParts{1e16, 1.0, -1e16, 1.0};  // each order of addition gives another sum
  const auto means = [&](bool reversed) {
    const auto reply = evaluate(1);
    const std::uint64_t first_id = device_->generations[0].request.id.value;
    for (std::size_t i = 0; i < kParts.size(); ++i) {
      engine_->parts_of[first_id + i] = {kParts[i]};
    }
    engine_->reversed = reversed;
    for (std::size_t i = 0; i < kParts.size(); ++i) {
      respond(1);
    }
    advance(0s);
    EXPECT_TRUE(reply.ok());
    return reply.value().part_means;
  };
  EXPECT_EQ(means(false),
            (std::vector<double>{(kParts[0] + kParts[1] + kParts[2] + kParts[3]) / 4}));
  EXPECT_EQ(means(true), means(false));
}

TEST_F(EvaluatorTest, RefusesASecondEvaluationAtTheSameTime) {
  const auto first = evaluate(1);
  EXPECT_EQ(evaluate(2).status().code(), Errc::kUnavailable);
  for (int i = 0; i < 4; ++i) {
    respond(1);
  }
  advance(0s);
  EXPECT_TRUE(first.ok());
  evaluate(2);
  EXPECT_EQ(device_->generations.size(), 4U);
}

TEST_F(EvaluatorTest, SamplesNotGeneratedOrScoredCountAsZero) {
  const auto reply = evaluate(1);
  const std::uint64_t first_id = device_->generations[0].request.id.value;
  engine_->error_of[first_id] = "no number";
  respond(1);
  respond(1, FinishReason::kFailed);
  take(device_->generations).fail({Errc::kResourceExhausted, "too long"});
  respond(1);
  advance(0s);
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply.value().num_failed, 3U);
  EXPECT_EQ(reply.value().mean_at_k, 0.25);
}

TEST_F(EvaluatorTest, AnEvaluationWithoutResponsesReportsTheRequestedStep) {
  const auto reply = evaluate(6);
  for (int i = 0; i < 4; ++i) {
    respond(6, FinishReason::kFailed);
  }
  advance(0s);
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply.value().step, 6U);
  EXPECT_EQ(reply.value().num_failed, 4U);
  EXPECT_EQ(reply.value().mean_at_k, 0.0);
}

TEST_F(EvaluatorTest, ADeviceThatDoesNotReplyFailsTheSamplesAtTheDeadline) {
  const auto reply = evaluate(1);
  advance(23h);
  EXPECT_FALSE(reply.arrived());
  advance(2h);
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply.value().num_failed, 4U);
  EXPECT_FALSE(exit_->has_value());
}

TEST_F(EvaluatorTest, ADeviceThatDiesFailsTheSamples) {
  const auto reply = evaluate(1);
  kill(device_handle_);
  EXPECT_TRUE(run_until([&] { return reply.arrived(); }));
  EXPECT_EQ(reply.value().num_failed, 4U);
}

TEST_F(EvaluatorTest, AResponseThatWasGivenUpWithItsDeviceIsRequestedAgain) {
  const auto reply = evaluate(1);
  const SampleId first = device_->generations[0].request.id;
  take(device_->generations).fail({Errc::kUnavailable, "device-1 is quarantined: digest"});
  drain();
  ASSERT_EQ(device_->generations.size(), 4U);
  EXPECT_EQ(device_->generations.back().request.id, first);
  for (int i = 0; i < 4; ++i) {
    respond(1);
  }
  EXPECT_TRUE(run_until([&] { return reply.arrived(); }));
  EXPECT_EQ(reply.value().num_failed, 0U);
}

// An evaluation whose responses are missing would be recorded as a bad one.
TEST_F(EvaluatorTest, AResponseThatIsGivenUpAgainAndAgainFailsTheEvaluation) {
  const auto reply = evaluate(1);
  for (int i = 0; i < 9; ++i) {
    EXPECT_FALSE(reply.arrived());
    take(device_->generations).fail({Errc::kUnavailable, "no device serves"});
    drain();
  }
  EXPECT_EQ(reply.status().code(), Errc::kUnavailable);
  EXPECT_EQ(reply.status().message(), "no device serves");
  EXPECT_EQ(device_->cancelled.size(), 4U);
  EXPECT_FALSE(exit_->has_value());
  EXPECT_EQ(evaluate(2).status().code(), Errc::kUnavailable);
}

TEST_F(EvaluatorTest, ExitsWithTheErrorOfARewardEngineThatGivesUp) {
  engine_->failure = {Errc::kUnavailable, "the program died"};
  evaluate(1);
  for (int i = 0; i < 4; ++i) {
    respond(1);
  }
  advance(0s);
  ASSERT_TRUE(exit_->has_value());
  EXPECT_EQ((*exit_)->message(), "the program died");
}

// The evaluation of many prompts shares the device with the rollouts of the next step.
TEST_F(EvaluatorTest, ARolloutStartsWhileAnEvaluationOfManyPromptsRuns) {
  engines::ReplayOptions replay;
  replay.slots = 16;
  replay.length_of = [](SampleId) { return 4U; };
  const auto rollout =
      engines::make_replay_rollout_engine(replay, engines::replay_initial_snapshot(1));
  actors::DeviceDeps device;
  device.rollout = rollout.get();
  const auto device_port = actors::make_simulated_work_port(system(), [] { return Duration{0}; });
  device.port = device_port.get();
  const auto shared = keep(actors::spawn_device(system(), std::move(device)));
  deps_.serving = shared;
  deps_.prompts.resize(300, deps_.prompts.front());
  deps_.max_in_flight = 64;
  const auto evaluated = evaluate(0);
  advance(100ms);
  engines::RolloutRequest row;
  row.id = {1};
  row.prompt_ids = {1};
  row.max_new_tokens = 4;
  const auto generated = ask<engines::RolloutResult>(shared, atom::generate_v, row);
  ASSERT_TRUE(run_until([&] { return generated.arrived(); }));
  const Duration rollout_took = now() - TimePoint{};
  ASSERT_TRUE(run_until([&] { return evaluated.arrived(); }));
  EXPECT_LT(rollout_took * 3, now() - TimePoint{}) << "virtual times";
  EXPECT_EQ(evaluated.value().num_failed, 0U);
}

TEST_F(EvaluatorTest, HoldsABoundedNumberOfRequestsAtTheDevice) {
  deps_.max_in_flight = 3;
  const auto reply = evaluate(1);
  EXPECT_EQ(device_->generations.size(), 3U);
  const std::uint64_t first_id = device_->generations[0].request.id.value;
  respond(1);
  ASSERT_EQ(device_->generations.size(), 3U);
  EXPECT_EQ(device_->generations.back().request.id.value, first_id + 3);
  EXPECT_EQ(device_->generations.back().request.prompt_ids, (std::vector<std::int32_t>{1}));
  take(device_->generations).fail({Errc::kResourceExhausted, "too long"});
  drain();
  EXPECT_EQ(device_->generations.size(), 2U);  // all four have been requested
  respond(1);
  respond(1);
  advance(0s);
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(engine_->requests.size(), 3U);
  EXPECT_EQ(reply.value().num_failed, 1U);
}

// -- stops ----------------------------------------------------------------------------------------

TEST_F(EvaluatorTest, AStopCancelsTheRequestsAtTheDeviceAndSendsNoMore) {
  deps_.max_in_flight = 3;
  const auto reply = evaluate(1);
  const SampleId first = device_->generations[0].request.id;
  respond(1);  // the fourth and last response is requested
  stop();
  EXPECT_EQ(reply.status().code(), Errc::kUnavailable);
  EXPECT_THAT(device_->cancelled, ElementsAre(SampleId{first.value + 1}, SampleId{first.value + 2},
                                              SampleId{first.value + 3}));
  respond(1, FinishReason::kCancelled);
  respond(1);  // had ended before the device saw the cancellation
  respond(1, FinishReason::kCancelled);
  advance(25h);
  EXPECT_TRUE(device_->generations.empty());
  EXPECT_TRUE(engine_->requests.empty());
  EXPECT_EQ(device_->cancelled.size(), 3U);
  EXPECT_EQ(reply.count(), 1);
  EXPECT_FALSE(exit_->has_value());
}

TEST_F(EvaluatorTest, AStopWhileResponsesAreScoredAbandonsThem) {
  engine_->thinking = true;
  const auto reply = evaluate(1);
  for (int i = 0; i < 4; ++i) {
    respond(1);
  }
  EXPECT_EQ(engine_->requests.size(), 4U);
  stop();
  EXPECT_EQ(reply.status().code(), Errc::kUnavailable);
  engine_->failure = {Errc::kUnavailable, "the program died"};
  advance(1h);
  EXPECT_FALSE(exit_->has_value());  // the run is ending, and needs the engine no more
  EXPECT_TRUE(device_->cancelled.empty());
}

TEST_F(EvaluatorTest, AStoppedEvaluatorBeginsNoEvaluation) {
  deps_.samples = 1;
  evaluate(1);
  stop();
  stop();
  EXPECT_EQ(device_->cancelled.size(), 2U);
  EXPECT_EQ(evaluate(2).status().code(), Errc::kUnavailable);
  EXPECT_EQ(device_->generations.size(), 2U);
}

// The step that a stopped run finishes may still need responses.
TEST_F(EvaluatorTest, AStopFreesTheDeviceForRollouts) {
  engines::ReplayOptions replay;
  replay.slots = 4;
  replay.length_of = [](SampleId) { return 5U; };  // a tenth of a second for four responses
  const auto rollout =
      engines::make_replay_rollout_engine(replay, engines::replay_initial_snapshot(1));
  actors::DeviceDeps device;
  device.rollout = rollout.get();
  const auto device_port = actors::make_simulated_work_port(system(), [] { return Duration{0}; });
  device.port = device_port.get();
  const auto shared = keep(actors::spawn_device(system(), std::move(device)));
  deps_.serving = shared;
  deps_.prompts.resize(300, deps_.prompts.front());
  deps_.max_in_flight = 64;
  const auto evaluated = evaluate(0);
  advance(100ms);
  stop();
  EXPECT_EQ(evaluated.status().code(), Errc::kUnavailable);
  engines::RolloutRequest row;
  row.id = {1};
  row.prompt_ids = {1};
  row.max_new_tokens = 5;
  const TimePoint stopped = now();
  const auto generated = ask<engines::RolloutResult>(shared, atom::generate_v, row);
  EXPECT_TRUE(run_until([&] { return generated.arrived(); }));
  EXPECT_LE(now() - stopped, 300ms) << "the responses in flight alone take 1.6 s";
  kill(shared);  // before its engine is gone
}

TEST_F(EvaluatorTest, RequestsThatHaveFailedLeaveNoTimer) {
  evaluate(0);
  ASSERT_EQ(num_timers() - num_timers(1h), 4U);
  take(device_->generations).fail({Errc::kInvalidArgument, "empty prompt"});
  drain();
  EXPECT_EQ(num_timers() - num_timers(1h), 3U);
  take(device_->generations).fail({Errc::kUnavailable, "device-0 has ended"});
  drain();
  EXPECT_EQ(num_timers() - num_timers(1h), 3U) << "it asks again";
}

TEST_F(EvaluatorTest, RepliesImmediatelyWithoutPrompts) {
  deps_.prompts.clear();
  const auto reply = evaluate(2);
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply.value().step, 2U);
  EXPECT_EQ(reply.value().num_prompts, 0U);
}

}  // namespace
}  // namespace tidemill::test
