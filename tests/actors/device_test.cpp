// SPDX-License-Identifier: Apache-2.0
// Tests the contract of actors/device/handles.hpp on replayed engines.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/actors/device_fixture.hpp"

namespace tidemill::test {
namespace {

using actors::TrainOutcome;
using actors::TrainRequest;
using engines::FinishReason;
using engines::RolloutResult;
using engines::TrainSequence;
using namespace std::chrono_literals;
using ::testing::HasSubstr;

// Loading, capturing and probing compute over all weights, which can take seconds. Nothing else may
// wait for that, so no message handler calls an engine.
TEST_F(DeviceTest, EnginesAreCalledOnlyAtThePort) {
  start();
  generate(request(0));
  const auto replaced = generate(request(3));
  generate(request(3));
  ASSERT_TRUE(until(replaced));
  TrainRequest probed = job({{0, 1}});
  probed.probe = {sequence(0)};
  probed.probe_weights = initial_;
  const auto trained = train(probed);
  ASSERT_TRUE(until(trained));
  advance(1s);  // idle
  const auto loaded = load(trained.value().snapshot);
  ASSERT_TRUE(until(loaded));
  const auto captured = ask<actors::OptimizerState>(device_, atom::capture_v);
  ASSERT_TRUE(until(captured));
  const auto cancelled = generate(request(2, /*min_step=*/9));
  advance(1s);
  caf::anon_send(device_, atom::cancel_v, SampleId{2});
  ASSERT_TRUE(until(cancelled));
  ASSERT_TRUE(until(train(job({{7, 7}}))));  // fails, and is abandoned
  EXPECT_EQ(calls_.elsewhere, std::vector<std::string>{});
  for (const char* call : {"load", "capture", "score", "save", "optim_step"}) {
    EXPECT_EQ(calls_.counts[call], 1) << call;
  }
  EXPECT_EQ(calls_.counts["submit"], 4);
  EXPECT_EQ(calls_.counts["cancel"], 2);
  EXPECT_GT(calls_.counts["job cancel"], 1);
}

TEST_F(DeviceTest, RequestsAreServedInTheOrderOfArrival) {
  start();
  const auto trained = train(job({{0}}));
  ASSERT_TRUE(until(trained));
  // All of them arrive while an iteration is at the port.
  generate(request(0));
  const auto old_version = generate(request(3));
  caf::anon_send(device_, atom::cancel_v, SampleId{3});
  const auto loaded = load(trained.value().snapshot);
  const auto new_version = generate(request(3));
  ASSERT_TRUE(until(new_version));
  EXPECT_EQ(old_version.value().finish_reason, FinishReason::kCancelled);
  EXPECT_TRUE(loaded.ok());
  EXPECT_EQ(new_version.value().finish_reason, FinishReason::kStop);
  EXPECT_EQ(new_version.value().versions.at(0).version.step, 1U);
}

// -- generating -----------------------------------------------------------------------------------

TEST_F(DeviceTest, AnIdleDeviceStepsNoEngine) {
  start();
  advance(1min);
  EXPECT_EQ(rollout_->steps, 0);
}

// -- loading --------------------------------------------------------------------------------------

// The run was started again: the requesters are gone.
TEST_F(DeviceTest, WeightsOfANewerIncarnationEndTheRequestsBeforeThem) {
  start();
  const auto first = generate(request(0));  // keeps the engine at the port
  const auto running = generate(request(3));
  const auto ends = generate(request(1));
  ASSERT_TRUE(until(first));  // now the other two are there
  const auto arriving = generate(request(2));
  const auto waiting = generate(request(6, /*min_step=*/9));
  engines::Snapshot newer = initial_;
  newer.version.incarnation = 1;
  const auto loaded = load(newer);
  const auto after = generate(request(3));
  ASSERT_TRUE(until(loaded));
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  EXPECT_EQ(ends.value().finish_reason, FinishReason::kStop);
  for (const auto& ended : {running, waiting, arriving}) {
    EXPECT_EQ(ended.status().code(), Errc::kUnavailable);
    EXPECT_EQ(ended.status().message(),
              "the request was given up for incarnation 1, whose weights were loaded");
    EXPECT_EQ(ended.count(), 1);
  }
  ASSERT_TRUE(until(after));
  ASSERT_TRUE(after.ok()) << after.status().to_string();
  EXPECT_EQ(after.value().versions.at(0).version, newer.version);

  const auto before = generate(request(3));
  newer.version.step = 1;
  ASSERT_TRUE(until(load(newer)));
  ASSERT_TRUE(until(before));
  EXPECT_EQ(before.value().finish_reason, FinishReason::kStop) << "the same incarnation";
}

// -- training -------------------------------------------------------------------------------------

TEST_F(DeviceTest, TrainRepliesWithNewWeightsAndOneUpdatePerMinibatchAndEpoch) {
  start();
  TrainRequest twice = job({{0, 1}, {2}});
  twice.epochs = 2;
  const auto reply = train(twice);
  ASSERT_TRUE(until(reply));
  EXPECT_EQ(reply.value().updates.size(), 4U);
  EXPECT_EQ(minibatches_, (std::vector<std::size_t>{2, 1, 2, 1}));
  EXPECT_EQ(reply.value().snapshot.version, (PolicyVersion{0, 0, 1}));
  EXPECT_NE(reply.value().snapshot.base_digest, initial_.base_digest);
}

TEST_F(DeviceTest, EmptyMinibatchesTrainNothing) {
  start();
  const auto reply = train(job({{}, {}}));
  ASSERT_TRUE(until(reply));
  EXPECT_TRUE(reply.value().updates.empty());
  EXPECT_EQ(reply.value().snapshot.base_digest, initial_.base_digest);
  EXPECT_EQ(reply.value().snapshot.version.step, 1U);
}

TEST_F(DeviceTest, OneJobAtATime) {
  start();
  const auto first = train(job({{0}}));
  EXPECT_EQ(train(job({{1}})).status().code(), Errc::kUnavailable);
  ASSERT_TRUE(until(first));
  EXPECT_TRUE(until(train(job({{1}}, 2))));
}

TEST_F(DeviceTest, AJobWaitsForTheIterationInProgress) {
  start();
  const auto rollout = generate(request(3));
  const auto trained = train(job({{0}}));
  EXPECT_TRUE(minibatches_.empty());
  ASSERT_TRUE(until(trained));
  ASSERT_TRUE(until(rollout));
}

TEST_F(DeviceTest, AFailedJobFailsItsRequestAndTheDeviceContinues) {
  start();
  failing_loss_ = 1;
  const auto failed = train(job({{0}}));
  ASSERT_TRUE(until(failed));
  EXPECT_EQ(failed.status().message(), "advantage is not finite");
  EXPECT_FALSE(exit_->has_value());
  const auto again = train(job({{0}}));
  ASSERT_TRUE(until(again));
  EXPECT_TRUE(again.ok());
}

TEST_F(DeviceTest, ATrainingFailureFailsTheJobAndTheDeviceContinues) {
  start();
  train_->failure = Status(Errc::kInternal, "gradient of tensor x is not finite");
  const auto failed = train(job({{0}}));
  ASSERT_TRUE(until(failed));
  EXPECT_THAT(failed.status().message(), HasSubstr("gradient of tensor x is not finite"));
  EXPECT_FALSE(exit_->has_value());
  train_->failure = {};
  const auto generated = generate(request(1));
  ASSERT_TRUE(until(generated));
  EXPECT_TRUE(generated.ok());
  const auto again = train(job({{0}}));
  ASSERT_TRUE(until(again));
  EXPECT_TRUE(again.ok());
}

TEST_F(DeviceTest, AJobThatFailsAfterItsFirstSequenceLeavesNoOpenBatch) {
  start();
  const auto failed = train(job({{7, 7}}));  // the second sequence is refused
  ASSERT_TRUE(until(failed));
  EXPECT_THAT(failed.status().message(), HasSubstr("two sequences have the same id sample_id=7"));
  advance(1s);
  EXPECT_EQ(train_->steps, 0) << "the open batch refers to a loss that is gone";
  EXPECT_FALSE(train_->has_work());
  const auto again = train(job({{7}}));
  ASSERT_TRUE(until(again));
  EXPECT_EQ(again.value().updates.size(), 1U);
}

TEST_F(DeviceTest, ADeviceThatOnlyGeneratesRefusesJobs) {
  start(/*trains=*/false);
  EXPECT_EQ(train(job({{0}})).status().code(), Errc::kUnavailable);
  const auto captured = ask<actors::OptimizerState>(device_, atom::capture_v);
  drain();
  EXPECT_EQ(captured.status().code(), Errc::kUnavailable);
}

TEST_F(DeviceTest, OnPolicyRowsAndProbesAreComparedAndTheirTokensCounted) {
  start();
  const auto sampled = generate(request(3));
  ASSERT_TRUE(until(sampled));
  TrainSequence row;
  row.id = {3};
  row.ids = {1, 2};
  row.ids.insert(row.ids.end(), sampled.value().response_ids.begin(),
                 sampled.value().response_ids.end());
  row.response_mask = {0, 0, 1, 1, 1, 1};
  row.behavior_logprobs = {0, 0};
  for (const float logprob : sampled.value().behavior_logprobs) {
    row.behavior_logprobs.push_back(logprob);
  }
  row.advantages.assign(6, 1.0F);
  TrainRequest on_policy;
  on_policy.publish_as.step = 1;
  on_policy.minibatches = {{{row}, {row.id}}};
  const auto first = train(on_policy);
  ASSERT_TRUE(until(first));
  EXPECT_EQ(first.value().gap.num_tokens, 4U);
  EXPECT_EQ(first.value().gap.max, 0.0);

  TrainRequest probed;
  probed.publish_as.step = 2;
  probed.minibatches = {{{row}, {}}};
  probed.probe = {row};
  probed.probe.front().behavior_logprobs.back() -= 0.5F;  // a gap that must be found
  probed.probe_weights = initial_;
  const auto second = train(probed);
  ASSERT_TRUE(until(second));
  EXPECT_EQ(second.value().gap.num_tokens, 4U);
  EXPECT_NEAR(second.value().gap.max, 0.5, 1e-6);
}

// After the first update the weights are no longer those that sampled the rows.
TEST_F(DeviceTest, OnlyRowsOfTheFirstUpdateAreCompared) {
  start();
  TrainRequest two_updates = job({{1}, {2}});
  two_updates.epochs = 2;
  for (actors::TrainMinibatch& minibatch : two_updates.minibatches) {
    minibatch.on_policy = {minibatch.sequences[0].id};
  }
  TrainSequence& later = two_updates.minibatches[1].sequences[0];
  later.behavior_logprobs = {0, 0, -1000, -1000};
  const auto reply = train(two_updates);
  ASSERT_TRUE(until(reply));
  ASSERT_EQ(reply.value().updates.size(), 4U);
  const TrainSequence first = sequence(1);
  const auto logprobs = train_->score(initial_, {&first, 1}, 1.0F).value().at(0);
  double largest = 0.0;
  for (const std::size_t t : {2U, 3U}) {
    const double trained = logprobs[t];
    largest = std::max(largest, std::abs(trained - first.behavior_logprobs[t]));
  }
  EXPECT_EQ(reply.value().gap.num_tokens, 2U);
  EXPECT_EQ(reply.value().gap.max, largest);
}

TEST_F(DeviceTest, ProximalLogprobsComeFromTheWeightsBeforeTheFirstUpdate) {
  start();
  TrainRequest recompute = job({{0}, {1}});
  recompute.recompute_proximal = true;
  const auto reply = train(recompute);
  ASSERT_TRUE(until(reply));
  EXPECT_EQ(reply.value().updates.size(), 2U);
  // The scoring pass updates nothing.
  EXPECT_EQ(reply.value().updates.back().optimizer_step, 2);
}

TEST_F(DeviceTest, EveryPassOfAJobHasItsTemperature) {
  start();
  TrainRequest recompute = job({{0}, {1}});
  recompute.recompute_proximal = true;
  recompute.temperature = 0.5F;
  ASSERT_TRUE(until(train(recompute)));
  EXPECT_EQ(train_->temperatures, std::vector(3, 0.5F)) << "the scoring pass and two updates";
  TrainRequest scored = job({{2}});
  scored.score_only = true;
  scored.temperature = 0.25F;
  ASSERT_TRUE(until(train(scored)));
  EXPECT_EQ(train_->temperatures.back(), 0.25F);
}

TEST_F(DeviceTest, AJobThatOnlyScoresSumsItsTargetsAndChangesNothing) {
  start();
  TrainRequest scored = job({{1, 2, 3}});
  scored.score_only = true;
  scored.minibatches[0].sequences[1].response_mask = {1, 0, 0, 0};  // index 0 is no target
  auto reply = train(scored);
  ASSERT_TRUE(until(reply));
  double sum = 0.0;
  for (const TrainSequence& sequence : scored.minibatches[0].sequences) {
    const auto logprobs = train_->score(initial_, {&sequence, 1}, 1.0F).value().at(0);
    for (std::size_t t = 1; t < sequence.ids.size(); ++t) {
      sum += sequence.response_mask[t] != 0 ? static_cast<double>(logprobs[t]) : 0.0;
    }
  }
  EXPECT_NE(sum, 0.0);
  EXPECT_EQ(reply.value().score.logprob_sum, sum);
  EXPECT_EQ(reply.value().score.num_targets, 4U);
  EXPECT_TRUE(reply.value().updates.empty());
  EXPECT_TRUE(reply.value().snapshot.base.empty());
  EXPECT_TRUE(minibatches_.empty());

  // The next job trains as if nothing had been scored before.
  auto trained = train(job({{4}}));
  ASSERT_TRUE(until(trained));
  train_ = std::make_unique<CountingTrain>(engines::make_replay_training_job(replay_, initial_));
  start();
  auto undisturbed = train(job({{4}}));
  ASSERT_TRUE(until(undisturbed));
  EXPECT_EQ(trained.value().snapshot.base_digest, undisturbed.value().snapshot.base_digest);
}

// A device that is restored to a commit trains as the device that made the commit.
TEST_F(DeviceTest, RestoreReturnsToTheWeightsAndTheOptimizerOfACommit) {
  start();
  const auto first = train(job({{0}}));
  ASSERT_TRUE(until(first));
  const auto captured = ask<actors::OptimizerState>(device_, atom::capture_v);
  ASSERT_TRUE(until(captured));
  const auto second = train(job({{1}}, 2));
  ASSERT_TRUE(until(second));
  ASSERT_TRUE(until(train(job({{5, 6}}, 3))));
  const auto restored = restore(first.value().snapshot, captured.value());
  ASSERT_TRUE(until(restored));
  ASSERT_TRUE(restored.ok()) << restored.status().to_string();
  EXPECT_EQ(restored.value(), first.value().snapshot.version);
  const auto again = train(job({{1}}, 2));
  ASSERT_TRUE(until(again));
  EXPECT_EQ(again.value().snapshot.base_digest, second.value().snapshot.base_digest);
  EXPECT_EQ(calls_.counts["job load"], 1);
  EXPECT_EQ(calls_.elsewhere, std::vector<std::string>{});
}

TEST_F(DeviceTest, RestoreIsRefusedDuringAJobAndWithoutATrainingView) {
  start();
  const auto running_job = train(job({{0}}));
  EXPECT_EQ(restore(initial_, {}).status().code(), Errc::kUnavailable);
  ASSERT_TRUE(until(running_job));
  start(/*trains=*/false);
  EXPECT_EQ(restore(initial_, {}).status().code(), Errc::kUnavailable);
  EXPECT_EQ(calls_.counts["job load"], 0);
}

// The copy is made by iterations, between which generation goes on.
TEST_F(DeviceTest, ACaptureThatFailsOrIsInProgressEndsNothingElse) {
  start();
  const auto first = ask<actors::OptimizerState>(device_, atom::capture_v);
  const auto second = ask<actors::OptimizerState>(device_, atom::capture_v);
  const auto refused = train(job({{0}}));
  EXPECT_EQ(restore(initial_, {}).status().code(), Errc::kUnavailable);
  ASSERT_TRUE(until(first) && first.ok());
  EXPECT_EQ(second.status().code(), Errc::kUnavailable);
  EXPECT_EQ(refused.status().code(), Errc::kUnavailable);

  train_->capture_units = 2;
  train_->failure = {Errc::kResourceExhausted, "no memory"};
  const auto failed = ask<actors::OptimizerState>(device_, atom::capture_v);
  ASSERT_TRUE(until(failed));
  EXPECT_EQ(failed.status().code(), Errc::kResourceExhausted);
  train_->failure = {};
  const auto captured = ask<actors::OptimizerState>(device_, atom::capture_v);
  EXPECT_TRUE(until(captured) && captured.ok());
  const auto trained = train(job({{0}}));
  EXPECT_TRUE(until(trained) && trained.ok());
}

TEST_F(DeviceTest, CaptureRepliesOnlyBetweenJobs) {
  start();
  const auto running_job = train(job({{0}}));
  const auto during = ask<actors::OptimizerState>(device_, atom::capture_v);
  drain();
  EXPECT_EQ(during.status().code(), Errc::kUnavailable);
  ASSERT_TRUE(until(running_job));
  const auto after = ask<actors::OptimizerState>(device_, atom::capture_v);
  ASSERT_TRUE(until(after));
  ASSERT_TRUE(after.ok());
  EXPECT_EQ(after.value().tensors.at("step").data.as<std::int64_t>()[0], 1);
}

}  // namespace
}  // namespace tidemill::test
