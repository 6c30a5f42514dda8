// SPDX-License-Identifier: Apache-2.0
// Tests the contract of actors/trainer/handles.hpp: the chain of one step, commits, evaluations,
// and how runs end.
#include <chrono>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/trainer/spawn.hpp"
#include "tests/actors/sample_rows.hpp"
#include "tests/support/actor_test.hpp"
#include "tests/support/fake_actors.hpp"
#include "tests/support/watched_port.hpp"

namespace tidemill::test {
namespace {

using actors::LeaseReply;
using actors::RunEnd;
using actors::SampleTask;
using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class TrainerTest : public ActorTest {
protected:
  void SetUp() override {
    options_.groups_per_step = 2;
    options_.total_steps = 2;
    options_.max_staleness = 1;
  }
  void start(std::uint64_t step = 0) {
    stream_handle_ = keep(spawn_fake_stream(system(), stream_));
    device_handle_ = keep(spawn_fake_device(system(), device_));
    keeper_handle_ = keep(spawn_fake_keeper(system(), keeper_));
    recorder_handle_ = keep(spawn_fake_recorder(system(), recorder_));
    evaluator_handle_ = keep(spawn_fake_evaluator(system(), evaluator_));
    listener_handle_ = keep(spawn_fake_run_listener(system(), listener_));
    actors::TrainerDeps deps;
    deps.options = options_;
    deps.stream = stream_handle_;
    deps.training = device_handle_;
    deps.serving = device_handle_;
    deps.keeper = keeper_handle_;
    deps.recorder = recorder_handle_;
    deps.evaluator = evaluator_handle_;
    deps.listener = listener_handle_;
    deps.commits = commits_;
    deps.commit_port = &port();
    deps.io_port = &io_port_;
    deps.weights.version = {0, 3, step};
    deps.weights.base_digest = "initial";
    if (freed_ != nullptr) {
      deps.weights = watched_weights(deps.weights.version, io_port_, freed_);
    }
    deps.best = best_;
    deps.evaluated_step = evaluated_step_.value_or(step);
    deps.reward_parts = {"number", "form"};
    trainer_ = keep(actors::spawn_trainer(system(), std::move(deps)));
    exit_ = exit_of(trainer_);
    caf::anon_send(trainer_, atom::start_v);
    drain();
  }
  // Returns two groups of one row each, sampled by `step`.
  static LeaseReply batch(std::uint64_t first, std::uint64_t step) {
    LeaseReply reply;
    reply.rows = {trainable_row(first, first, step),
                  trainable_row(first + 1, first + 1, step, 0.0)};
    reply.lease_time = 60s;
    return reply;
  }
  void deliver(LeaseReply reply) {
    take(stream_->leases).reply(std::move(reply));
    drain();
  }
  void deliver_none(bool ended = false, bool whole = false) {
    LeaseReply reply;
    reply.ended = ended;
    reply.whole = whole;
    deliver(std::move(reply));
  }
  // Replies to the training job of the device.
  void trained() {
    auto pending = take(device_->jobs);
    actors::TrainOutcome outcome;
    outcome.snapshot.version = pending.request.publish_as;
    outcome.snapshot.base_digest = "step " + std::to_string(pending.request.publish_as.step);
    if (freed_ != nullptr) {
      outcome.snapshot = watched_weights(pending.request.publish_as, io_port_, freed_);
    }
    outcome.updates.resize(1);
    outcome.updates.front().sums["loss"] = 0.5;
    outcome.gap = {0.0, 4};
    pending.reply(std::move(outcome));
    drain();
  }
  void run_step(std::uint64_t step) {
    deliver(batch(2 * step, step));
    trained();
  }
  // Replies to the evaluation that the trainer has requested.
  void evaluated(double value) {
    auto pending = take(evaluator_->requests);
    pending.reply({pending.request, 10, 1, value, 0.5, 0, {1.0, 0.25}});
    drain();
  }
  bool ended() const { return exit_->has_value(); }

  WatchedWorkPort io_port_{port()};
  std::shared_ptr<FreedWeights> freed_;  // if set, records where trained weights are freed
  actors::TrainerOptions options_;
  std::optional<actors::BestSoFar> best_;
  std::optional<std::uint64_t> evaluated_step_;  // of the commit; if not set, `step`
  std::shared_ptr<FakeStream> stream_ = std::make_shared<FakeStream>();
  std::shared_ptr<FakeDevice> device_ = std::make_shared<FakeDevice>();
  std::shared_ptr<FakeKeeper> keeper_ = std::make_shared<FakeKeeper>();
  std::shared_ptr<FakeRecorder> recorder_ = std::make_shared<FakeRecorder>();
  std::shared_ptr<FakeEvaluator> evaluator_ = std::make_shared<FakeEvaluator>();
  std::shared_ptr<FakeRunListener> listener_ = std::make_shared<FakeRunListener>();
  std::shared_ptr<MemoryCommits> commits_ = std::make_shared<MemoryCommits>();
  actors::StreamActor stream_handle_;
  actors::DeviceActor device_handle_;
  actors::KeeperActor keeper_handle_;
  actors::RecorderActor recorder_handle_;
  actors::EvaluatorActor evaluator_handle_;
  actors::RunListenerActor listener_handle_;
  actors::TrainerActor trainer_;
  std::shared_ptr<std::optional<Status>> exit_;
};

// -- one step -------------------------------------------------------------------------------------

TEST_F(TrainerTest, OneStepGoesFromTheLeaseToTheRecord) {
  start();
  ASSERT_EQ(stream_->leases.size(), 1U);
  const actors::LeaseRequest& lease = stream_->leases.front().request;
  EXPECT_EQ(lease.task, actors::task_id(SampleTask::kTrain));
  EXPECT_EQ(lease.max_units, 2U);
  EXPECT_EQ(lease.min_units, 2U);
  EXPECT_EQ(lease.before_group, actors::kAnyGroup);

  deliver(batch(0, 0));
  ASSERT_EQ(device_->jobs.size(), 1U);
  const actors::TrainRequest& job = device_->jobs.front().request;
  EXPECT_EQ(job.publish_as, (PolicyVersion{0, 3, 1}));
  ASSERT_EQ(job.minibatches.size(), 1U);
  EXPECT_EQ(job.minibatches[0].sequences.size(), 2U);
  EXPECT_EQ(job.minibatches[0].on_policy.size(), 2U);
  EXPECT_TRUE(stream_->acks.empty());

  trained();
  ASSERT_EQ(stream_->acks.size(), 1U);
  EXPECT_EQ(stream_->acks[0].rows.size(), 2U);
  EXPECT_EQ(stream_->published, (std::vector<std::uint64_t>{1}));
  ASSERT_EQ(keeper_->published.size(), 1U);
  EXPECT_EQ(keeper_->published[0].base_digest, "step 1");
  ASSERT_EQ(recorder_->records.size(), 1U);
  const actors::StepRecord& record = recorder_->records[0];
  EXPECT_EQ(record.kind, "train");
  EXPECT_EQ(record.step, 1U);
  EXPECT_EQ(record.metrics.at("reward_mean"), 0.5);
  EXPECT_EQ(record.metrics.at("loss"), 0.5);
  EXPECT_EQ(record.metrics.at("logprob_gap_tokens"), 4.0);
  ASSERT_EQ(record.samples.size(), 2U);
  EXPECT_EQ(record.samples[0].response_ids.size(), 2U);
  EXPECT_EQ(stream_->leases.size(), 1U);  // the next step
}

TEST_F(TrainerTest, NothingIsPublishedWhileABatchIsLeased) {
  start();
  deliver(batch(0, 0));
  EXPECT_TRUE(stream_->published.empty());
  stream_->refused = {{{0}, storage::Refusal::kNotLeased}};
  trained();
  // The batch had rows whose leases were lost. Only the last commit is free of them.
  EXPECT_TRUE(stream_->published.empty());
  EXPECT_TRUE(keeper_->published.empty());
  ASSERT_TRUE(ended());
  EXPECT_THAT((*exit_)->message(), HasSubstr("refused 1 trained rows"));
}

TEST_F(TrainerTest, ABatchThatIsTooStaleEndsTheTrainer) {
  options_.total_steps = 9;
  start(/*step=*/2);
  deliver(batch(0, 0));
  ASSERT_TRUE(ended());
  EXPECT_EQ((*exit_)->code(), Errc::kStaleVersion);
  EXPECT_THAT((*exit_)->message(), HasSubstr("row=0 of step 0 delivered at step 2"));
  EXPECT_TRUE(device_->jobs.empty());
}

TEST_F(TrainerTest, ABatchOfOlderWeightsIsComparedUnderThoseWeights) {
  start();
  run_step(0);
  deliver(batch(2, 0));  // step 1 trains what step 0 sampled
  ASSERT_EQ(device_->jobs.size(), 1U);
  const actors::TrainRequest& job = device_->jobs.front().request;
  EXPECT_TRUE(job.minibatches[0].on_policy.empty());
  EXPECT_EQ(job.probe.size(), 2U);
  EXPECT_EQ(job.probe_weights.base_digest, "initial");
}

TEST_F(TrainerTest, AfterARestartAProbeIsGeneratedForTheComparison) {
  options_.total_steps = 9;
  start(/*step=*/2);  // the older snapshots are gone
  deliver(batch(0, 1));
  EXPECT_TRUE(device_->jobs.empty());
  take(device_->generations).fail({Errc::kUnavailable, "device-1 is quarantined"});
  drain();  // another device generates the probe
  ASSERT_EQ(device_->generations.size(), 1U);
  auto probe = take(device_->generations);
  EXPECT_EQ(probe.request.min_step, 2U);
  probe.reply({probe.request.id,
               {5},
               {-0.5F},
               {{{0, 3, 2}, 1}},
               engines::FinishReason::kLength,
               "",
               {},
               {}});
  drain();
  ASSERT_EQ(device_->jobs.size(), 1U);
  EXPECT_EQ(device_->jobs.front().request.probe.size(), 1U);
}

TEST_F(TrainerTest, RenewsTheLeasesOfTheCurrentBatch) {
  start();
  deliver(batch(0, 0));
  advance(30s);
  ASSERT_FALSE(stream_->renewals.empty());
  EXPECT_EQ(stream_->renewals.back().rows.size(), 2U);
  trained();
  const std::size_t renewals = stream_->renewals.size();
  advance(1min);
  EXPECT_EQ(stream_->renewals.size(), renewals);
}

TEST_F(TrainerTest, RequestsAgainWhenNoBatchIsReady) {
  start();
  deliver_none();
  EXPECT_EQ(stream_->leases.size(), 1U);
  EXPECT_FALSE(ended());
}

TEST_F(TrainerTest, AFixedBatchTakesItsRemainingGroupsEvenIfThereAreNone) {
  options_.fixed_batches = true;
  start();
  EXPECT_EQ(stream_->leases.front().request.before_group, 2U);
  deliver_none(/*ended=*/false, /*whole=*/true);
  ASSERT_EQ(device_->jobs.size(), 1U);  // still a step
  EXPECT_TRUE(device_->jobs.front().request.minibatches[0].sequences.empty());
  trained();
  EXPECT_EQ(recorder_->records.at(0).metrics.at("rows"), 0.0);
  EXPECT_EQ(stream_->leases.front().request.before_group, 4U);
}

// Freeing the weights of a large model takes too long for a message handler.
TEST_F(TrainerTest, OldWeightsAreFreedAtThePort) {
  options_.total_steps = 9;
  options_.max_staleness = 0;
  options_.eval_every = 1;
  options_.best.keep = true;
  freed_ = std::make_shared<FreedWeights>();
  start();
  const auto step = [this](std::uint64_t done, double value) {
    run_step(done);
    keeper_->published.clear();
    evaluated(value);
  };
  step(0, 0.25);  // the best so far
  step(1, 0.125);
  step(2, 0.125);
  EXPECT_THAT(freed_->at_port, ElementsAre(0)) << "those that the run started with";
  step(3, 0.5);
  EXPECT_THAT(freed_->at_port, ElementsAre(0, 2, 1)) << "1 was the best until now";
  step(4, 0.125);
  EXPECT_THAT(freed_->at_port, ElementsAre(0, 2, 1, 3));
  EXPECT_THAT(freed_->elsewhere, IsEmpty());
}

// -- ends -----------------------------------------------------------------------------------------

TEST_F(TrainerTest, AfterTheLastStepItCommitsAndSendsItsSummary) {
  start();
  run_step(0);
  EXPECT_EQ(commits_->saves, 0);
  run_step(1);
  EXPECT_TRUE(listener_->summaries.empty());  // not before the commit is written
  EXPECT_TRUE(run_until([&] { return ended(); }));
  EXPECT_TRUE((*exit_)->ok());
  ASSERT_TRUE(commits_->last.has_value());
  EXPECT_EQ(commits_->last->weights.base_digest, "step 2");
  EXPECT_EQ(commits_->last->records.metrics_bytes, 2U);
  ASSERT_EQ(listener_->summaries.size(), 1U);
  EXPECT_EQ(listener_->summaries[0].end, RunEnd::kSteps);
  EXPECT_EQ(listener_->summaries[0].steps, 2U);
  EXPECT_EQ(listener_->summaries[0].weights.base_digest, "step 2");
}

TEST_F(TrainerTest, StopFinishesTheCurrentStepCommitsAndEnds) {
  options_.total_steps = 9;
  start();
  deliver(batch(0, 0));
  caf::anon_send(trainer_, atom::stop_v);
  drain();
  trained();
  EXPECT_TRUE(run_until([&] { return ended(); }));
  ASSERT_EQ(listener_->summaries.size(), 1U);
  EXPECT_EQ(listener_->summaries[0].end, RunEnd::kStopped);
  EXPECT_EQ(listener_->summaries[0].steps, 1U);
  EXPECT_EQ(commits_->last->weights.base_digest, "step 1");
}

TEST_F(TrainerTest, StopBetweenStepsEndsWithTheNextReply) {
  options_.total_steps = 9;
  start();
  caf::anon_send(trainer_, atom::stop_v);
  drain();
  deliver_none();
  EXPECT_TRUE(run_until([&] { return ended(); }));
  EXPECT_EQ(listener_->summaries.at(0).steps, 0U);
  EXPECT_EQ(commits_->saves, 0);  // nothing new to commit
}

TEST_F(TrainerTest, ARunThatHasDoneAllItsStepsWasNotStopped) {
  start();
  run_step(0);
  run_step(1);  // the last commit is being written
  caf::anon_send(trainer_, atom::stop_v);
  EXPECT_TRUE(run_until([&] { return ended(); }));
  EXPECT_EQ(listener_->summaries.at(0).end, RunEnd::kSteps);
}

TEST_F(TrainerTest, DataThatEndsEarlyEndsTheRunWell) {
  options_.total_steps = 9;
  start();
  run_step(0);
  deliver_none(/*ended=*/true);
  EXPECT_TRUE(run_until([&] { return ended(); }));
  EXPECT_EQ(listener_->summaries.at(0).end, RunEnd::kData);
  EXPECT_EQ(listener_->summaries.at(0).steps, 1U);
  EXPECT_EQ(commits_->last->weights.base_digest, "step 1");
}

// -- groups that all leave untrained --------------------------------------------------------------

TEST_F(TrainerTest, ARunWhoseGroupsAreAllFilteredEndsWithTheReason) {
  options_.total_steps = 9;
  options_.max_untrained_batches = 3;
  start();
  run_step(0);
  stream_->counts.filtered_groups = 5;
  deliver_none();
  EXPECT_FALSE(ended());
  stream_->counts.filtered_groups = 6;  // three batches of two groups
  deliver_none();
  EXPECT_TRUE(run_until([&] { return ended(); }));
  ASSERT_EQ(listener_->summaries.size(), 1U);
  EXPECT_EQ(listener_->summaries[0].end, RunEnd::kNoSignal);
  EXPECT_EQ(listener_->summaries[0].steps, 1U);
  EXPECT_THAT(listener_->summaries[0].reason, HasSubstr("6 groups left untrained since step 1"));
  EXPECT_THAT(listener_->summaries[0].reason, HasSubstr("rollout.temperature"));
  EXPECT_EQ(commits_->last->weights.base_digest, "step 1");  // the trained weights are kept
}

TEST_F(TrainerTest, AStepResetsTheCountOfUntrainedGroups) {
  options_.total_steps = 9;
  options_.max_untrained_batches = 3;
  start();
  stream_->counts.filtered_groups = 5;
  deliver_none();
  run_step(0);
  stream_->counts.filtered_groups = 10;
  deliver_none();
  EXPECT_FALSE(ended());
  EXPECT_EQ(stream_->leases.size(), 1U);
}

TEST_F(TrainerTest, ARunWhoseGroupsAllFailEndsAsAFailure) {
  options_.total_steps = 9;
  options_.max_untrained_batches = 3;
  start();
  stream_->counts.filtered_groups = 1;
  stream_->counts.lost_groups = 5;
  stream_->counts.last_lost_reason = "reward: the program died";
  deliver_none();
  EXPECT_TRUE(run_until([&] { return ended(); }));
  EXPECT_EQ((*exit_)->code(), Errc::kUnavailable);
  EXPECT_THAT((*exit_)->message(), HasSubstr("6 groups left untrained since step 0"));
  EXPECT_THAT((*exit_)->message(), HasSubstr("reward: the program died"));
  EXPECT_TRUE(listener_->summaries.empty());
}

// -- commits --------------------------------------------------------------------------------------

TEST_F(TrainerTest, WritesACommitDuringTheNextStep) {
  options_.total_steps = 9;
  options_.commit_every = 2;
  start();
  run_step(0);
  EXPECT_EQ(stream_->captured, 0);
  run_step(1);
  EXPECT_EQ(stream_->captured, 1);
  EXPECT_EQ(device_->captured, 1);
  EXPECT_EQ(stream_->leases.size(), 1U);  // the commit is written during the next step
  advance(0s);
  EXPECT_EQ(commits_->saves, 1);
  EXPECT_EQ(commits_->last->weights.base_digest, "step 2");
}

TEST_F(TrainerTest, ACommitWaitsForTheOneThatIsBeingWritten) {
  options_.total_steps = 9;
  options_.commit_every = 1;
  start();
  run_step(0);  // its commit is at the port
  run_step(1);
  EXPECT_EQ(stream_->captured, 1);
  EXPECT_TRUE(stream_->leases.empty());
  advance(0s);
  EXPECT_EQ(stream_->captured, 2);
  EXPECT_EQ(stream_->leases.size(), 1U);
}

TEST_F(TrainerTest, ACommitThatCannotBeWrittenEndsTheTrainerNamingTheStep) {
  options_.total_steps = 9;
  options_.commit_every = 1;
  commits_->failure = {Errc::kResourceExhausted, "checkpoints: no space left"};
  start();
  run_step(0);
  advance(0s);
  ASSERT_TRUE(ended());
  EXPECT_EQ((*exit_)->code(), Errc::kResourceExhausted);
  EXPECT_EQ((*exit_)->message(), "commit of step 1: checkpoints: no space left");
}

TEST_F(TrainerTest, AFixedOrderCommitsOnceOlderVersionsHaveGeneratedTheirRows) {
  options_.total_steps = 9;
  options_.commit_every = 1;
  options_.fixed_batches = true;
  start();
  LeaseReply reply = batch(0, 0);
  reply.whole = true;
  deliver(reply);
  trained();
  EXPECT_EQ(keeper_->waits, (std::vector<std::uint64_t>{1}));
  EXPECT_EQ(stream_->captured, 1);
}

// -- evaluations ----------------------------------------------------------------------------------

TEST_F(TrainerTest, EvaluatesWithoutDelayingTheNextStep) {
  options_.total_steps = 9;
  options_.eval_every = 2;
  start();
  run_step(0);
  EXPECT_TRUE(evaluator_->requests.empty());
  run_step(1);
  ASSERT_EQ(evaluator_->requests.size(), 1U);
  EXPECT_EQ(stream_->leases.size(), 1U);
  auto pending = take(evaluator_->requests);
  EXPECT_EQ(pending.request, 2U);
  pending.reply({2, 10, 4, 0.25, 0.5, 1, {}});
  drain();
  const actors::StepRecord& record = recorder_->records.back();
  EXPECT_EQ(record.kind, "eval");
  EXPECT_EQ(record.step, 2U);
  EXPECT_EQ(record.metrics.at("eval_mean_at_k"), 0.25);
  EXPECT_EQ(record.metrics.at("eval_failed"), 1.0);
}

TEST_F(TrainerTest, TheLastEvaluationIsRecordedBeforeTheLastCommit) {
  options_.eval_every = 2;
  start();
  run_step(0);
  run_step(1);
  advance(1min);
  EXPECT_FALSE(ended());
  EXPECT_EQ(commits_->saves, 0);
  take(evaluator_->requests).reply({2, 10, 4, 0.25, 0.5, 0, {}});
  EXPECT_TRUE(run_until([&] { return ended(); }));
  EXPECT_TRUE((*exit_)->ok());
  EXPECT_EQ(recorder_->records.back().kind, "eval");
  EXPECT_EQ(commits_->last->records.metrics_bytes, 3U);  // the commit's mark includes the record
}

TEST_F(TrainerTest, AStopDoesNotWaitForAnEvaluation) {
  options_.total_steps = 9;
  options_.eval_every = 1;
  start();
  run_step(0);
  caf::anon_send(trainer_, atom::stop_v);
  drain();
  deliver_none();
  EXPECT_TRUE(run_until([&] { return ended(); }, 20));
  EXPECT_EQ(listener_->summaries.at(0).end, RunEnd::kStopped);
}

TEST_F(TrainerTest, AStopIsPassedOnToAnEvaluatorThatIsAtWork) {
  options_.total_steps = 9;
  options_.eval_every = 1;
  start();
  run_step(0);
  EXPECT_EQ(evaluator_->stopped, 0);
  caf::anon_send(trainer_, atom::stop_v);
  drain();
  EXPECT_EQ(evaluator_->stopped, 1);
  take(evaluator_->requests).fail({Errc::kUnavailable, "the evaluator was stopped"});
  deliver_none();
  EXPECT_TRUE(run_until([&] { return ended(); }, 20));
  EXPECT_TRUE((*exit_)->ok());
  EXPECT_EQ(commits_->last->evaluated_step, 0U);
}

TEST_F(TrainerTest, AStopBetweenEvaluationsDoesNotConcernTheEvaluator) {
  options_.total_steps = 9;
  options_.eval_every = 2;
  start();
  run_step(0);
  caf::anon_send(trainer_, atom::stop_v);
  deliver_none();
  EXPECT_TRUE(run_until([&] { return ended(); }, 20));
  EXPECT_EQ(evaluator_->stopped, 0);
}

TEST_F(TrainerTest, AStopAbandonsTheEvaluationThatDelaysTheEnd) {
  options_.eval_every = 2;
  start();
  run_step(0);
  run_step(1);
  EXPECT_EQ(commits_->saves, 0);
  caf::anon_send(trainer_, atom::stop_v);
  EXPECT_TRUE(run_until([&] { return ended(); }, 20));
  EXPECT_EQ(listener_->summaries.at(0).end, RunEnd::kSteps);
}

// -- the best weights -----------------------------------------------------------------------------

TEST_F(TrainerTest, ATrainerThatKeepsTheBestWaitsForEachEvaluation) {
  options_.total_steps = 4;
  options_.eval_every = 1;
  options_.best.keep = true;
  start();
  run_step(0);
  EXPECT_TRUE(stream_->leases.empty());  // no next step before the reply
  evaluated(0.25);
  EXPECT_EQ(recorder_->records.back().metrics.at("eval_best"), 0.25);
  EXPECT_EQ(recorder_->records.back().metrics.at("eval_best_step"), 1.0);
  EXPECT_EQ(recorder_->records.back().metrics.at("eval_form_mean"), 0.25);
  run_step(1);
  evaluated(0.75);
  run_step(2);
  evaluated(0.75);  // an equal evaluation is not better
  run_step(3);
  evaluated(0.5);
  ASSERT_TRUE(run_until([&] { return ended(); }));
  EXPECT_EQ(recorder_->records.back().metrics.at("eval_best_step"), 2.0);
  const actors::RunSummary& summary = listener_->summaries.at(0);
  EXPECT_EQ(summary.end, RunEnd::kSteps);
  EXPECT_EQ(summary.steps, 4U);
  EXPECT_EQ(summary.weights.base_digest, "step 2");
  ASSERT_TRUE(commits_->last->best.has_value());
  EXPECT_EQ(commits_->last->best->step, 2U);
  EXPECT_EQ(commits_->last->best->num_worse, 2U);
  EXPECT_EQ(commits_->last->best->weights.base_digest, "step 2");
  EXPECT_EQ(commits_->last->weights.base_digest, "step 4");
}

TEST_F(TrainerTest, APlateauEndsTheRun) {
  options_.total_steps = 9;
  options_.eval_every = 1;
  options_.best.patience = 2;
  options_.best.min_improvement = 0.1;
  start();
  run_step(0);
  evaluated(0.5);
  run_step(1);
  evaluated(0.55);  // better, but by too little
  EXPECT_EQ(stream_->leases.size(), 1U);
  run_step(2);
  evaluated(0.6);
  ASSERT_TRUE(run_until([&] { return ended(); }));
  const actors::RunSummary& summary = listener_->summaries.at(0);
  EXPECT_EQ(summary.end, RunEnd::kPlateau);
  EXPECT_EQ(summary.steps, 3U);
  EXPECT_EQ(summary.weights.base_digest, "step 3");  // the best is not kept
  EXPECT_EQ(summary.reason, "no evaluation since step 1 was better than 0.5 (2 in a row)");
  EXPECT_EQ(commits_->last->best->weights.base_digest, "");
}

TEST_F(TrainerTest, AResumedRunContinuesFromTheBestOfItsCommit) {
  options_.total_steps = 9;
  options_.eval_every = 1;
  options_.best = {true, 2, 0.0};
  best_ = actors::BestSoFar{0.75, 3, 1, {}};
  best_->weights.base_digest = "of the commit";
  start(/*step=*/4);
  run_step(4);
  evaluated(0.7);
  ASSERT_TRUE(run_until([&] { return ended(); }));
  EXPECT_EQ(listener_->summaries.at(0).end, RunEnd::kPlateau);
  EXPECT_EQ(listener_->summaries.at(0).weights.base_digest, "of the commit");
}

TEST_F(TrainerTest, ARunThatResumesAtAPlateauEnds) {
  options_.total_steps = 9;
  options_.eval_every = 1;
  options_.best = {true, 2, 0.0};
  best_ = actors::BestSoFar{0.75, 3, 2, {}};
  best_->weights.base_digest = "of the commit";
  start(/*step=*/5);
  EXPECT_TRUE(stream_->leases.empty());
  ASSERT_TRUE(run_until([&] { return ended(); }));
  const actors::RunSummary& summary = listener_->summaries.at(0);
  EXPECT_EQ(summary.end, RunEnd::kPlateau);
  EXPECT_EQ(summary.steps, 5U);
  EXPECT_EQ(summary.weights.base_digest, "of the commit");
  EXPECT_THAT(summary.reason, HasSubstr("since step 3"));
}

TEST_F(TrainerTest, AnEvaluationWithoutAnyScoreIsIgnored) {
  options_.total_steps = 9;
  options_.eval_every = 1;
  options_.best.patience = 1;
  start();
  run_step(0);
  take(evaluator_->requests).reply({1, 10, 4, 0.0, 0.0, 40, {}});
  drain();
  EXPECT_EQ(stream_->leases.size(), 1U);
  EXPECT_FALSE(recorder_->records.back().metrics.contains("eval_best"));
  run_step(1);
  EXPECT_FALSE(ended());
}

TEST_F(TrainerTest, AFailedEvaluationEndsTheTrainerSayingSo) {
  options_.total_steps = 9;
  options_.eval_every = 1;
  for (const bool keep : {false, true}) {
    options_.best.keep = keep;
    stream_->leases.clear();
    start();
    run_step(0);
    take(evaluator_->requests).fail({Errc::kUnavailable, "gone"});
    drain();
    ASSERT_TRUE(ended());
    EXPECT_EQ((*exit_)->message(), "evaluating: gone");
  }
}

TEST_F(TrainerTest, AStopAbandonsTheEvaluationThatDelaysTheStep) {
  options_.total_steps = 9;
  options_.eval_every = 1;
  options_.best.keep = true;
  start();
  run_step(0);
  caf::anon_send(trainer_, atom::stop_v);
  EXPECT_TRUE(run_until([&] { return ended(); }, 20));
  EXPECT_EQ(listener_->summaries.at(0).end, RunEnd::kStopped);
  EXPECT_EQ(listener_->summaries.at(0).weights.base_digest, "step 1");
}

TEST_F(TrainerTest, AStopDuringAStepPreventsFurtherEvaluations) {
  options_.total_steps = 9;
  options_.eval_every = 1;
  for (const bool keep : {false, true}) {
    options_.best.keep = keep;
    start();
    caf::anon_send(trainer_, atom::stop_v);
    drain();
    run_step(0);
    EXPECT_TRUE(evaluator_->requests.empty());
    ASSERT_TRUE(run_until([&] { return ended(); }, 20));
    EXPECT_EQ(commits_->last->evaluated_step, 0U);
  }
}

TEST_F(TrainerTest, AResumedRunMakesUpForTheAbandonedEvaluation) {
  options_.total_steps = 4;
  options_.eval_every = 2;
  options_.best.keep = true;
  evaluated_step_ = 0;
  start(/*step=*/2);
  EXPECT_TRUE(stream_->leases.empty());
  evaluated(0.5);
  EXPECT_EQ(recorder_->records.back().metrics.at("eval_best_step"), 2.0);
  run_step(2);
  run_step(3);
  evaluated(0.25);
  ASSERT_TRUE(run_until([&] { return ended(); }));
  EXPECT_EQ(commits_->last->best->step, 2U);
  EXPECT_EQ(commits_->last->evaluated_step, 4U);

  evaluated_step_ = 2;
  start(/*step=*/2);
  EXPECT_TRUE(evaluator_->requests.empty());  // it has been recorded
}

TEST_F(TrainerTest, AnEvaluationMadeUpForAtTheEndIsCommitted) {
  options_.total_steps = 4;
  options_.eval_every = 4;
  options_.best.keep = true;
  evaluated_step_ = 0;
  start(/*step=*/4);
  evaluated(0.5);
  ASSERT_TRUE(run_until([&] { return ended(); }));
  EXPECT_EQ(commits_->saves, 1);
  EXPECT_EQ(commits_->last->best->step, 4U);
  EXPECT_EQ(listener_->summaries.back().end, RunEnd::kSteps);
}

TEST_F(TrainerTest, ABestWithoutWeightsIsDroppedIfWeightsMustBeKept) {
  options_.total_steps = 5;
  options_.eval_every = 1;
  options_.best.keep = true;
  best_ = actors::BestSoFar{0.75, 3, 1, {}};
  start(/*step=*/4);
  run_step(4);
  evaluated(0.25);
  ASSERT_TRUE(run_until([&] { return ended(); }));
  EXPECT_EQ(listener_->summaries.at(0).weights.base_digest, "step 5");
}

// If it were recorded, the committed history would have it, but not the best evaluation of the
// commit.
TEST_F(TrainerTest, AnAbandonedEvaluationIsNotRecorded) {
  options_.total_steps = 9;
  options_.eval_every = 1;
  options_.best.keep = true;
  start();
  run_step(0);
  caf::anon_send(trainer_, atom::stop_v);
  evaluated(0.5);
  ASSERT_TRUE(run_until([&] { return ended(); }));
  EXPECT_EQ(recorder_->records.back().kind, "train");
  EXPECT_FALSE(commits_->last->best.has_value());
  EXPECT_EQ(listener_->summaries.at(0).weights.base_digest, "step 1");
}

// -- peers that fail, terminate, or never reply ---------------------------------------------------

TEST_F(TrainerTest, ARefusalOfAPeerEndsTheTrainerSayingWhatItWasDoing) {
  start();
  take(stream_->leases).fail({Errc::kInternal, "broken"});
  drain();
  ASSERT_TRUE(ended());
  EXPECT_EQ((*exit_)->message(), "leasing a batch: broken");

  start();
  deliver(batch(0, 0));
  take(device_->jobs).fail({Errc::kInternal, "not finite"});
  drain();
  ASSERT_TRUE(ended());
  EXPECT_EQ((*exit_)->message(), "training: not finite");

  keeper_->publish_failure = {Errc::kStaleVersion, "not the next"};
  start();
  run_step(0);
  ASSERT_TRUE(ended());
  EXPECT_EQ((*exit_)->message(), "publishing weights: not the next");
  keeper_->publish_failure = {};

  recorder_->failure = {Errc::kResourceExhausted, "no space left"};
  start();
  run_step(0);
  ASSERT_TRUE(ended());
  EXPECT_EQ((*exit_)->message(), "recording a step: no space left");
}

TEST_F(TrainerTest, ATerminatedPeerEndsTheTrainer) {
  start();
  deliver(batch(0, 0));
  kill(device_handle_);
  EXPECT_TRUE(run_until([&] { return ended(); }));
  EXPECT_THAT((*exit_)->message(), HasSubstr("training"));
}

TEST_F(TrainerTest, ADeviceThatNeverRepliesEndsTheTrainerAtTheDeadline) {
  start();
  deliver(batch(0, 0));
  advance(59min);
  EXPECT_FALSE(ended());
  advance(2min);
  ASSERT_TRUE(ended());
  EXPECT_EQ((*exit_)->code(), Errc::kTimeout);
}

TEST_F(TrainerTest, ARowThatLacksColumnsEndsTheTrainerNamingTheRow) {
  start();
  LeaseReply reply = batch(4, 0);
  reply.rows[1].columns.pop_back();
  deliver(reply);
  ASSERT_TRUE(ended());
  EXPECT_THAT((*exit_)->message(), HasSubstr("row=5"));
}

}  // namespace
}  // namespace tidemill::test
