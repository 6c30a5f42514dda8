// SPDX-License-Identifier: Apache-2.0
// Data that is not uniform: failures between successes, groups of unequal size with gaps between
// their ids, rows of several versions, and limits that are met exactly.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/advantage/spawn.hpp"
#include "actors/data/dataset_sequences.hpp"
#include "actors/recorder/spawn.hpp"
#include "actors/reward/spawn.hpp"
#include "actors/rollout/spawn.hpp"
#include "actors/stream/spawn.hpp"
#include "actors/trainer/batch.hpp"
#include "tests/actors/sample_rows.hpp"
#include "tests/support/actor_test.hpp"
#include "tests/support/fake_actors.hpp"
#include "tests/support/fake_reward_engine.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tidemill::test {
namespace {

using actors::LeaseReply;
using actors::SampleColumn;
using actors::SampleTask;
using actors::TrainRequest;
using actors::TrainRow;
using storage::Settlement;
using storage::VerdictKind;
using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

LeaseReply reply_of(std::vector<storage::LeasedRow> rows) {
  LeaseReply reply;
  reply.rows = std::move(rows);
  reply.lease_time = 60s;
  return reply;
}

// -- the reward worker ----------------------------------------------------------------------------

class FailingRewardsTest : public ActorTest {
protected:
  void SetUp() override {
    actors::RewardWorkerDeps deps;
    deps.stream = keep(spawn_fake_stream(system(), stream_));
    deps.max_unscored = 3;
    deps.engine = engine_;
    deps.decode = [](const std::vector<std::int32_t>&) { return std::string(); };
    deps.port = &port();
    const auto worker = keep(actors::spawn_reward_worker(system(), std::move(deps)));
    exit_ = exit_of(worker);
  }
  // Has the worker score one sample for each character: "+" gets a reward, "-" does not.
  void score(const std::string& outcomes) {
    std::vector<storage::LeasedRow> rows;
    for (const char outcome : outcomes) {
      if (outcome == '-') {
        engine_->error_of[next_] = "no number";
      } else {
        engine_->reward_of[next_] = static_cast<double>(next_);
      }
      rows.push_back(trainable_row(next_++, 0));
    }
    take(stream_->leases).reply(reply_of(std::move(rows)));
    drain();
    advance(0s);
  }

  std::shared_ptr<FakeStream> stream_ = std::make_shared<FakeStream>();
  std::shared_ptr<FakeRewardEngine> engine_ = std::make_shared<FakeRewardEngine>();
  std::shared_ptr<std::optional<Status>> exit_;
  std::uint64_t next_ = 0;
};

TEST_F(FailingRewardsTest, AnySuccessResetsTheCountOfFailures) {
  score("--+--");
  score("+--");
  score("+-");
  score("-+-");
  EXPECT_FALSE(exit_->has_value());
  score("-");
  EXPECT_FALSE(exit_->has_value()) << "two in a row";
  score("-");
  ASSERT_TRUE(exit_->has_value()) << "three in a row";
  EXPECT_EQ((*exit_)->code(), Errc::kInvalidArgument);
  EXPECT_THAT((*exit_)->message(), HasSubstr("3 samples in a row without a reward"));
}

TEST_F(FailingRewardsTest, EveryRowGetsItsOwnRewardWhateverFailsBeforeIt) {
  score("+-+--+");
  ASSERT_EQ(stream_->acks.size(), 1U);
  std::vector<std::pair<std::uint64_t, double>> scored;
  for (const storage::HeldRow& row : stream_->acks[0].rows) {
    storage::LeasedRow read;
    read.columns = row.columns;
    scored.emplace_back(row.lease.row.value,
                        actors::read_cell<double>(read, SampleColumn::kReward).value().at(0));
  }
  EXPECT_THAT(scored, ElementsAre(Pair(0, 0.0), Pair(2, 2.0), Pair(5, 5.0)));
  ASSERT_EQ(stream_->nacks.size(), 1U);
  EXPECT_THAT(
      leases_of(stream_->nacks[0].rows),
      ElementsAre(storage::Lease{{1}, 0, 1}, storage::Lease{{3}, 0, 1}, storage::Lease{{4}, 0, 1}));
}

// After a restart, an engine that has scored may score again; one that never has would not.
TEST_F(FailingRewardsTest, AnEngineThatGivesUpEndsTheWorkerForGoodOnlyIfItHasNeverScored) {
  engine_->failure = {Errc::kUnavailable, "the program died"};
  score("+");
  ASSERT_TRUE(exit_->has_value());
  EXPECT_EQ((*exit_)->code(), Errc::kInvalidArgument);

  engine_->failure = {};
  stream_->leases.clear();
  SetUp();
  score("+");
  engine_->failure = {Errc::kUnavailable, "the program died"};
  score("+");
  ASSERT_TRUE(exit_->has_value());
  EXPECT_EQ((*exit_)->code(), Errc::kUnavailable);
}

// -- the rollout worker ---------------------------------------------------------------------------

class MixedResponsesTest : public ActorTest {
protected:
  void SetUp() override {
    actors::RolloutWorkerDeps deps;
    deps.stream = keep(spawn_fake_stream(system(), stream_));
    deps.serving = keep(spawn_fake_device(system(), device_));
    deps.seed = 11;
    keep(actors::spawn_rollout_worker(system(), std::move(deps)));
    drain();
  }

  std::shared_ptr<FakeStream> stream_ = std::make_shared<FakeStream>();
  std::shared_ptr<FakeDevice> device_ = std::make_shared<FakeDevice>();
};

TEST_F(MixedResponsesTest, AResponseIsAsOldAsItsOldestTokenAnywhere) {
  const std::vector<std::vector<std::uint64_t>> responses{{4, 5, 6}, {6, 4, 5}, {5, 4}, {7}};
  std::vector<storage::LeasedRow> rows;
  for (std::uint64_t id = 0; id < responses.size(); ++id) {
    rows.push_back(trainable_row(id, 0));
  }
  take(stream_->leases).reply(reply_of(std::move(rows)));
  drain();
  for (const std::vector<std::uint64_t>& steps : responses) {
    auto pending = take(device_->generations);
    engines::RolloutResult result;
    result.id = pending.request.id;
    result.finish_reason = engines::FinishReason::kStop;
    for (const std::uint64_t step : steps) {
      result.response_ids.push_back(1);
      result.behavior_logprobs.push_back(-1.0F);
      result.versions.push_back({{0, 0, step}, 1});
    }
    pending.reply(std::move(result));
    drain();
  }
  std::vector<std::uint64_t> oldest;
  for (const actors::AckRequest& ack : stream_->acks) {
    oldest.push_back(ack.rows.at(0).facts.oldest_step);
    EXPECT_EQ(ack.rows[0].facts.tokens, responses[oldest.size() - 1].size());
  }
  EXPECT_THAT(oldest, ElementsAre(4, 4, 4, 7));
}

// Random numbers depend on the sample alone, not on how often it was delivered.
TEST_F(MixedResponsesTest, ARowThatIsDeliveredAgainIsSampledAsBefore) {
  for (std::uint32_t deliveries = 0; deliveries < 3; ++deliveries) {
    storage::LeasedRow row = trainable_row(3, 0);
    row.deliveries = deliveries;
    row.lease.generation = 1 + deliveries;
    take(stream_->leases).reply(reply_of({row}));
    drain();
    EXPECT_EQ(take(device_->generations).request.seed, 11U);
  }
}

// -- the advantage worker -------------------------------------------------------------------------

TEST_F(FailingRewardsTest, GroupsOfOneLeaseAreDecidedOneByOne) {
  const auto stream = std::make_shared<FakeStream>();
  actors::AdvantageWorkerDeps deps;
  deps.stream = keep(spawn_fake_stream(system(), stream));
  deps.decide = [](std::span<const actors::GroupMember> group) -> Result<actors::GroupDecision> {
    if (group.front().id.value == 20) {
      return invalid_argument("cannot be decided");
    }
    actors::GroupDecision decision;
    decision.filtered = group.size() == 2 ? "no signal" : "";
    for (const actors::GroupMember& member : group) {
      decision.advantages.push_back(static_cast<float>(member.id.value) - 100.0F);
    }
    return decision;
  };
  keep(actors::spawn_advantage_worker(system(), std::move(deps)));
  drain();
  // Groups of two, three, one, two and one rows, with gaps between their ids.
  take(stream->leases)
      .reply(reply_of({trainable_row(0, 2), trainable_row(1, 2), trainable_row(10, 5),
                       trainable_row(12, 5), trainable_row(14, 5), trainable_row(20, 6),
                       trainable_row(30, 9), trainable_row(31, 9), trainable_row(40, 11)}));
  drain();
  ASSERT_EQ(stream->acks.size(), 1U);
  std::vector<std::pair<std::uint64_t, float>> decided;
  for (const storage::HeldRow& row : stream->acks[0].rows) {
    storage::LeasedRow read;
    read.columns = row.columns;
    decided.emplace_back(row.lease.row.value,
                         actors::read_cell<float>(read, SampleColumn::kAdvantage).value().at(0));
  }
  EXPECT_THAT(decided,
              ElementsAre(Pair(10, -90.0F), Pair(12, -88.0F), Pair(14, -86.0F), Pair(40, -60.0F)));
  std::vector<std::pair<std::uint64_t, VerdictKind>> verdicts;
  for (const actors::GroupVerdict& verdict : stream->verdicts) {
    verdicts.emplace_back(verdict.group.value, verdict.verdict.kind);
  }
  EXPECT_THAT(verdicts, ElementsAre(Pair(2, VerdictKind::kFilter), Pair(6, VerdictKind::kFail),
                                    Pair(9, VerdictKind::kFilter)));
  EXPECT_EQ(stream->leases.size(), 1U);
}

// -- batches --------------------------------------------------------------------------------------

// Returns a row with one token for each of `steps`.
TrainRow row_with_steps(std::uint64_t id, std::uint64_t group,
                        const std::vector<std::uint64_t>& steps) {
  storage::LeasedRow leased = trainable_row(id, group);
  std::vector<engines::VersionSpan> spans;
  for (const std::uint64_t step : steps) {
    spans.push_back({{0, 0, step}, 1});
  }
  for (storage::ColumnValue& cell : leased.columns) {
    if (cell.column.value == static_cast<std::uint32_t>(SampleColumn::kVersions)) {
      cell = actors::make_versions_cell(spans);
    }
  }
  return actors::read_train_row(leased).value();
}

std::deque<engines::Snapshot> snapshots_between(std::uint64_t first, std::uint64_t last) {
  std::deque<engines::Snapshot> recent;
  for (std::uint64_t step = first; step <= last; ++step) {
    recent.emplace_back();
    recent.back().version.step = step;
  }
  return recent;
}

std::vector<std::uint64_t> ids_of(const std::vector<engines::TrainSequence>& sequences) {
  std::vector<std::uint64_t> ids;
  for (const engines::TrainSequence& sequence : sequences) {
    ids.push_back(sequence.id.value);
  }
  return ids;
}

TEST(IrregularBatch, MinibatchesHaveTheSameNumberOfGroupsWhateverTheirSizesAndIds) {
  actors::TrainerOptions options;
  options.minibatches = 2;
  const std::vector<TrainRow> rows{row_with_steps(9, 3, {4}),   row_with_steps(21, 7, {4}),
                                   row_with_steps(22, 7, {4}),  row_with_steps(23, 7, {4}),
                                   row_with_steps(60, 20, {4}), row_with_steps(99, 33, {4}),
                                   row_with_steps(98, 33, {4})};
  const TrainRequest job =
      actors::make_train_request(rows, options, {0, 0, 4}, snapshots_between(4, 4));
  ASSERT_EQ(job.minibatches.size(), 2U);
  EXPECT_THAT(ids_of(job.minibatches[0].sequences), ElementsAre(9, 21, 22, 23));
  EXPECT_THAT(ids_of(job.minibatches[1].sequences), ElementsAre(60, 99, 98));
}

TEST(IrregularBatch, OnlyRowsOfTheCurrentVersionAloneAreOnPolicy) {
  const std::vector<TrainRow> rows{row_with_steps(0, 0, {3, 4}), row_with_steps(1, 0, {4}),
                                   row_with_steps(2, 1, {3}), row_with_steps(3, 1, {4})};
  const TrainRequest job = actors::make_train_request(rows, {}, {0, 0, 4}, snapshots_between(3, 4));
  EXPECT_THAT(job.minibatches[0].on_policy, ElementsAre(SampleId{1}, SampleId{3}));
  EXPECT_THAT(job.probe, IsEmpty());
}

TEST(IrregularBatch, TheProbeHasRowsOfOneKnownVersion) {
  const std::vector<TrainRow> rows{row_with_steps(0, 0, {2, 3}), row_with_steps(1, 0, {1}),
                                   row_with_steps(2, 1, {3}),    row_with_steps(3, 1, {2}),
                                   row_with_steps(4, 2, {3}),    row_with_steps(5, 2, {3})};
  const TrainRequest job = actors::make_train_request(rows, {}, {0, 0, 4}, snapshots_between(2, 4));
  EXPECT_THAT(ids_of(job.probe), ElementsAre(2, 4));
  EXPECT_EQ(job.probe_weights.version.step, 3U);
}

TEST(IrregularBatch, ARowOfSeveralVersionsIsAsOldAsItsOldestTokenAnywhere) {
  EXPECT_EQ(row_with_steps(0, 0, {5, 3}).oldest_step, 3U);
  EXPECT_EQ(row_with_steps(0, 0, {3, 5}).oldest_step, 3U);
  EXPECT_EQ(row_with_steps(0, 0, {6, 4, 5}).oldest_step, 4U);
}

// -- sequences of a supervised run ----------------------------------------------------------------

class IrregularSequencesTest : public ::testing::Test {
protected:
  std::shared_ptr<actors::SequenceReader> reader(const std::string& lines,
                                                 std::uint64_t epochs = 1) {
    const std::string path = (directory_.path() / "train.jsonl").string();
    std::ofstream(path, std::ios::binary) << lines;
    storage::DatasetOptions data;
    data.paths = {path};
    data.order = storage::RowOrder::kFileOrder;
    data.epochs = epochs;
    actors::DatasetSequenceOptions options;
    options.max_tokens = 4;
    options.on_long = actors::OnLongPrompt::kSkip;
    options.vocab_size = 300;
    options.log = [this](const std::string& line) { log_.push_back(line); };
    options.on_row = [this](std::int64_t rows, const storage::RowLocation& /*location*/) {
      model_rows_.push_back(rows);
    };
    auto made = actors::make_dataset_sequence_reader(storage::SupervisedDataset::open(data).value(),
                                                     std::move(options));
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return std::move(made).value();
  }
  static std::string line(const std::string& ids, const std::string& mask) {
    return R"({"input_ids": [)" + ids + R"(], "loss_mask": [)" + mask + "]}\n";
  }

  TemporaryDirectory directory_;
  std::vector<std::string> log_;
  std::vector<std::int64_t> model_rows_;
};

TEST_F(IrregularSequencesTest, EveryReadNumbersItsSequencesByDraw) {
  const std::string lines =
      line("1, 2", "0, 1") + line("3, 4, 5, 6, 7", "0, 1, 1, 1, 1") + line("8, 9, 10", "0, 1, 1");
  const auto sequences = reader(lines, /*epochs=*/3);
  std::vector<std::pair<std::uint64_t, std::size_t>> read;  // ids and lengths
  for (const std::uint64_t draw : {0U, 2U, 4U, 6U, 8U}) {
    for (const engines::TrainSequence& sequence : sequences->read(draw, 2).value()) {
      read.emplace_back(sequence.id.value, sequence.ids.size());
    }
  }
  // The second of each three is too long and masked.
  EXPECT_THAT(read, ElementsAre(Pair(0, 2), Pair(1, 1), Pair(2, 3), Pair(3, 2), Pair(4, 1),
                                Pair(5, 3), Pair(6, 2), Pair(7, 1), Pair(8, 3)));
}

TEST_F(IrregularSequencesTest, ASequenceOfExactlyTheLimitIsKeptAndTheFirstLongerOneIsNamed) {
  const auto sequences =
      reader(line("1, 2, 3, 4", "0, 1, 1, 1") + line("1, 2, 3, 4, 5", "0, 1, 1, 1, 1") +
             line("1, 2, 3, 4, 5, 6", "0, 1, 1, 1, 1, 1"));
  EXPECT_THAT(sequences->read(0, 1).value().at(0).response_mask, ElementsAre(0, 1, 1, 1));
  ASSERT_EQ(log_.size(), 1U);
  EXPECT_THAT(log_[0], HasSubstr("2 of 3 sequences"));
  EXPECT_THAT(log_[0], ::testing::EndsWith("train.jsonl:2"));
}

// The row of a token predicts the next one, so none is needed from the last target on.
TEST_F(IrregularSequencesTest, RowsOfTheModelEndBeforeTheLastTarget) {
  reader(line("1, 2, 3, 4", "0, 1, 1, 1") + line("1, 2, 3, 4", "0, 1, 0, 0") +
         line("1, 2", "0, 0") + line("1", "0"));
  EXPECT_THAT(model_rows_, ElementsAre(3, 1, 0, 0));
}

// -- limits that are met exactly ------------------------------------------------------------------

class LimitTest : public ActorTest {
protected:
  void start() {
    stream_ = keep(actors::spawn_stream(
        system(),
        {options_, keep(spawn_fake_keeper(system(), std::make_shared<FakeKeeper>())), {}, {}}));
  }
  Reply<Settlement> put(std::uint64_t group, std::uint32_t size) {
    auto reply = ask<Settlement>(stream_, atom::put_v, sample_group(group, size));
    drain();
    return reply;
  }
  Reply<LeaseReply> lease(SampleTask task, std::uint32_t units, std::uint32_t min_units) {
    auto request = sample_lease(task, units, 1h);
    request.min_units = min_units;
    auto reply = ask<LeaseReply>(stream_, atom::lease_v, request);
    drain();
    return reply;
  }
  void ack(SampleTask task, const Reply<LeaseReply>& leased,
           const std::vector<storage::ColumnValue>& cells, std::uint64_t oldest_step) {
    ASSERT_TRUE(leased.ok());
    auto request = ack_of(task, leased.value().rows, cells);
    for (storage::HeldRow& row : request.rows) {
      row.facts.oldest_step = oldest_step;
    }
    ask<Settlement>(stream_, atom::ack_v, request);
    drain();
  }
  void publish(std::uint64_t step) {
    caf::anon_send(stream_, atom::publish_v, step);
    drain();
  }
  actors::StreamStatus counts() {
    const auto reply = ask<actors::StreamStatus>(stream_, atom::status_v);
    drain();
    return reply.value();
  }

  actors::SampleStreamOptions options_;
  actors::StreamActor stream_;
};

TEST_F(LimitTest, TheStreamHoldsExactlyTheGroupsThatItsBytesAllow) {
  options_.group_size = 2;
  options_.group_bytes = 4096;
  options_.limit_bytes = 3 * 4096;
  start();
  for (std::uint64_t group = 0; group < 3; ++group) {
    EXPECT_TRUE(put(group, 2).ok()) << group;
  }
  const auto waiting = put(3, 2);
  EXPECT_FALSE(waiting.arrived());
  // Each group that leaves makes room for exactly one.
  const auto behind = put(4, 2);
  ask<Settlement>(stream_, atom::retire_v, actors::GroupVerdict{{1}, {VerdictKind::kDrop, "why"}});
  drain();
  EXPECT_TRUE(waiting.ok());
  EXPECT_FALSE(behind.arrived());
  EXPECT_EQ(counts().live, 6U);
}

TEST_F(LimitTest, RowsOfExactlyTheLargestStalenessAreTrainedAndOlderOnesAreDropped) {
  options_.group_size = 1;
  options_.max_staleness = 2;
  start();
  for (std::uint64_t group = 0; group < 2; ++group) {
    ASSERT_TRUE(put(group, 1).ok());
    ack(SampleTask::kRollout, lease(SampleTask::kRollout, 1, 1), rollout_cells(), 3 + group);
    ack(SampleTask::kReward, lease(SampleTask::kReward, 1, 1), reward_cells(),
        storage::RowFacts{}.oldest_step);
    ack(SampleTask::kAdvantage, lease(SampleTask::kAdvantage, 1, 1), advantage_cells(),
        storage::RowFacts{}.oldest_step);
  }
  publish(5);
  const auto both = lease(SampleTask::kTrain, 2, 2);
  ASSERT_TRUE(both.ok()) << "step 3 at version 5";
  EXPECT_EQ(both.value().rows.size(), 2U);
  caf::anon_send(stream_, atom::release_v, std::string("consumer-0"));
  publish(6);
  const auto fresh = lease(SampleTask::kTrain, 2, 1);
  ASSERT_TRUE(fresh.ok());
  ASSERT_EQ(fresh.value().rows.size(), 1U);
  EXPECT_EQ(fresh.value().rows[0].row.id, SampleId{1});
  EXPECT_EQ(counts().dropped, 1U);
}

TEST_F(LimitTest, ABatchMayTakeTheLastGroups) {
  options_.group_size = 1;
  start();
  for (std::uint64_t group = 0; group < 2; ++group) {
    ASSERT_TRUE(put(group, 1).ok());
  }
  caf::anon_send(stream_, atom::finish_v);
  drain();
  const auto exactly = lease(SampleTask::kTrain, 2, 2);
  EXPECT_FALSE(exactly.arrived()) << "two groups are left";
  const auto more = lease(SampleTask::kTrain, 3, 3);
  ASSERT_TRUE(more.arrived());
  EXPECT_TRUE(more.value().ended);
}

// The first consumer that asks is served first, however often others ask again.
TEST_F(LimitTest, ConsumersAreServedInTheOrderOfTheirRequests) {
  options_.group_size = 1;
  start();
  std::vector<Reply<LeaseReply>> replies;
  for (int i = 0; i < 3; ++i) {
    replies.push_back(lease(SampleTask::kRollout, 1, 1));
  }
  for (std::uint64_t group = 0; group < 3; ++group) {
    ASSERT_TRUE(put(group, 1).ok());
    for (std::uint64_t i = 0; i < 3; ++i) {
      EXPECT_EQ(replies[i].arrived(), i <= group) << group << " " << i;
    }
    EXPECT_EQ(replies[group].value().rows.at(0).row.id, SampleId{group});
  }
}

class FileLimitTest : public ::testing::Test {
protected:
  static std::size_t open_files() {
    const std::filesystem::directory_iterator begin("/proc/self/fd");
    return static_cast<std::size_t>(std::distance(begin, std::filesystem::directory_iterator()));
  }
  auto open(std::uint64_t max_samples_bytes, actors::RecordMarks marks = {}) {
    return actors::open_record_files({directory_.path()}, marks, max_samples_bytes);
  }
  TemporaryDirectory directory_;
};

TEST_F(FileLimitTest, SamplesThatFillTheFileExactlyAreKept) {
  const auto files = open(8).value();
  EXPECT_EQ(files->append("", "aaa\nbbb\n").value().samples_bytes, 8U);
  EXPECT_EQ(files->append("", "c\n").value().samples_bytes, 8U);
  const auto more = open(10, {0, 8}).value();
  EXPECT_EQ(more->append("", "dd\nc\n").value().samples_bytes, 10U);
}

TEST_F(FileLimitTest, RecordFilesHoldThreeDescriptorsAndCloseThem) {
  const std::size_t before = open_files();
  for (int i = 0; i < 3; ++i) {
    const auto files = open(1000).value();
    EXPECT_EQ(open_files(), before + 3);
    for (int line = 0; line < 5; ++line) {
      ASSERT_TRUE(files->append("{}\n", "{}\n").ok());
    }
    EXPECT_EQ(open_files(), before + 3);
  }
  EXPECT_EQ(open_files(), before);
  EXPECT_FALSE(open(1000, {1'000'000, 0}).ok());
  EXPECT_EQ(open_files(), before) << "an open that fails";
}

}  // namespace
}  // namespace tidemill::test
