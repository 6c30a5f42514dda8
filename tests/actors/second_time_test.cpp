// SPDX-License-Identifier: Apache-2.0
// What actors do the second and the third time: nothing of an earlier evaluation, read, delivery,
// commit or failure may be left over.
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/evaluator/spawn.hpp"
#include "actors/recorder/spawn.hpp"
#include "actors/source/spawn.hpp"
#include "actors/stream/spawn.hpp"
#include "actors/stream/stream_image.hpp"
#include "actors/supervised/spawn.hpp"
#include "actors/trainer/spawn.hpp"
#include "tests/actors/sample_rows.hpp"
#include "tests/support/actor_test.hpp"
#include "tests/support/fake_actors.hpp"
#include "tests/support/fake_reward_engine.hpp"

namespace tidemill::test {
namespace {

using actors::EvalReport;
using actors::LeaseReply;
using actors::RecordMarks;
using actors::SampleTask;
using engines::FinishReason;
using storage::Settlement;
using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

class SecondTimeTest : public ActorTest {};

// -- evaluations ----------------------------------------------------------------------------------

class RepeatedEvaluationTest : public ActorTest {
protected:
  void SetUp() override {
    actors::EvaluatorDeps deps;
    deps.serving = keep(spawn_fake_device(system(), device_));
    deps.engine = engine_;
    deps.decode = [](const std::vector<std::int32_t>&) { return std::string(); };
    deps.samples = 2;
    deps.max_new_tokens = 7;
    deps.port = &port();
    deps.prompts.resize(2);
    for (actors::Prompt& prompt : deps.prompts) {
      prompt.ids = {1};
    }
    evaluator_ = keep(actors::spawn_evaluator(system(), std::move(deps)));
  }
  // Runs an evaluation on four responses of `version`. Those of `failed` are not generated.
  EvalReport evaluate(std::uint64_t step, std::uint64_t version, const std::vector<double>& rewards,
                      std::vector<double> parts, std::uint64_t failed = 4) {
    engine_->parts = std::move(parts);
    const auto reply = ask<EvalReport>(evaluator_, atom::start_v, step);
    drain();
    std::vector<Pending<engines::RolloutRequest, engines::RolloutResult>> asked;
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_TRUE(run_until([&] { return !device_->generations.empty(); }));
      auto pending = take(device_->generations);
      const std::uint64_t id = pending.request.id.value;
      EXPECT_EQ(pending.request.min_step, step);
      first_id_ = i == 0 ? id : first_id_;
      engine_->reward_of[id] = rewards[id - first_id_];
      engines::RolloutResult result;
      result.id = {id};
      result.response_ids = {1, 2};
      result.versions = {{{0, 0, version}, 2}};
      result.finish_reason = id - first_id_ == failed ? FinishReason::kFailed : FinishReason::kStop;
      pending.reply(std::move(result));
      drain();
    }
    EXPECT_TRUE(run_until([&] { return reply.arrived(); }));
    return reply.value();
  }

  std::shared_ptr<FakeDevice> device_ = std::make_shared<FakeDevice>();
  std::shared_ptr<FakeRewardEngine> engine_ = std::make_shared<FakeRewardEngine>();
  actors::EvaluatorActor evaluator_;
  std::uint64_t first_id_ = 0;
};

TEST_F(RepeatedEvaluationTest, EveryReportIsOfItsOwnResponses) {
  const EvalReport first = evaluate(3, 3, {1.0, 1.0, 0.0, 1.0}, {2.0, 0.5}, /*failed=*/1);
  EXPECT_EQ(first.step, 3U);
  EXPECT_EQ(first.mean_at_k, 0.5);
  EXPECT_EQ(first.pass_at_k, 1.0);
  EXPECT_EQ(first.num_failed, 1U);
  EXPECT_THAT(first.part_means, ElementsAre(1.5, 0.375));

  const EvalReport second = evaluate(5, 6, {0.0, 0.0, 0.5, 1.0}, {-1.0, 4.0});
  EXPECT_EQ(second.step, 6U);
  EXPECT_EQ(second.mean_at_k, 0.375);
  EXPECT_EQ(second.pass_at_k, 0.5);
  EXPECT_EQ(second.num_failed, 0U);
  EXPECT_THAT(second.part_means, ElementsAre(-1.0, 4.0));

  const EvalReport third = evaluate(7, 7, {0.25, 0.25, 0.5, 0.25}, {}, /*failed=*/3);
  EXPECT_EQ(third.step, 7U);
  EXPECT_EQ(third.mean_at_k, 0.25) << "a failed sample counts as 0, whatever it was before";
  EXPECT_EQ(third.pass_at_k, 0.0);
  EXPECT_EQ(third.num_failed, 1U);
  EXPECT_TRUE(third.part_means.empty());
}

// -- reads ----------------------------------------------------------------------------------------

// Reads prompts by draw. Skips all draws but the multiples of five.
class SparsePrompts final : public actors::PromptReader {
public:
  Result<std::vector<actors::Prompt>> read(std::uint64_t draw, std::uint32_t count) override {
    std::vector<actors::Prompt> prompts;
    for (; prompts.size() < count; ++draw) {
      if (draw % 5 == 0) {
        prompts.push_back({draw, 0, draw, {static_cast<std::int32_t>(draw)}, "p", "a", "{}"});
      }
    }
    return prompts;
  }
};

TEST_F(SecondTimeTest, EveryReadContinuesAfterTheDrawsThatWereSkipped) {
  const auto stream = std::make_shared<FakeStream>();
  const auto keeper = std::make_shared<FakeKeeper>();
  actors::PromptSourceDeps deps;
  deps.stream = keep(spawn_fake_stream(system(), stream));
  deps.keeper = keep(spawn_fake_keeper(system(), keeper));
  deps.reader = std::make_shared<SparsePrompts>();
  deps.port = &port();
  deps.first_draw = 3;
  caf::anon_send(keep(actors::spawn_prompt_source(system(), std::move(deps))), atom::start_v);
  drain();
  std::uint32_t first = 0;
  for (const std::uint32_t groups : {2U, 1U, 3U, 1U}) {
    take(keeper->admissions).reply({groups, first, 0, ""});
    advance(0s);
    first += groups;
  }
  std::vector<std::uint64_t> draws;
  for (const actors::NewGroup& group : stream->puts) {
    draws.push_back(group.draw);
    EXPECT_EQ(group.rows.at(0).row.data_position, group.draw);
  }
  EXPECT_THAT(draws, ElementsAre(5, 10, 15, 20, 25, 30, 35));
}

// -- deliveries and restores ----------------------------------------------------------------------

class RedeliveryTest : public ActorTest {
protected:
  void start(std::shared_ptr<const actors::RestoredStream> restored = nullptr) {
    actors::SampleStreamOptions options;
    options.group_size = 1;
    options.lease = 60s;
    options.max_deliveries = 3;
    stream_ = keep(actors::spawn_stream(
        system(), {options,
                   keep(spawn_fake_keeper(system(), std::make_shared<FakeKeeper>())),
                   std::move(restored),
                   {}}));
  }
  Status put(std::uint64_t group, std::uint64_t draw) {
    actors::NewGroup rows = sample_group(group, 1);
    rows.draw = draw;
    const auto reply = ask<Settlement>(stream_, atom::put_v, rows);
    drain();
    return reply.status();
  }
  std::vector<storage::LeasedRow> lease(SampleTask task) {
    const auto reply = ask<LeaseReply>(stream_, atom::lease_v, sample_lease(task, 9));
    advance(0s);
    return reply.ok() ? reply.value().rows : std::vector<storage::LeasedRow>{};
  }
  Settlement ack(SampleTask task, const std::vector<storage::LeasedRow>& rows,
                 const std::vector<storage::ColumnValue>& cells) {
    const auto reply = ask<Settlement>(stream_, atom::ack_v, ack_of(task, rows, cells));
    drain();
    EXPECT_TRUE(reply.ok()) << reply.status().to_string();
    return reply.value();
  }
  void nack(const std::vector<storage::LeasedRow>& rows) {
    ask<Settlement>(stream_, atom::nack_v, lease_update_of(SampleTask::kRollout, rows, "broken"));
    drain();
  }
  actors::StreamStatus counts() {
    const auto reply = ask<actors::StreamStatus>(stream_, atom::status_v);
    drain();
    return reply.value();
  }
  actors::StreamImage capture() {
    const auto captured = ask<actors::StreamCapture>(stream_, atom::capture_v);
    drain();
    return actors::encode_stream_image(captured.value());
  }

  actors::StreamActor stream_;
};

TEST_F(RedeliveryTest, OnlyTheLeaseOfTheThirdDeliveryCounts) {
  start();
  ASSERT_TRUE(put(0, 0).ok());
  const auto first = lease(SampleTask::kRollout);
  advance(60s);
  const auto second = lease(SampleTask::kRollout);
  advance(60s);
  const auto third = lease(SampleTask::kRollout);
  ASSERT_EQ(third.size(), 1U);
  EXPECT_EQ(third[0].deliveries, 2U);
  EXPECT_LT(first[0].lease.generation, second[0].lease.generation);
  EXPECT_LT(second[0].lease.generation, third[0].lease.generation);
  for (const auto& old : {second, first, second}) {
    const Settlement refused = ack(SampleTask::kRollout, old, rollout_cells());
    ASSERT_EQ(refused.refused.size(), 1U);
    EXPECT_EQ(refused.refused[0].reason, storage::Refusal::kOldLease);
  }
  EXPECT_EQ(ack(SampleTask::kRollout, third, rollout_cells()).done.size(), 1U);
  EXPECT_EQ(ack(SampleTask::kRollout, third, rollout_cells()).refused.size(), 1U);
  EXPECT_EQ(counts().redelivered, 2U);
  EXPECT_EQ(counts().refused, 4U);
}

TEST_F(RedeliveryTest, ARowFailsAtItsThirdFailureWhateverWasLostBetween) {
  start();
  ASSERT_TRUE(put(0, 0).ok());
  for (int failure = 1; failure <= 3; ++failure) {
    lease(SampleTask::kRollout);
    advance(60s);  // lost
    EXPECT_EQ(counts().live, 1U) << failure;
    nack(lease(SampleTask::kRollout));
    EXPECT_EQ(counts().live, failure < 3 ? 1U : 0U) << failure;
  }
  EXPECT_EQ(counts().failed, 1U);
  EXPECT_EQ(counts().redelivered, 6U);
}

// Draws and groups differ: the data has skipped some rows.
TEST_F(RedeliveryTest, EveryResumeContinuesWithTheNextGroupAndTheNextDraw) {
  start();
  std::uint64_t draw = 0;
  for (std::uint64_t group = 0; group < 6; ++group) {
    ASSERT_TRUE(put(group, draw).ok());
    ack(SampleTask::kRollout, lease(SampleTask::kRollout), rollout_cells());
    const actors::StreamImage image = capture();
    const auto restored = actors::decode_stream_image(image);
    ASSERT_TRUE(restored.ok());
    const actors::StreamOrigin& origin = restored.value()->origin;
    EXPECT_EQ(origin.next_group, group + 1);
    EXPECT_EQ(origin.next_draw, draw + 1);
    EXPECT_EQ(origin.finished_rows, static_cast<std::int64_t>(group + 1));
    EXPECT_EQ(origin.unfinished_rows, 0);
    start(restored.value());
    EXPECT_EQ(capture().bytes.size_bytes(), image.bytes.size_bytes());
    EXPECT_EQ(counts().live, group + 1);
    draw += 2 + group;
  }
  EXPECT_EQ(lease(SampleTask::kReward).size(), 6U);
}

// -- records --------------------------------------------------------------------------------------

class FlakyFiles final : public actors::RecordFiles {
public:
  Result<RecordMarks> append(const std::string& metrics, const std::string& samples) override {
    if (fail) {
      return Status(Errc::kUnavailable, "not now");
    }
    text += metrics;
    samples_bytes += samples.size();
    return RecordMarks{text.size(), samples_bytes};
  }
  bool fail = false;
  std::string text;
  std::uint64_t samples_bytes = 0;
};

TEST_F(SecondTimeTest, AfterEveryFailedWriteTheMarksAreThoseOfTheLinesInTheFiles) {
  const auto files = std::make_shared<FlakyFiles>();
  const auto recorder = keep(actors::spawn_recorder(system(), {files, {}, {}, {}, &port()}));
  std::uint64_t step = 0;
  for (const bool fail : {false, true, false, true, true, false}) {
    files->fail = fail;
    const actors::StepRecord record{"train", ++step, {{"loss", 0.5}}, {}};
    const auto reply = ask<RecordMarks>(recorder, atom::record_v, record);
    EXPECT_TRUE(run_until([&] { return reply.arrived(); }));
    EXPECT_EQ(reply.ok(), !fail);
    EXPECT_EQ(reply.count(), 1);
    const auto marks = ask<RecordMarks>(recorder, atom::capture_v);
    drain();
    ASSERT_TRUE(marks.ok());
    EXPECT_EQ(marks.value().metrics_bytes, files->text.size());
  }
  for (const std::uint64_t written : {1U, 3U, 6U}) {
    EXPECT_THAT(files->text, HasSubstr("\"step\":" + std::to_string(written)));
  }
  EXPECT_EQ(std::count(files->text.begin(), files->text.end(), '\n'), 3);
}

// -- the trainer ----------------------------------------------------------------------------------

class RepeatedStepTest : public ActorTest {
protected:
  void start() {
    actors::TrainerDeps deps;
    deps.options = options_;
    deps.stream = keep(spawn_fake_stream(system(), stream_));
    const auto device = keep(spawn_fake_device(system(), device_));
    deps.training = device;
    deps.serving = device;
    deps.keeper = keep(spawn_fake_keeper(system(), std::make_shared<FakeKeeper>()));
    deps.recorder = keep(spawn_fake_recorder(system(), recorder_));
    deps.evaluator = keep(spawn_fake_evaluator(system(), evaluator_));
    deps.listener = keep(spawn_fake_run_listener(system(), listener_));
    deps.commits = commits_;
    deps.commit_port = &port();
    deps.io_port = &port();
    deps.weights.base_digest = "initial";
    trainer_ = keep(actors::spawn_trainer(system(), std::move(deps)));
    exit_ = exit_of(trainer_);
    caf::anon_send(trainer_, atom::start_v);
    drain();
  }
  void run_step(std::uint64_t step) {
    LeaseReply reply;
    reply.lease_time = 60s;
    reply.rows = {trainable_row(step, step, step)};
    take(stream_->leases).reply(std::move(reply));
    drain();
    auto job = take(device_->jobs);
    actors::TrainOutcome outcome;
    outcome.snapshot.version = job.request.publish_as;
    outcome.snapshot.base_digest = "step " + std::to_string(job.request.publish_as.step);
    outcome.updates.resize(1);
    job.reply(std::move(outcome));
    drain();
  }
  void evaluated(double value) {
    auto pending = take(evaluator_->requests);
    pending.reply({pending.request, 10, 1, value, 0.5, 0, {}});
    drain();
  }

  actors::TrainerOptions options_;
  std::shared_ptr<FakeStream> stream_ = std::make_shared<FakeStream>();
  std::shared_ptr<FakeDevice> device_ = std::make_shared<FakeDevice>();
  std::shared_ptr<FakeRecorder> recorder_ = std::make_shared<FakeRecorder>();
  std::shared_ptr<FakeEvaluator> evaluator_ = std::make_shared<FakeEvaluator>();
  std::shared_ptr<FakeRunListener> listener_ = std::make_shared<FakeRunListener>();
  std::shared_ptr<MemoryCommits> commits_ = std::make_shared<MemoryCommits>();
  actors::TrainerActor trainer_;
  std::shared_ptr<std::optional<Status>> exit_;
};

TEST_F(RepeatedStepTest, EveryCommitHoldsItsOwnStep) {
  options_.total_steps = 4;
  options_.commit_every = 1;
  start();
  for (std::uint64_t step = 0; step < 3; ++step) {
    device_->optimizer.tensors.clear();
    device_->optimizer.tensors["of step " + std::to_string(step + 1)] = {};
    run_step(step);
    advance(0s);
    EXPECT_EQ(commits_->saves, static_cast<int>(step + 1));
    EXPECT_EQ(commits_->last->weights.base_digest, "step " + std::to_string(step + 1));
    EXPECT_EQ(commits_->last->records.metrics_bytes, step + 1);
    EXPECT_TRUE(commits_->last->optimizer.contains("of step " + std::to_string(step + 1)));
  }
  run_step(3);
  EXPECT_TRUE(run_until([&] { return exit_->has_value(); }));
  EXPECT_EQ(commits_->saves, 4) << "the last step is committed once";
}

TEST_F(RepeatedStepTest, AProbeThatIsGivenUpAgainAndAgainEndsTheTrainer) {
  options_.total_steps = 4;
  options_.max_staleness = 1;
  start();
  run_step(0);
  LeaseReply reply;
  reply.rows = {trainable_row(1, 1, 7)};  // of a version whose weights are gone
  take(stream_->leases).reply(std::move(reply));
  drain();
  for (int attempt = 1; attempt <= 3; ++attempt) {
    EXPECT_FALSE(exit_->has_value());
    take(device_->generations).fail({Errc::kUnavailable, "no device serves"});
    drain();
  }
  EXPECT_TRUE(device_->generations.empty());
  ASSERT_TRUE(exit_->has_value());
  EXPECT_EQ((*exit_)->message(), "generating a probe: no device serves");
}

TEST_F(RepeatedStepTest, CommitsComeAtTheStepsThatAreDue) {
  options_.total_steps = 8;
  options_.commit_every = 3;
  start();
  std::vector<std::uint64_t> steps;
  for (std::uint64_t step = 0; step < 8; ++step) {
    const int before = commits_->saves;
    run_step(step);
    run_until([&] { return commits_->saves > before || exit_->has_value(); }, 3);
    if (commits_->saves > before) {
      steps.push_back(commits_->last->weights.version.step);
    }
  }
  EXPECT_THAT(steps, ElementsAre(3, 6, 8));
}

TEST_F(RepeatedStepTest, AnEvaluationThatIsStillRunningMakesTheNextOneWaitForItsTurn) {
  options_.total_steps = 9;
  options_.eval_every = 1;
  start();
  run_step(0);
  ASSERT_EQ(evaluator_->requests.size(), 1U);
  run_step(1);
  EXPECT_EQ(evaluator_->requests.size(), 1U) << "one at a time";
  evaluated(0.25);
  EXPECT_TRUE(evaluator_->requests.empty());
  run_step(2);
  ASSERT_EQ(evaluator_->requests.size(), 1U);
  EXPECT_EQ(evaluator_->requests.front().request, 3U);
  evaluated(0.5);
  EXPECT_EQ(recorder_->records.back().step, 3U);
}

TEST_F(RepeatedStepTest, WithAPatienceOfOneTheFirstEvaluationThatIsNotBetterEndsTheRun) {
  options_.total_steps = 9;
  options_.eval_every = 1;
  options_.best.patience = 1;
  start();
  for (std::uint64_t step = 0; step < 3; ++step) {
    run_step(step);
    evaluated(0.25 * static_cast<double>(step));
    EXPECT_FALSE(exit_->has_value());
  }
  run_step(3);
  evaluated(0.5);  // as good as the one before
  ASSERT_TRUE(run_until([&] { return exit_->has_value(); }));
  EXPECT_EQ(listener_->summaries.at(0).end, actors::RunEnd::kPlateau);
  EXPECT_EQ(listener_->summaries.at(0).steps, 4U);
}

TEST_F(RepeatedStepTest, AnImprovementOfExactlyTheMinimumIsNotEnough) {
  options_.total_steps = 9;
  options_.eval_every = 1;
  options_.best = {true, 0, 0.25};
  start();
  const double values[] = {0.5, 0.75, 0.875};
  const double best[] = {1.0, 1.0, 3.0};
  for (std::uint64_t step = 0; step < 3; ++step) {
    run_step(step);
    evaluated(values[step]);
    EXPECT_EQ(recorder_->records.back().metrics.at("eval_best_step"), best[step]);
  }
}

TEST_F(RepeatedStepTest, EveryStepMayLeaveAsManyGroupsUntrained) {
  options_.total_steps = 9;
  options_.max_untrained_batches = 2;
  start();
  const auto none = [&] {
    take(stream_->leases).reply({});
    drain();
  };
  for (std::uint64_t step = 0; step < 4; ++step) {
    ++stream_->counts.filtered_groups;  // one fewer than the limit
    none();
    EXPECT_FALSE(exit_->has_value());
    run_step(step);
  }
  ++stream_->counts.filtered_groups;
  ++stream_->counts.lost_groups;  // as many lost as filtered
  none();
  ASSERT_TRUE(run_until([&] { return exit_->has_value(); }));
  EXPECT_EQ(listener_->summaries.at(0).end, actors::RunEnd::kNoSignal);
  EXPECT_EQ(listener_->summaries.at(0).steps, 4U);
}

// Reads sequences without an end.
class EndlessSequences final : public actors::SequenceReader {
public:
  Result<std::vector<engines::TrainSequence>> read(std::uint64_t draw,
                                                   std::uint32_t count) override {
    std::vector<engines::TrainSequence> sequences(count);
    for (engines::TrainSequence& sequence : sequences) {
      sequence.id = {draw++};
      sequence.ids = {1, 2};
      sequence.response_mask = {0, 1};
    }
    return sequences;
  }
};

TEST_F(RepeatedStepTest, EveryCommitOfASupervisedRunHoldsItsOwnPosition) {
  actors::SupervisedDeps deps;
  deps.total_steps = 4;
  deps.sequences_per_step = 3;
  deps.commit_every = 1;
  deps.training = keep(spawn_fake_device(system(), device_));
  deps.recorder = keep(spawn_fake_recorder(system(), recorder_));
  deps.listener = keep(spawn_fake_run_listener(system(), listener_));
  deps.reader = std::make_shared<EndlessSequences>();
  deps.commits = commits_;
  deps.read_port = &port();
  deps.commit_port = &port();
  caf::anon_send(keep(actors::spawn_supervised_trainer(system(), std::move(deps))), atom::start_v);
  for (std::uint64_t step = 1; step <= 4; ++step) {
    ASSERT_TRUE(run_until([&] { return !device_->jobs.empty(); }));
    auto job = take(device_->jobs);
    EXPECT_EQ(job.request.minibatches.at(0).sequences.at(0).id, SampleId{3 * (step - 1)});
    actors::TrainOutcome outcome;
    outcome.snapshot.version = job.request.publish_as;
    outcome.updates.resize(1);
    job.reply(std::move(outcome));
    ASSERT_TRUE(run_until([&] { return commits_->saves == static_cast<int>(step); }));
    EXPECT_EQ(commits_->last->weights.version.step, step);
    EXPECT_EQ(commits_->last->data_position, 3 * step);
    EXPECT_EQ(commits_->last->records.metrics_bytes, step);
  }
}

TEST_F(RepeatedStepTest, APeerThatNeverRepliesEndsTheTrainerAtItsDeadline) {
  options_.total_steps = 9;
  options_.eval_every = 1;
  start();
  advance(2min + 5s - 1ms);  // the wait of the lease request, and the margin
  EXPECT_FALSE(exit_->has_value());
  advance(1ms);
  ASSERT_TRUE(exit_->has_value());
  EXPECT_EQ((*exit_)->code(), Errc::kTimeout);
}

}  // namespace
}  // namespace tidemill::test
