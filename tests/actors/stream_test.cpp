// SPDX-License-Identifier: Apache-2.0
// The contract of actors/stream/handles.hpp, handler by handler.
#include <chrono>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/stream/spawn.hpp"
#include "tests/actors/sample_rows.hpp"
#include "tests/support/actor_test.hpp"
#include "tests/support/fake_actors.hpp"

namespace tidemill::test {
namespace {

using actors::LeaseReply;
using actors::SampleTask;
using actors::StreamStatus;
using storage::Settlement;
using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr std::uint32_t kGroupSize = 2;

class StreamTest : public ActorTest {
protected:
  void SetUp() override {
    keeper_handle_ = keep(spawn_fake_keeper(system(), keeper_));
    options_.group_size = kGroupSize;
    options_.lease = 60s;
  }
  // The stream that the tests speak to; each test starts its own.
  void start(actors::StreamImage image = {}) {
    stream_ =
        keep(actors::spawn_stream(system(), {options_, keeper_handle_, std::move(image),
                                             [this](const Status& status, const StreamStatus&) {
                                               EXPECT_TRUE(status.ok()) << status.message();
                                               ++checks_;
                                             }}));
  }
  Asked<Settlement> put(std::uint64_t group) {
    auto asked = ask<Settlement>(stream_, atom::put_v, sample_group(group, kGroupSize));
    drain();
    return asked;
  }
  Asked<LeaseReply> lease(const actors::LeaseRequest& request) {
    auto asked = ask<LeaseReply>(stream_, atom::lease_v, request);
    drain();
    return asked;
  }
  // Leases what is ready now.
  std::vector<storage::LeasedRow> rows_of(SampleTask task, std::uint32_t units = 100) {
    const auto asked = lease(sample_lease(task, units));
    advance(0s);
    EXPECT_TRUE(asked.ok()) << asked.status().to_string();
    return asked.ok() ? asked.value().rows : std::vector<storage::LeasedRow>{};
  }
  Settlement ack(SampleTask task, const std::vector<storage::LeasedRow>& rows,
                 const std::vector<storage::ColumnValue>& cells) {
    const auto asked = ask<Settlement>(stream_, atom::ack_v, completion_of(task, rows, cells));
    drain();
    EXPECT_TRUE(asked.ok()) << asked.status().to_string();
    return asked.value();
  }
  Settlement nack(SampleTask task, const std::vector<storage::LeasedRow>& rows) {
    const auto asked = ask<Settlement>(stream_, atom::nack_v, return_of(task, rows, "broken"));
    drain();
    EXPECT_TRUE(asked.ok()) << asked.status().to_string();
    return asked.value();
  }
  Settlement retire(std::uint64_t group, storage::VerdictKind kind) {
    const auto asked =
        ask<Settlement>(stream_, atom::retire_v, actors::GroupVerdict{{group}, {kind, "why"}});
    drain();
    EXPECT_TRUE(asked.ok()) << asked.status().to_string();
    return asked.value();
  }
  StreamStatus counts() {
    const auto asked = ask<StreamStatus>(stream_, atom::status_v);
    drain();
    EXPECT_TRUE(asked.ok());
    return asked.value();
  }
  // All places that the keeper was told of.
  storage::PlaceChanges told() const {
    storage::PlaceChanges sum;
    for (const storage::PlaceChanges& change : keeper_->changes) {
      sum.accepted += change.accepted;
      sum.aborted += change.aborted;
      sum.rejected += change.rejected;
      sum.forfeited += change.forfeited;
    }
    return sum;
  }
  // Takes all ready rows as far as training.
  void prepare() {
    ack(SampleTask::kRollout, rows_of(SampleTask::kRollout), rollout_cells());
    ack(SampleTask::kReward, rows_of(SampleTask::kReward), reward_cells());
    ack(SampleTask::kAdvantage, rows_of(SampleTask::kAdvantage), advantage_cells());
  }

  std::shared_ptr<FakeKeeper> keeper_ = std::make_shared<FakeKeeper>();
  actors::KeeperActor keeper_handle_;
  actors::SampleStreamOptions options_;
  actors::StreamActor stream_;
  int checks_ = 0;
};

// -- put ------------------------------------------------------------------------------------------

TEST_F(StreamTest, PutAnswersOnceTheGroupIsIn) {
  start();
  const auto asked = put(0);
  ASSERT_TRUE(asked.ok());
  EXPECT_EQ(asked.value().done, (std::vector<SampleId>{{0}, {1}}));
  EXPECT_EQ(counts().live, kGroupSize);
  EXPECT_GT(checks_, 0);
}

TEST_F(StreamTest, PutRefusesWhatIsNoWholeGroupAndKeepsNothingOfIt) {
  start();
  actors::NewGroup empty;
  actors::NewGroup half = sample_group(0, kGroupSize);
  half.rows.pop_back();
  actors::NewGroup mixed = sample_group(0, kGroupSize);
  mixed.rows.back().row.group = {1};
  actors::NewGroup twice = sample_group(0, kGroupSize);
  twice.rows.back().row.index_in_group = 0;
  actors::NewGroup column = sample_group(0, kGroupSize);
  column.rows.back().columns.push_back(column.rows.back().columns.front());
  for (const actors::NewGroup& group : {empty, half, mixed, twice, column}) {
    const auto asked = ask<Settlement>(stream_, atom::put_v, group);
    drain();
    EXPECT_EQ(asked.status().code(), Errc::kInvalidArgument) << asked.status().to_string();
    EXPECT_EQ(counts().live, 0U);
  }
}

TEST_F(StreamTest, PutWaitsForBytesAndGoesOnWhenAGroupLeaves) {
  options_.limit_bytes = 400;
  options_.group_bytes = 400;
  start();
  std::uint64_t groups = 0;
  Asked<Settlement> last = put(groups++);
  while (last.ok() && groups < 100) {
    last = put(groups++);
  }
  ASSERT_FALSE(last.answered()) << "the limit holds no group back";
  const Asked<Settlement> behind = put(groups);
  EXPECT_FALSE(behind.answered());
  advance(10min);
  EXPECT_FALSE(last.answered());
  retire(0, storage::VerdictKind::kDrop);
  EXPECT_TRUE(last.ok());  // in the order of arrival
  EXPECT_LE(counts().bytes, options_.limit_bytes + options_.group_bytes);
}

// -- lease ----------------------------------------------------------------------------------------

TEST_F(StreamTest, LeaseAnswersWhenEnoughIsReady) {
  start();
  auto request = sample_lease(SampleTask::kRollout, 4, 10s);
  request.min_units = 3;
  const auto asked = lease(request);
  put(0);
  EXPECT_FALSE(asked.answered());
  put(1);
  ASSERT_TRUE(asked.ok());
  EXPECT_EQ(asked.value().rows.size(), 4U);
  EXPECT_EQ(asked.value().lease_time, Duration(60s));
  EXPECT_EQ(asked.count(), 1);
}

TEST_F(StreamTest, LeaseAnswersEmptyHandedWithTheReasonAfterItsWait) {
  start();
  put(0);
  const auto asked = lease(sample_lease(SampleTask::kReward, 4, 10s));
  advance(9s);
  EXPECT_FALSE(asked.answered());
  advance(1s);
  ASSERT_TRUE(asked.ok());
  EXPECT_TRUE(asked.value().rows.empty());
  EXPECT_FALSE(asked.value().ended);
  EXPECT_FALSE(asked.value().waiting_for.empty());
}

TEST_F(StreamTest, LeaseSaysThatATaskHasEnded) {
  start();
  put(0);
  const auto rollout = lease(sample_lease(SampleTask::kRollout, 1, 1h));
  const auto train = lease(sample_lease(SampleTask::kTrain, 1, 1h));
  caf::anon_send(stream_, atom::finish_v);
  drain();
  EXPECT_FALSE(train.answered());  // the group may still be trained
  retire(0, storage::VerdictKind::kDrop);
  ASSERT_TRUE(train.ok());
  EXPECT_TRUE(train.value().ended);
  EXPECT_TRUE(rollout.ok());
}

TEST_F(StreamTest, TrainingEndsWhenTheGroupsLeftAreNoBatch) {
  start();
  put(0);
  auto request = sample_lease(SampleTask::kTrain, 2, 1h);
  request.min_units = 2;
  const auto asked = lease(request);
  EXPECT_FALSE(asked.answered());
  caf::anon_send(stream_, atom::finish_v);
  drain();
  ASSERT_TRUE(asked.ok());
  EXPECT_TRUE(asked.value().ended);
}

TEST_F(StreamTest, LeaseRefusesWhatCanNeverBeLeased) {
  start();
  put(0);
  for (const auto& request : {sample_lease(SampleTask::kRollout, 0, 1h), [] {
                                auto unknown = sample_lease(SampleTask::kRollout, 1, 1h);
                                unknown.task = {99};
                                return unknown;
                              }()}) {
    const auto asked = lease(request);
    EXPECT_EQ(asked.status().code(), Errc::kInvalidArgument) << asked.status().to_string();
  }
}

TEST_F(StreamTest, LeaseBelowAGroupTakesAllThatIsLeftOfIt) {
  start();
  put(0);
  prepare();
  auto request = sample_lease(SampleTask::kTrain, 2, 1h);
  request.before_group = 2;
  const auto asked = lease(request);
  EXPECT_FALSE(asked.answered());  // group 1 has not been admitted yet
  put(1);
  EXPECT_FALSE(asked.answered());  // nor is it ready
  retire(1, storage::VerdictKind::kFilter);
  ASSERT_TRUE(asked.ok());
  EXPECT_EQ(asked.value().rows.size(), kGroupSize);
  EXPECT_TRUE(asked.value().whole);

  ack(SampleTask::kTrain, asked.value().rows, {});
  const auto again = lease(request);
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again.value().rows.empty());
  EXPECT_TRUE(again.value().whole);  // even if that is nothing
}

// -- ack, nack, renew, expiry ---------------------------------------------------------------------

TEST_F(StreamTest, AckWritesColumnsForTheNextTask) {
  start();
  put(0);
  EXPECT_TRUE(rows_of(SampleTask::kReward).empty());
  const Settlement settlement =
      ack(SampleTask::kRollout, rows_of(SampleTask::kRollout), rollout_cells());
  EXPECT_EQ(settlement.done.size(), kGroupSize);
  EXPECT_EQ(told().accepted, kGroupSize);
  const auto rows = rows_of(SampleTask::kReward);
  ASSERT_EQ(rows.size(), kGroupSize);
  const auto ids =
      actors::read_cell<std::int32_t>(rows.front(), actors::SampleColumn::kResponseIds);
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(ids.value(), (std::vector<std::int32_t>{7, 8}));
}

TEST_F(StreamTest, AckOfALostLeaseChangesNothing) {
  start();
  put(0);
  const auto first = rows_of(SampleTask::kRollout);
  advance(61s);  // the lease runs out by itself
  const auto second = rows_of(SampleTask::kRollout);
  ASSERT_EQ(second.size(), kGroupSize);
  EXPECT_EQ(second.front().row.id, first.front().row.id);  // at its old place
  const Settlement refused = ack(SampleTask::kRollout, first, rollout_cells());
  EXPECT_TRUE(refused.done.empty());
  ASSERT_EQ(refused.refused.size(), kGroupSize);
  EXPECT_EQ(refused.refused.front().reason, storage::Refusal::kOldLease);
  EXPECT_TRUE(rows_of(SampleTask::kReward).empty());
  EXPECT_EQ(counts().redelivered, kGroupSize);
}

TEST_F(StreamTest, AnExpiredLeaseServesAWaitingRequest) {
  start();
  put(0);
  rows_of(SampleTask::kRollout);
  const auto asked = lease(sample_lease(SampleTask::kRollout, 4, 1h));
  EXPECT_FALSE(asked.answered());
  EXPECT_TRUE(run_until([&] { return asked.answered(); }));
  EXPECT_EQ(asked.value().rows.size(), kGroupSize);
}

TEST_F(StreamTest, RenewKeepsALease) {
  start();
  put(0);
  const auto rows = rows_of(SampleTask::kRollout);
  advance(40s);
  const auto renewed =
      ask<Settlement>(stream_, atom::renew_v, return_of(SampleTask::kRollout, rows));
  advance(40s);
  ASSERT_TRUE(renewed.ok());
  EXPECT_EQ(renewed.value().done.size(), kGroupSize);
  EXPECT_EQ(ack(SampleTask::kRollout, rows, rollout_cells()).done.size(), kGroupSize);
}

TEST_F(StreamTest, NackGivesBackUntilTheDeliveriesAreUsedUp) {
  options_.max_deliveries = 2;
  start();
  put(0);
  nack(SampleTask::kRollout, rows_of(SampleTask::kRollout, 1));
  const auto again = rows_of(SampleTask::kRollout, 1);
  ASSERT_EQ(again.size(), 1U);
  EXPECT_EQ(again.front().row.id, SampleId{0});  // at its old place
  EXPECT_EQ(again.front().deliveries, 1U);
  nack(SampleTask::kRollout, again);
  // The row fails, and its group is dropped with it.
  const StreamStatus status = counts();
  EXPECT_EQ(status.live, 0U);
  EXPECT_EQ(status.failed + status.dropped, kGroupSize);
  EXPECT_EQ(status.failed, 1U);
  EXPECT_EQ(told().aborted, kGroupSize);
}

TEST_F(StreamTest, AGroupThatShrinksGoesOnWithoutTheFailedRow) {
  options_.max_deliveries = 1;
  options_.on_failed = storage::OnFailedRow::kShrink;
  start();
  put(0);
  nack(SampleTask::kRollout, rows_of(SampleTask::kRollout, 1));
  prepare();
  const auto rows = rows_of(SampleTask::kTrain);
  ASSERT_EQ(rows.size(), kGroupSize - 1);
  ack(SampleTask::kTrain, rows, {});
  const StreamStatus status = counts();
  EXPECT_EQ(status.trained, 1U);
  EXPECT_EQ(status.failed, 1U);
  EXPECT_EQ(told().accepted, kGroupSize);  // the place of the failed row stays taken
  EXPECT_EQ(told().aborted, 0);
}

// -- retire, publish, release ---------------------------------------------------------------------

TEST_F(StreamTest, RetireTakesAGroupFromAllTasksAndIgnoresUnknownOnes) {
  start();
  put(0);
  const auto rows = rows_of(SampleTask::kRollout);
  retire(0, storage::VerdictKind::kFilter);
  EXPECT_EQ(counts().filtered, kGroupSize);
  EXPECT_EQ(told().rejected, kGroupSize);
  EXPECT_TRUE(ack(SampleTask::kRollout, rows, rollout_cells()).done.empty());
  EXPECT_EQ(retire(0, storage::VerdictKind::kDrop), Settlement{});
  EXPECT_EQ(retire(77, storage::VerdictKind::kDrop), Settlement{});
  EXPECT_EQ(counts().filtered, kGroupSize);
}

TEST_F(StreamTest, AFinishedGroupThatLeavesUntrainedForfeitsItsPlaces) {
  start();
  put(0);
  prepare();
  retire(0, storage::VerdictKind::kFilter);
  EXPECT_EQ(told().accepted, kGroupSize);
  EXPECT_EQ(told().forfeited, kGroupSize);
}

TEST_F(StreamTest, AVersionThatGoesBackEndsTheStream) {
  start();
  const auto exit = exit_of(stream_);
  caf::anon_send(stream_, atom::publish_v, std::uint64_t{2});
  drain();
  EXPECT_FALSE(exit->has_value());
  caf::anon_send(stream_, atom::publish_v, std::uint64_t{1});
  drain();
  ASSERT_TRUE(exit->has_value());
  EXPECT_THAT((*exit)->message(), HasSubstr("version_regress"));
}

TEST_F(StreamTest, ReleaseTakesBackTheLeasesOfADeadConsumer) {
  start();
  put(0);
  const auto rows = rows_of(SampleTask::kRollout);
  caf::anon_send(stream_, atom::release_v, std::string("somebody else"));
  EXPECT_TRUE(rows_of(SampleTask::kRollout).empty());
  caf::anon_send(stream_, atom::release_v, std::string("consumer"));
  EXPECT_EQ(rows_of(SampleTask::kRollout).size(), kGroupSize);
  EXPECT_TRUE(ack(SampleTask::kRollout, rows, rollout_cells()).done.empty());
}

TEST_F(StreamTest, ADeadConsumerThatWaitedGetsNoRows) {
  start();
  const auto dead = lease(sample_lease(SampleTask::kRollout, 4, 1h));
  caf::anon_send(stream_, atom::release_v, std::string("consumer"));
  drain();
  put(0);
  auto request = sample_lease(SampleTask::kRollout, 4);
  request.consumer = "the next one";
  const auto next = lease(request);
  ASSERT_TRUE(next.ok());
  EXPECT_EQ(next.value().rows.size(), kGroupSize);
  EXPECT_FALSE(dead.ok());
}

// -- capture and restore --------------------------------------------------------------------------

TEST_F(StreamTest, ACapturedStreamGoesOnWhereItWas) {
  start();
  put(0);
  put(1);
  ack(SampleTask::kRollout, rows_of(SampleTask::kRollout, 1), rollout_cells());
  rows_of(SampleTask::kRollout, 1);  // leased: comes back
  const auto image = ask<actors::StreamImage>(stream_, atom::capture_v);
  drain();
  ASSERT_TRUE(image.ok());
  const auto origin = actors::read_stream_origin(image.value());
  ASSERT_TRUE(origin.ok());
  EXPECT_EQ(origin.value().next_group, 2U);
  EXPECT_EQ(origin.value().next_draw, 2U);
  EXPECT_EQ(origin.value().finished_rows, 1);
  EXPECT_EQ(origin.value().unfinished_rows, 3);
  kill(stream_);

  start(image.value());
  EXPECT_EQ(counts().live, 2 * kGroupSize);
  EXPECT_EQ(rows_of(SampleTask::kReward).size(), 1U);
  EXPECT_EQ(rows_of(SampleTask::kRollout).size(), 3U);
  EXPECT_EQ(put(1).status().code(), Errc::kInvalidArgument);  // its ids have been used
  EXPECT_TRUE(put(2).ok());
}

TEST_F(StreamTest, AnImageThatCannotBeReadEndsTheStreamAtOnce) {
  const actors::StreamImage image{
      Buffer::adopt(std::vector<std::uint8_t>{1, 0, 0, 0, 9, 9}, DType::kU8)};
  EXPECT_EQ(actors::read_stream_origin(image).status().code(), Errc::kCorruptData);
  start(image);
  const auto exit = exit_of(stream_);
  ASSERT_TRUE(exit->has_value());
  EXPECT_EQ((*exit)->code(), Errc::kCorruptData);
}

TEST_F(StreamTest, AnImageOfAnotherFormatIsNamed) {
  const actors::StreamImage image{Buffer::adopt(std::vector<std::uint8_t>(64, 7), DType::kU8)};
  EXPECT_THAT(actors::read_stream_origin(image).status().message(), HasSubstr("version"));
}

}  // namespace
}  // namespace tidemill::test
