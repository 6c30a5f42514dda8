// SPDX-License-Identifier: Apache-2.0
// Tests the contract of actors/supervised/spawn.hpp.
#include <chrono>
#include <cmath>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/supervised/spawn.hpp"
#include "tests/support/actor_test.hpp"
#include "tests/support/fake_actors.hpp"
#include "tests/support/watched_port.hpp"

namespace tidemill::test {
namespace {

using actors::RunEnd;
using engines::TrainSequence;
using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Returns sequences by draw. The data ends at draw `end`.
class Sequences final : public actors::SequenceReader {
public:
  explicit Sequences(std::uint64_t end) : end_(end) {}
  Result<std::vector<TrainSequence>> read(std::uint64_t draw, std::uint32_t count) override {
    draws.push_back(draw);
    if (draw >= broken_from) {
      return invalid_argument("train.jsonl:9: no field \"answer\"");
    }
    std::vector<TrainSequence> sequences;
    for (; sequences.size() < count && draw < end_; ++draw) {
      TrainSequence sequence;
      sequence.id = {draw};
      sequence.ids = {1, 2};
      sequence.response_mask = {0, 1};
      sequences.push_back(sequence);
    }
    return sequences;
  }
  std::vector<std::uint64_t> draws;
  std::uint64_t broken_from = ~std::uint64_t{0};

private:
  std::uint64_t end_;
};

class SupervisedTrainerTest : public ActorTest {
protected:
  void start(std::uint64_t sequences, std::uint64_t step = 0) {
    reader_ = std::make_shared<Sequences>(sequences);
    reader_->broken_from = broken_from_;
    device_handle_ = keep(spawn_fake_device(system(), device_));
    recorder_handle_ = keep(spawn_fake_recorder(system(), recorder_));
    listener_handle_ = keep(spawn_fake_run_listener(system(), listener_));
    actors::SupervisedDeps deps;
    deps.total_steps = total_steps_;
    deps.sequences_per_step = 2;
    deps.commit_every = commit_every_;
    deps.commit_interval = commit_interval_;
    deps.eval_every = eval_every_;
    deps.best_options = best_options_;
    deps.eval_sequences = eval_sequences_;
    deps.best = best_;
    deps.evaluated_step = evaluated_step_;
    deps.training = device_handle_;
    deps.recorder = recorder_handle_;
    deps.listener = listener_handle_;
    deps.reader = reader_;
    deps.commits = commits_;
    deps.read_port = &read_port_;
    deps.commit_port = &port();
    deps.weights.version = {0, 1, step};
    if (freed_ != nullptr) {
      deps.weights = watched_weights(deps.weights.version, read_port_, freed_);
    }
    trainer_ = keep(actors::spawn_supervised_trainer(system(), std::move(deps)));
    exit_ = exit_of(trainer_);
    caf::anon_send(trainer_, atom::start_v);
    advance(0s);
  }
  void stop() {
    caf::anon_send(trainer_, atom::stop_v);
    drain();
  }
  // Lets the batch that is read ahead arrive, during the current step.
  void read_ahead() { advance(0s); }
  void trained() {
    reply_trained();
    advance(0s);
  }
  // Does the same, but no work at a port is done meanwhile.
  void reply_trained() {
    auto pending = take(device_->jobs);
    actors::TrainOutcome outcome;
    outcome.snapshot.version = pending.request.publish_as;
    outcome.snapshot.base_digest = "step " + std::to_string(pending.request.publish_as.step);
    if (freed_ != nullptr) {
      outcome.snapshot = watched_weights(pending.request.publish_as, read_port_, freed_);
    }
    outcome.updates.resize(1);
    outcome.updates.front().sums["loss"] = 0.5;
    outcome.updates.front().learning_rate = 0.25;
    pending.reply(std::move(outcome));
    drain();
  }
  // Replies to a job that scores held-out sequences with one target each.
  void scored(double logprob_sum) {
    auto pending = take(device_->jobs);
    ASSERT_TRUE(pending.request.score_only);
    actors::TrainOutcome outcome;
    outcome.score = {logprob_sum, pending.request.minibatches.at(0).sequences.size()};
    pending.reply(std::move(outcome));
    advance(0s);
  }
  void hold_out(std::size_t count) {
    std::vector<TrainSequence> all(count);
    for (std::size_t i = 0; i < count; ++i) {
      all[i].id = {i};
      all[i].ids = {1, 2};
      all[i].response_mask = {0, 1};
    }
    eval_sequences_ = std::make_shared<const std::vector<TrainSequence>>(std::move(all));
  }
  // Runs one step and its evaluation on two sequences.
  void trained_to(double loss) {
    trained();
    scored(-2.0 * loss);
  }
  bool ended() const { return exit_->has_value(); }

  WatchedWorkPort read_port_{port()};
  std::shared_ptr<FreedWeights> freed_;  // if set, records where trained weights are freed
  std::uint64_t total_steps_ = 3;
  std::uint64_t commit_every_ = 0;
  Duration commit_interval_{0};
  std::uint64_t eval_every_ = 0;
  actors::BestOptions best_options_{false, 0, 0.0, actors::Better::kLower};
  std::shared_ptr<const std::vector<TrainSequence>> eval_sequences_;
  std::optional<actors::BestSoFar> best_;
  std::uint64_t evaluated_step_ = 0;
  std::uint64_t broken_from_ = ~std::uint64_t{0};
  std::shared_ptr<Sequences> reader_;
  std::shared_ptr<FakeDevice> device_ = std::make_shared<FakeDevice>();
  std::shared_ptr<FakeRecorder> recorder_ = std::make_shared<FakeRecorder>();
  std::shared_ptr<FakeRunListener> listener_ = std::make_shared<FakeRunListener>();
  std::shared_ptr<MemoryCommits> commits_ = std::make_shared<MemoryCommits>();
  actors::DeviceActor device_handle_;
  actors::RecorderActor recorder_handle_;
  actors::RunListenerActor listener_handle_;
  actors::SupervisedTrainerActor trainer_;
  std::shared_ptr<std::optional<Status>> exit_;
};

TEST_F(SupervisedTrainerTest, TrainsStepAfterStepAndReadsAhead) {
  start(100);
  ASSERT_EQ(device_->jobs.size(), 1U);
  const actors::TrainRequest& job = device_->jobs.front().request;
  EXPECT_EQ(job.publish_as, (PolicyVersion{0, 1, 1}));
  ASSERT_EQ(job.minibatches.at(0).sequences.size(), 2U);
  EXPECT_EQ(job.minibatches[0].sequences[1].id, SampleId{1});
  EXPECT_EQ(reader_->draws, (std::vector<std::uint64_t>{0, 2}));  // the next batch too
  trained();
  ASSERT_EQ(recorder_->records.size(), 1U);
  EXPECT_EQ(recorder_->records[0].kind, "train");
  EXPECT_EQ(recorder_->records[0].step, 1U);
  EXPECT_EQ(recorder_->records[0].metrics.at("loss"), 0.5);
  EXPECT_EQ(recorder_->records[0].metrics.at("learning_rate"), 0.25);
  EXPECT_EQ(recorder_->records[0].metrics.at("batch_tokens"), 4.0);
  EXPECT_EQ(device_->jobs.front().request.minibatches[0].sequences[0].id, SampleId{2});
}

TEST_F(SupervisedTrainerTest, AfterTheLastStepItCommitsAndSendsItsSummary) {
  start(100);
  trained();
  trained();
  trained();
  EXPECT_TRUE(run_until([&] { return ended(); }));
  EXPECT_TRUE((*exit_)->ok());
  EXPECT_EQ(listener_->summaries.at(0).end, RunEnd::kSteps);
  EXPECT_EQ(listener_->summaries.at(0).steps, 3U);
  EXPECT_EQ(commits_->saves, 1);
  EXPECT_EQ(commits_->last->weights.version.step, 3U);
  EXPECT_EQ(commits_->last->data_position, 6U);
  EXPECT_EQ(reader_->draws, (std::vector<std::uint64_t>{0, 2, 4}));  // nothing after the last step
}

TEST_F(SupervisedTrainerTest, AResumedRunReadsTheDataThatComesNext) {
  start(100, /*step=*/2);
  EXPECT_EQ(reader_->draws, (std::vector<std::uint64_t>{4}));
  trained();
  EXPECT_TRUE(run_until([&] { return ended(); }));
  EXPECT_EQ(listener_->summaries.at(0).steps, 3U);
}

TEST_F(SupervisedTrainerTest, DataThatEndsInsideABatchEndsTheRunWell) {
  total_steps_ = 9;
  start(5);  // two batches and a half
  read_ahead();
  trained();
  read_ahead();
  trained();
  EXPECT_TRUE(run_until([&] { return ended(); }));
  EXPECT_TRUE((*exit_)->ok());
  EXPECT_TRUE(device_->jobs.empty());  // an incomplete batch is not trained on
  EXPECT_EQ(listener_->summaries.at(0).end, RunEnd::kData);
  EXPECT_EQ(listener_->summaries.at(0).steps, 2U);
  EXPECT_EQ(commits_->last->weights.version.step, 2U);
}

TEST_F(SupervisedTrainerTest, DataThatEndsWithABatchEndsTheRunWell) {
  total_steps_ = 9;
  start(4);
  read_ahead();
  trained();
  read_ahead();
  trained();
  EXPECT_TRUE(run_until([&] { return ended(); }));
  EXPECT_EQ(listener_->summaries.at(0).end, RunEnd::kData);
  EXPECT_EQ(listener_->summaries.at(0).steps, 2U);
}

TEST_F(SupervisedTrainerTest, StopFinishesTheCurrentStepCommitsAndEnds) {
  start(100);
  stop();
  EXPECT_FALSE(ended());
  trained();
  EXPECT_TRUE(run_until([&] { return ended(); }));
  EXPECT_EQ(listener_->summaries.at(0).end, RunEnd::kStopped);
  EXPECT_EQ(listener_->summaries.at(0).steps, 1U);
  EXPECT_EQ(commits_->last->weights.version.step, 1U);
}

TEST_F(SupervisedTrainerTest, AStopWhileACommitIsWrittenFinishesTheCurrentStep) {
  commit_every_ = 1;
  start(100);
  advance(0s);      // the second batch is read
  reply_trained();  // the commit is at the port
  EXPECT_EQ(device_->jobs.size(), 1U);
  stop();
  advance(0s);  // the port replies that it has written the commit
  EXPECT_EQ(commits_->last->weights.version.step, 1U);
  EXPECT_FALSE(ended());  // the second step is being trained
  ASSERT_EQ(device_->jobs.size(), 1U);
  trained();
  EXPECT_TRUE(run_until([&] { return ended(); }));
  EXPECT_EQ(listener_->summaries.at(0).end, RunEnd::kStopped);
  EXPECT_EQ(listener_->summaries.at(0).steps, 2U);
  EXPECT_EQ(commits_->last->weights.version.step, 2U);
}

TEST_F(SupervisedTrainerTest, AFurtherStopChangesNothing) {
  start(100);
  stop();
  stop();
  trained();
  stop();
  EXPECT_TRUE(run_until([&] { return ended(); }));
  EXPECT_EQ(listener_->summaries.size(), 1U);
  EXPECT_EQ(commits_->saves, 1);
}

TEST_F(SupervisedTrainerTest, AStoppedRunIgnoresUnreadableDataThatItWillNotUse) {
  broken_from_ = 2;  // the batch that is read ahead
  start(100);
  stop();
  trained();
  EXPECT_TRUE(run_until([&] { return ended(); }));
  EXPECT_TRUE((*exit_)->ok());
  EXPECT_EQ(listener_->summaries.at(0).steps, 1U);
}

TEST_F(SupervisedTrainerTest, UnreadableDataEndsTheTrainerWithTheErrorOfTheReader) {
  broken_from_ = 0;
  start(100);
  ASSERT_TRUE(ended());
  EXPECT_EQ((*exit_)->code(), Errc::kInvalidArgument);
  EXPECT_TRUE(device_->jobs.empty());
}

TEST_F(SupervisedTrainerTest, WritesACommitDuringTheNextStep) {
  commit_every_ = 1;
  start(100);
  trained();
  EXPECT_EQ(device_->captured, 1);
  EXPECT_EQ(device_->jobs.size(), 1U);
  advance(0s);
  EXPECT_EQ(commits_->last->weights.version.step, 1U);
  EXPECT_EQ(commits_->last->data_position, 2U);
  EXPECT_EQ(commits_->last->records.metrics_bytes, 1U);
}

TEST_F(SupervisedTrainerTest, CommitsAStepOnceTheIntervalHasPassed) {
  total_steps_ = 9;
  commit_interval_ = 60s;
  start(100);
  advance(59s);
  trained();
  EXPECT_EQ(device_->captured, 0);
  advance(1s);
  trained();
  EXPECT_EQ(device_->captured, 1);
  advance(59s);
  trained();
  EXPECT_EQ(device_->captured, 1) << "the interval begins at the last commit";
  advance(1s);
  trained();
  EXPECT_EQ(device_->captured, 2);
  advance(0s);
  EXPECT_EQ(commits_->last->weights.version.step, 4U);
}

// Freeing the weights of a large model takes too long for a message handler.
TEST_F(SupervisedTrainerTest, OldWeightsAreFreedAtThePort) {
  total_steps_ = 9;
  eval_every_ = 1;
  best_options_.keep = true;
  hold_out(2);
  freed_ = std::make_shared<FreedWeights>();
  start(100);
  trained_to(0.5);  // the best so far
  trained_to(0.75);
  EXPECT_THAT(freed_->at_port, ElementsAre(0)) << "those that the run started with";
  trained_to(0.25);
  EXPECT_THAT(freed_->at_port, ElementsAre(0, 2, 1)) << "1 was the best until now";
  EXPECT_THAT(freed_->elsewhere, IsEmpty());
}

// -- evaluation -----------------------------------------------------------------------------------

TEST_F(SupervisedTrainerTest, EvaluatesOnAllHeldOutSequencesWhenDue) {
  eval_every_ = 2;
  hold_out(3);
  start(100);
  trained();
  EXPECT_FALSE(device_->jobs.front().request.score_only);
  trained();
  ASSERT_TRUE(device_->jobs.front().request.score_only);
  EXPECT_EQ(device_->jobs.front().request.minibatches.at(0).sequences.size(), 2U);
  scored(-1.0);
  EXPECT_EQ(device_->jobs.front().request.minibatches.at(0).sequences.at(0).id, SampleId{2});
  EXPECT_EQ(recorder_->records.back().kind, "train");
  scored(-0.5);
  const actors::StepRecord& record = recorder_->records.back();
  EXPECT_EQ(record.kind, "eval");
  EXPECT_EQ(record.step, 2U);
  EXPECT_EQ(record.metrics.at("eval_loss"), 0.5);
  EXPECT_EQ(record.metrics.at("eval_perplexity"), std::exp(0.5));
  EXPECT_EQ(record.metrics.at("eval_tokens"), 3.0);
  EXPECT_EQ(record.metrics.at("eval_sequences"), 3.0);
  EXPECT_FALSE(record.metrics.contains("eval_best"));
  EXPECT_FALSE(device_->jobs.front().request.score_only);  // training continues
}

TEST_F(SupervisedTrainerTest, TheLowestLossIsTheBestAndInEveryCommit) {
  total_steps_ = 3;
  commit_every_ = 1;
  eval_every_ = 1;
  best_options_.keep = true;
  hold_out(2);
  start(100);
  trained_to(0.5);
  advance(0s);
  ASSERT_TRUE(commits_->last->best.has_value());
  EXPECT_EQ(commits_->last->best->value, 0.5);
  EXPECT_EQ(commits_->last->best->weights.base_digest, "step 1");
  trained_to(0.25);
  trained_to(0.375);
  EXPECT_EQ(recorder_->records.back().metrics.at("eval_best"), 0.25);
  EXPECT_EQ(recorder_->records.back().metrics.at("eval_best_step"), 2.0);
  EXPECT_TRUE(run_until([&] { return ended(); }));
  EXPECT_EQ(commits_->last->weights.base_digest, "step 3");
  EXPECT_EQ(commits_->last->best->step, 2U);
  EXPECT_EQ(commits_->last->best->num_worse, 1U);
  EXPECT_EQ(listener_->summaries.at(0).end, RunEnd::kSteps);
  EXPECT_EQ(listener_->summaries.at(0).weights.base_digest, "step 2");
}

TEST_F(SupervisedTrainerTest, APlateauEndsTheRun) {
  total_steps_ = 9;
  eval_every_ = 1;
  best_options_.patience = 2;
  best_options_.min_improvement = 0.1;
  hold_out(2);
  start(100);
  trained_to(0.5);
  trained_to(0.45);  // lower, but by too little
  trained_to(0.41);
  EXPECT_TRUE(run_until([&] { return ended(); }));
  const actors::RunSummary& summary = listener_->summaries.at(0);
  EXPECT_EQ(summary.end, RunEnd::kPlateau);
  EXPECT_EQ(summary.steps, 3U);
  EXPECT_EQ(summary.reason, "no evaluation since step 1 was better than 0.5 (2 in a row)");
  EXPECT_EQ(summary.weights.base_digest, "step 3");  // the best is not kept
  EXPECT_EQ(commits_->last->weights.version.step, 3U);
}

TEST_F(SupervisedTrainerTest, AResumedRunContinuesFromTheBestOfItsCommit) {
  total_steps_ = 9;
  eval_every_ = 1;
  best_options_ = {true, 2, 0.0, actors::Better::kLower};
  best_ = actors::BestSoFar{0.25, 3, 1, {}};
  best_->weights.base_digest = "of the commit";
  hold_out(2);
  evaluated_step_ = 4;
  start(100, /*step=*/4);
  trained_to(0.375);
  EXPECT_TRUE(run_until([&] { return ended(); }));
  EXPECT_EQ(listener_->summaries.at(0).end, RunEnd::kPlateau);
  EXPECT_EQ(listener_->summaries.at(0).weights.base_digest, "of the commit");
}

TEST_F(SupervisedTrainerTest, ARunThatResumesAtAPlateauEnds) {
  total_steps_ = 9;
  eval_every_ = 1;
  best_options_ = {true, 2, 0.0, actors::Better::kLower};
  best_ = actors::BestSoFar{0.25, 3, 2, {}};
  best_->weights.base_digest = "of the commit";
  hold_out(2);
  start(100, /*step=*/5);
  EXPECT_TRUE(run_until([&] { return ended(); }));
  EXPECT_EQ(listener_->summaries.at(0).end, RunEnd::kPlateau);
  EXPECT_TRUE(device_->jobs.empty());
  EXPECT_EQ(commits_->saves, 0);
}

TEST_F(SupervisedTrainerTest, AStopAbandonsTheEvaluation) {
  eval_every_ = 1;
  best_options_.keep = true;
  hold_out(4);
  start(100);
  trained();
  stop();
  scored(-1.0);
  EXPECT_TRUE(run_until([&] { return ended(); }));
  EXPECT_EQ(listener_->summaries.at(0).end, RunEnd::kStopped);
  EXPECT_EQ(recorder_->records.back().kind, "train");
  EXPECT_EQ(commits_->last->weights.version.step, 1U);
  EXPECT_FALSE(commits_->last->best.has_value());
}

TEST_F(SupervisedTrainerTest, AResumedRunMakesUpForTheAbandonedEvaluation) {
  total_steps_ = 2;
  eval_every_ = 1;
  best_options_.keep = true;
  evaluated_step_ = 1;
  hold_out(2);
  start(100, /*step=*/2);
  scored(-1.0);
  EXPECT_TRUE(run_until([&] { return ended(); }));
  EXPECT_EQ(recorder_->records.at(0).step, 2U);
  EXPECT_EQ(commits_->saves, 1);
  EXPECT_EQ(commits_->last->evaluated_step, 2U);
  EXPECT_EQ(commits_->last->best->value, 0.5);
}

TEST_F(SupervisedTrainerTest, AFailedEvaluationEndsTheTrainerSayingSo) {
  eval_every_ = 1;
  hold_out(2);
  start(100);
  trained();
  take(device_->jobs).fail({Errc::kInternal, "not finite"});
  drain();
  ASSERT_TRUE(ended());
  EXPECT_EQ((*exit_)->message(), "evaluating: not finite");
}

TEST_F(SupervisedTrainerTest, ACommitThatCannotBeWrittenEndsTheTrainerNamingTheStep) {
  commit_every_ = 1;
  commits_->failure = {Errc::kResourceExhausted, "no space left"};
  start(100);
  trained();
  advance(0s);
  ASSERT_TRUE(ended());
  EXPECT_EQ((*exit_)->message(), "commit of step 1: no space left");
}

TEST_F(SupervisedTrainerTest, ARefusalOfAPeerEndsTheTrainerSayingWhatItWasDoing) {
  start(100);
  take(device_->jobs).fail({Errc::kInternal, "not finite"});
  drain();
  ASSERT_TRUE(ended());
  EXPECT_EQ((*exit_)->message(), "training: not finite");

  recorder_->failure = {Errc::kResourceExhausted, "no space left"};
  start(100);
  trained();
  ASSERT_TRUE(ended());
  EXPECT_EQ((*exit_)->message(), "recording a step: no space left");
}

TEST_F(SupervisedTrainerTest, ADeviceThatTerminatesOrNeverRepliesEndsTheTrainer) {
  start(100);
  kill(device_handle_);
  EXPECT_TRUE(run_until([&] { return ended(); }));
  EXPECT_THAT((*exit_)->message(), HasSubstr("training"));

  start(100);
  advance(61min);
  ASSERT_TRUE(ended());
  EXPECT_EQ((*exit_)->code(), Errc::kTimeout);
}

}  // namespace
}  // namespace tidemill::test
