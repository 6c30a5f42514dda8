// SPDX-License-Identifier: Apache-2.0
// The numbers that a run reports. Each expected value is worked out by hand, is not zero, and
// differs from the others, so that a wrong sign, denominator or name shows.
#include <chrono>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/evaluator/scores.hpp"
#include "actors/recorder/metrics_events.hpp"
#include "actors/recorder/spawn.hpp"
#include "actors/supervised/spawn.hpp"
#include "actors/trainer/batch.hpp"
#include "storage/events/event_file.hpp"
#include "tests/actors/sample_rows.hpp"
#include "tests/actors/stream_fixture.hpp"
#include "tests/actors/trainer_fixture.hpp"

namespace tidemill::test {
namespace {

using actors::SampleTask;
using actors::TrainRow;
using namespace std::chrono_literals;
using ::testing::DoubleEq;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

// -- a batch --------------------------------------------------------------------------------------

struct RowSpec {
  std::uint64_t group;
  double reward;
  std::size_t tokens;
  std::uint64_t oldest_step;
  bool truncated;
};

std::vector<TrainRow> rows_of(const std::vector<RowSpec>& specs) {
  std::vector<TrainRow> rows;
  for (const RowSpec& spec : specs) {
    TrainRow row;
    row.lease.row = {rows.size()};
    row.group = {spec.group};
    row.reward = spec.reward;
    row.response_ids.assign(spec.tokens, 1);
    row.oldest_step = spec.oldest_step;
    row.truncated = spec.truncated;
    rows.push_back(std::move(row));
  }
  return rows;
}

// Groups of one, three and two rows at step 9.
const std::vector<RowSpec> kBatch{{4, -2.0, 7, 8, true},  {6, 0.5, 1, 9, false},
                                  {6, 0.5, 2, 6, true},   {6, 0.5, 3, 9, true},
                                  {11, 3.0, 5, 8, false}, {11, 0.5, 12, 9, true}};

actors::TrainOutcome outcome_of_three_updates() {
  actors::TrainOutcome outcome;
  outcome.updates.resize(3);
  outcome.updates[0].sums["loss"] = -1.5;
  outcome.updates[1].sums["loss"] = 0.75;
  outcome.updates[2].sums["loss"] = 3.0;
  outcome.updates[1].sums["kl"] = -0.375;  // only one update has it
  const double norms[] = {0.5, 2.0, 1.25};
  const double rates[] = {0.25, 0.5, 0.125};
  const std::int64_t recalled[] = {10, 20, 60};
  for (std::size_t i = 0; i < 3; ++i) {
    outcome.updates[i].gradient_norm = norms[i];
    outcome.updates[i].learning_rate = rates[i];
    outcome.updates[i].recalled_tokens = recalled[i];
  }
  outcome.gap = {0.0625, 17};
  return outcome;
}

TEST(ReportedMetrics, OfABatchOfUnequalGroups) {
  const auto metrics = actors::batch_metrics(rows_of(kBatch), outcome_of_three_updates(), 9);
  // The sum of squares is 4 + 4 * 0.25 + 9 = 14.
  EXPECT_THAT(metrics, UnorderedElementsAre(
                           Pair("reward_mean", DoubleEq(0.5)),
                           Pair("reward_std", DoubleEq(std::sqrt(14.0 / 6.0 - 0.25))),
                           Pair("response_tokens_mean", 5.0), Pair("response_tokens", 30.0),
                           Pair("truncated_share", DoubleEq(4.0 / 6.0)),
                           Pair("staleness_mean", DoubleEq(5.0 / 6.0)), Pair("staleness_max", 3.0),
                           Pair("groups", 3.0), Pair("groups_without_signal", 2.0),
                           Pair("rows", 6.0), Pair("logprob_gap_max", 0.0625),
                           Pair("logprob_gap_tokens", 17.0), Pair("loss", DoubleEq(0.75)),
                           Pair("kl", DoubleEq(-0.125)), Pair("gradient_norm", DoubleEq(1.25)),
                           Pair("learning_rate", 0.125), Pair("recalled_tokens", DoubleEq(30.0))));
}

TEST(ReportedMetrics, OfThePartsOfARewardWithRowsThatLackOne) {
  std::vector<TrainRow> rows =
      rows_of({{0, 0, 1, 0, false}, {0, 0, 1, 0, false}, {1, 0, 1, 0, false}, {1, 0, 1, 0, false}});
  rows[0].reward_parts = {1.0, -3.0};
  rows[1].reward_parts = {2.0, 0.5};
  rows[2].reward_parts = {4.0};
  rows[3].reward_parts = {-1.0, 0.5};
  std::map<std::string, double> metrics;
  actors::add_part_metrics(rows, {"a", "b"}, metrics);
  EXPECT_THAT(metrics,
              UnorderedElementsAre(Pair("reward_a_mean", 1.5), Pair("reward_b_mean", -0.5)));
}

TEST(ReportedMetrics, OfTheStream) {
  actors::StreamStatus status;
  status.admitted = 101;
  status.trained = 53;
  status.dropped = 7;
  status.filtered = 11;
  status.failed = 13;
  status.live = 17;
  status.redelivered = 19;
  status.refused = 23;
  status.idle_seconds = {10.0, 20.5, 40.0, 80.0};
  std::map<std::string, double> metrics;
  actors::add_stream_metrics(status, {7.5, 19.0, 1.0, 2.0}, metrics);
  EXPECT_THAT(metrics, UnorderedElementsAre(
                           Pair("rollout_idle_seconds", 2.5), Pair("reward_idle_seconds", 1.5),
                           Pair("rows_admitted", 101.0), Pair("rows_trained", 53.0),
                           Pair("rows_dropped", 7.0), Pair("rows_filtered", 11.0),
                           Pair("rows_failed", 13.0), Pair("rows_redelivered", 19.0)));
}

TEST(ReportedMetrics, OfAnEvaluation) {
  // Three prompts with two responses each. A prompt passes with a reward of 1 or more.
  const std::vector<double> rewards{-0.5, 1.0, 0.999, 0.5, 2.0, -3.0};
  const actors::EvalScores scores = actors::eval_scores(rewards, 2);
  EXPECT_DOUBLE_EQ(scores.mean_at_k, 0.999 / 6.0);
  EXPECT_DOUBLE_EQ(scores.pass_at_k, 2.0 / 3.0);
  const actors::EvalScores single = actors::eval_scores(rewards, 1);
  EXPECT_DOUBLE_EQ(single.mean_at_k, 0.999 / 6.0);
  EXPECT_DOUBLE_EQ(single.pass_at_k, 2.0 / 6.0);
  EXPECT_EQ(actors::eval_scores({}, 2).mean_at_k, 0.0);
}

// -- the counts of the stream ---------------------------------------------------------------------

class StreamCountsTest : public StreamFixture {
protected:
  StreamCountsTest() { options_.max_deliveries = 2; }
};

TEST_F(StreamCountsTest, EveryRowIsCountedUnderTheWayItLeft) {
  for (std::uint64_t group = 0; group < 10; ++group) {
    put(group);
  }
  // Groups 0 to 2 are trained.
  auto rows = rows_of(SampleTask::kRollout, 6);
  ack(SampleTask::kRollout, rows, rollout_cells());
  ack(SampleTask::kReward, rows_of(SampleTask::kReward, 6), reward_cells());
  ack(SampleTask::kAdvantage, rows_of(SampleTask::kAdvantage, 3), advantage_cells());
  const auto trained = rows_of(SampleTask::kTrain, 3);
  ack(SampleTask::kTrain, trained, {});
  ack(SampleTask::kTrain, trained, {});  // six refused rows
  retire(3, storage::VerdictKind::kFilter);
  retire(4, storage::VerdictKind::kFilter);
  retire(9, storage::VerdictKind::kFilter);
  retire(5, storage::VerdictKind::kDrop);
  // The first row of group 6 fails at its second delivery, and the second row is dropped.
  for (const char* why : {"first", "second"}) {
    nack(SampleTask::kRollout, rows_of(SampleTask::kRollout, 1), why);
  }
  const actors::StreamStatus status = counts();
  EXPECT_EQ(status.admitted, 20U);
  EXPECT_EQ(status.trained, 6U);
  EXPECT_EQ(status.filtered, 6U);
  EXPECT_EQ(status.dropped, 3U);
  EXPECT_EQ(status.failed, 1U);
  EXPECT_EQ(status.live, 4U);
  EXPECT_EQ(status.redelivered, 2U);
  EXPECT_EQ(status.refused, 6U);
  EXPECT_EQ(status.filtered_groups, 3U);
  EXPECT_EQ(status.lost_groups, 2U);
  EXPECT_THAT(status.last_lost_reason, ::testing::HasSubstr("second"));
}

TEST_F(StreamCountsTest, BytesFollowTheRowsThatAreLive) {
  put(0);
  const std::uint64_t of_group = counts().bytes;
  EXPECT_GT(of_group, 0U);
  put(1);
  put(2);
  EXPECT_EQ(counts().bytes, 3 * of_group);
  ack(SampleTask::kRollout, rows_of(SampleTask::kRollout, 1), rollout_cells());
  std::uint64_t of_response = 0;
  for (const storage::ColumnValue& cell : rollout_cells()) {
    of_response += cell.value.size_bytes();
  }
  EXPECT_EQ(counts().bytes, 3 * of_group + of_response);
  retire(0, storage::VerdictKind::kDrop);
  EXPECT_EQ(counts().bytes, 2 * of_group);
  retire(2, storage::VerdictKind::kFilter);
  EXPECT_EQ(counts().bytes, of_group);
  retire(1, storage::VerdictKind::kFail);
  EXPECT_EQ(counts().bytes, 0U);
}

TEST_F(StreamCountsTest, IdleSecondsPassOnlyWhileNoRowOfTheTaskIsLeased) {
  put(0);
  counts();
  advance(3s);  // all tasks are idle
  const auto rows = rows_of(SampleTask::kRollout, 1);
  advance(5s);  // the other tasks are
  ack(SampleTask::kRollout, rows, rollout_cells());
  advance(11s);
  const auto scored = rows_of(SampleTask::kReward, 1);
  ASSERT_EQ(scored.size(), 1U);
  advance(17s);
  const actors::StreamStatus status = counts();
  EXPECT_EQ(status.idle_seconds.at(actors::task_id(SampleTask::kRollout).value), 3 + 11 + 17);
  EXPECT_EQ(status.idle_seconds.at(actors::task_id(SampleTask::kReward).value), 3 + 5 + 11);
  EXPECT_EQ(status.idle_seconds.at(actors::task_id(SampleTask::kTrain).value), 3 + 5 + 11 + 17);
}

// -- the trainer ----------------------------------------------------------------------------------

class TrainerMetricsTest : public TrainerFixture {
protected:
  void start(std::uint64_t eval_every = 0) {
    deps_.options.max_staleness = 1;
    deps_.options.eval_every = eval_every;
    deps_.reward_parts = {"number", "form"};
    start_trainer();
  }
  // Runs one step on rows sampled at `step`, which are ready after `wait`.
  void run_step(std::uint64_t step, Duration wait, Duration train_time) {
    advance(wait);
    std::vector<storage::LeasedRow> rows;
    for (std::uint64_t i = 0; i < 2; ++i) {
      storage::LeasedRow row = trainable_row(2 * step + i, 2 * step + i, step);
      for (storage::ColumnValue& cell : row.columns) {
        if (cell.column.value == static_cast<std::uint32_t>(actors::SampleColumn::kReward)) {
          cell = actors::make_cell(actors::SampleColumn::kReward,
                                   std::vector<double>{-1.0, 0.25 + static_cast<double>(i), -2.0});
        }
      }
      rows.push_back(std::move(row));
    }
    deliver(std::move(rows));
    advance(train_time);
    train();
  }
  double metric(const char* name) const { return recorder_->records.back().metrics.at(name); }
};

TEST_F(TrainerMetricsTest, EveryStepReportsItsOwnTimesAndCounts) {
  start();
  stream_->counts.idle_seconds = {1.5, 2.0, 0.0, 0.0};
  stream_->counts.trained = 2;
  run_step(0, 4s, 9s);
  EXPECT_EQ(metric("wait_seconds"), 4.0);
  EXPECT_EQ(metric("train_seconds"), 9.0);
  EXPECT_EQ(metric("rollout_idle_seconds"), 1.5);
  EXPECT_EQ(metric("reward_idle_seconds"), 2.0);
  EXPECT_EQ(metric("rows_trained"), 2.0);
  EXPECT_EQ(metric("reward_mean"), -1.0);
  EXPECT_EQ(metric("reward_number_mean"), 0.75);
  EXPECT_EQ(metric("reward_form_mean"), -2.0);
  for (std::uint64_t step = 1; step < 3; ++step) {
    stream_->counts.idle_seconds = {1.5 + 3.0 * static_cast<double>(step),
                                    2.0 + 0.25 * static_cast<double>(step), 0.0, 0.0};
    stream_->counts.trained = 2 * (step + 1);
    run_step(step, 2s, 5s);
    EXPECT_EQ(metric("wait_seconds"), 2.0);
    EXPECT_EQ(metric("train_seconds"), 5.0);
    EXPECT_EQ(metric("rollout_idle_seconds"), 3.0) << "since the step before";
    EXPECT_EQ(metric("reward_idle_seconds"), 0.25) << "since the step before";
    EXPECT_EQ(metric("rows_trained"), static_cast<double>(2 * (step + 1)));
    EXPECT_EQ(metric("reward_number_mean"), 0.75);
  }
}

TEST_F(TrainerMetricsTest, WaitingForAnEvaluationIsNotWaitingForABatch) {
  deps_.options.best.keep = true;  // the step waits for the evaluation
  start(1);
  run_step(0, 4s, 9s);
  advance(7s);
  take(evaluator_->requests).reply({1, 10, 4, 0.25, 0.5, 0, {}});
  drain();
  run_step(1, 2s, 5s);
  EXPECT_EQ(metric("wait_seconds"), 2.0);
  EXPECT_EQ(metric("train_seconds"), 5.0);
}

TEST_F(TrainerMetricsTest, StalenessIsCountedFromTheVersionThatTheBatchIsTrainedAt) {
  start();
  run_step(0, 1s, 1s);
  EXPECT_EQ(metric("staleness_max"), 0.0);
  advance(1s);
  deliver({trainable_row(2, 2, 0), trainable_row(3, 3, 1)});  // one step old, and fresh
  train();
  EXPECT_EQ(metric("staleness_max"), 1.0);
  EXPECT_EQ(metric("staleness_mean"), 0.5);
}

TEST_F(TrainerMetricsTest, AnEvaluationReportsEveryNumber) {
  start(/*eval_every=*/1);
  for (std::uint64_t step = 0; step < 2; ++step) {
    run_step(step, 1s, 1s);
    auto pending = take(evaluator_->requests);
    const double more = static_cast<double>(step);
    pending.reply(
        {pending.request, 10 + step, 4, 0.25 + more, 0.5 + more, 3 + step, {-0.75 - more, 0.125}});
    drain();
    EXPECT_EQ(recorder_->records.back().step, step + 1);
    EXPECT_THAT(recorder_->records.back().metrics,
                UnorderedElementsAre(
                    Pair("eval_mean_at_k", 0.25 + more), Pair("eval_pass_at_k", 0.5 + more),
                    Pair("eval_prompts", 10.0 + more), Pair("eval_samples", 4.0),
                    Pair("eval_failed", 3.0 + more), Pair("eval_number_mean", -0.75 - more),
                    Pair("eval_form_mean", 0.125)));
  }
}

// -- the supervised trainer -----------------------------------------------------------------------

// Reads sequences whose lengths grow with their draw.
class GrowingSequences final : public actors::SequenceReader {
public:
  Result<std::vector<engines::TrainSequence>> read(std::uint64_t draw,
                                                   std::uint32_t count) override {
    std::vector<engines::TrainSequence> sequences(count);
    for (engines::TrainSequence& sequence : sequences) {
      sequence.id = {draw};
      sequence.ids.assign(2 + draw++, 1);
      sequence.response_mask.assign(sequence.ids.size(), 1);
    }
    return sequences;
  }
};

class SupervisedMetricsTest : public ActorTest {
protected:
  void start() {
    std::vector<engines::TrainSequence> held_out(3);
    for (std::size_t i = 0; i < held_out.size(); ++i) {
      held_out[i].id = {i};
      held_out[i].ids = {1, 2};
      held_out[i].response_mask = {0, 1};
    }
    actors::SupervisedDeps deps;
    deps.total_steps = 9;
    deps.sequences_per_step = 2;
    deps.eval_every = 1;
    deps.eval_sequences =
        std::make_shared<const std::vector<engines::TrainSequence>>(std::move(held_out));
    deps.training = keep(spawn_fake_device(system(), device_));
    deps.recorder = keep(spawn_fake_recorder(system(), recorder_));
    deps.listener = keep(spawn_fake_run_listener(system(), std::make_shared<FakeRunListener>()));
    deps.reader = std::make_shared<GrowingSequences>();
    deps.commits = std::make_shared<MemoryCommits>();
    deps.read_port = &port();
    deps.commit_port = &port();
    caf::anon_send(keep(actors::spawn_supervised_trainer(system(), std::move(deps))),
                   atom::start_v);
    advance(0s);
  }
  void train(Duration time, double loss) {
    advance(time);
    auto pending = take(device_->jobs);
    actors::TrainOutcome outcome;
    outcome.snapshot.version = pending.request.publish_as;
    outcome.updates.resize(1);
    outcome.updates[0].sums = {{"loss", loss}, {"accuracy", -loss / 2}};
    outcome.updates[0].gradient_norm = 3.5 + loss;
    outcome.updates[0].learning_rate = 0.125;
    pending.reply(std::move(outcome));
    advance(0s);
  }
  // Replies to the two jobs of an evaluation.
  void evaluate(double first, std::uint64_t first_targets, double second,
                std::uint64_t second_targets) {
    for (const auto& [sum, targets] : {std::pair{first, first_targets}, {second, second_targets}}) {
      auto pending = take(device_->jobs);
      ASSERT_TRUE(pending.request.score_only);
      actors::TrainOutcome outcome;
      outcome.score = {sum, targets};
      pending.reply(std::move(outcome));
      advance(0s);
    }
  }
  const std::map<std::string, double>& last() const { return recorder_->records.back().metrics; }

  std::shared_ptr<FakeDevice> device_ = std::make_shared<FakeDevice>();
  std::shared_ptr<FakeRecorder> recorder_ = std::make_shared<FakeRecorder>();
};

TEST_F(SupervisedMetricsTest, EveryStepAndEveryEvaluationReportsItsOwnNumbers) {
  start();
  train(7s, 1.5);
  EXPECT_THAT(
      recorder_->records.at(0).metrics,
      UnorderedElementsAre(Pair("loss", 1.5), Pair("accuracy", -0.75), Pair("gradient_norm", 5.0),
                           Pair("learning_rate", 0.125), Pair("sequences", 2.0),
                           Pair("batch_tokens", 2.0 + 3.0), Pair("train_seconds", 7.0)));
  evaluate(-6.0, 5, -4.0, 3);
  EXPECT_THAT(last(), UnorderedElementsAre(Pair("eval_loss", DoubleEq(1.25)),
                                           Pair("eval_perplexity", DoubleEq(std::exp(1.25))),
                                           Pair("eval_tokens", 8.0), Pair("eval_sequences", 3.0)));
  train(2s, 0.5);
  const actors::StepRecord& second = recorder_->records.back();
  EXPECT_EQ(second.step, 2U);
  EXPECT_EQ(second.metrics.at("loss"), 0.5);
  EXPECT_EQ(second.metrics.at("batch_tokens"), 4.0 + 5.0);
  EXPECT_EQ(second.metrics.at("train_seconds"), 2.0);
  evaluate(-1.0, 3, -0.5, 1);
  EXPECT_THAT(last(), UnorderedElementsAre(Pair("eval_loss", DoubleEq(0.375)),
                                           Pair("eval_perplexity", DoubleEq(std::exp(0.375))),
                                           Pair("eval_tokens", 4.0), Pair("eval_sequences", 3.0)));
}

// -- lines of the record files --------------------------------------------------------------------

class LineFiles final : public actors::RecordFiles {
public:
  Result<actors::RecordMarks> append(const std::string& metrics,
                                     const std::string& samples) override {
    metrics_text += metrics;
    samples_text += samples;
    return actors::RecordMarks{metrics_text.size(), samples_text.size()};
  }
  std::string metrics_text;
  std::string samples_text;
};

class RecordLineTest : public ActorTest {
protected:
  // Records a step and returns the files.
  std::shared_ptr<LineFiles> record(const actors::StepRecord& step) {
    auto files = std::make_shared<LineFiles>();
    const auto decode = [](const std::vector<std::int32_t>& ids) {
      return ids.empty() ? std::string() : std::string("-2");
    };
    const auto recorder = keep(actors::spawn_recorder(system(), {files, {}, {}, decode, &port()}));
    ask<actors::RecordMarks>(recorder, atom::record_v, step);
    advance(0s);
    return files;
  }
};

TEST_F(RecordLineTest, HaveEveryFieldWithItsSign) {
  actors::SampleRecord sample;
  sample.id = {31};
  sample.group = {7};
  sample.prompt = "2-4=";
  sample.reference_answer = "minus two";
  sample.reward = -1.5;
  sample.reward_parts = {{"number", -2.0}, {"form", 0.25}};
  sample.advantage = -0.75F;
  sample.finish_reason = "length";
  sample.versions = {{{0, 2, 4}, 2}, {{0, 2, 5}, 1}};
  sample.response_ids = {9, 8, 3};
  sample.behavior_logprobs = {-0.5F, -0.25F, -2.5F};
  actors::SampleRecord other;
  other.id = {32};
  other.group = {8};
  other.reward = 2.5;
  other.advantage = 0.5F;
  other.finish_reason = "stop";
  const auto files = record({"train", 6, {{"kl", -0.125}, {"loss", 1.5}}, {sample, other}});
  EXPECT_EQ(files->metrics_text, R"({"kind":"train","step":6,"kl":-0.125,"loss":1.5})"
                                 "\n");
  EXPECT_EQ(files->samples_text,
            R"({"step":6,"sample":31,"group":7,"prompt":"2-4=","response":"-2",)"
            R"("answer":"minus two","reward":-1.5,"rewards":{"form":0.25,"number":-2.0},)"
            R"("advantage":-0.75,"finish_reason":"length",)"
            R"("versions":[{"step":4,"tokens":2},{"step":5,"tokens":1}],)"
            R"("response_ids":[9,8,3],"behavior_logprobs":[-0.5,-0.25,-2.5]})"
            "\n"
            R"({"step":6,"sample":32,"group":8,"prompt":"","response":"","answer":"",)"
            R"("reward":2.5,"advantage":0.5,"finish_reason":"stop","versions":[],)"
            R"("response_ids":[],"behavior_logprobs":[]})"
            "\n");
}

// -- event files ----------------------------------------------------------------------------------

TEST(ReportedMetrics, AnEventHasTheValuesOfItsLine) {
  const std::string line =
      R"({"kind":"train","step":7,"kl":-0.5,"loss":1.25,"steps_left":12,"gap":null})"
      "\n";
  const std::vector<storage::EventScalar> scalars{
      {"train/kl", -0.5F}, {"train/loss", 1.25F}, {"train/steps_left", 12.0F}};
  EXPECT_EQ(actors::event_records(line + line, 3.5),
            storage::event_record({3.5, 7}, scalars) + storage::event_record({3.5, 7}, scalars));
}

}  // namespace
}  // namespace tidemill::test
