// SPDX-License-Identifier: Apache-2.0
// Tests the contract of actors/stream/handles.hpp, handler by handler.
#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/stream/spawn.hpp"
#include "actors/stream/stream_image.hpp"
#include "tests/actors/sample_rows.hpp"
#include "tests/support/fake_actors.hpp"
#include "tests/support/remote_consumers.hpp"

namespace tidemill::test {
namespace {

using actors::LeaseReply;
using actors::SampleTask;
using actors::StreamStatus;
using storage::Settlement;
using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr std::uint32_t kGroupSize = 2;

class StreamSuite : public ConsumerTest {
protected:
  void SetUp() override {
    keeper_handle_ = keep(spawn_fake_keeper(system(), keeper_));
    options_.group_size = kGroupSize;
    options_.lease = 60s;
  }
  // Starts the stream of a test.
  void start(std::shared_ptr<const actors::RestoredStream> restored = nullptr) {
    stream_ =
        keep(actors::spawn_stream(system(), {options_, keeper_handle_, std::move(restored),
                                             [this](const Status& status, const StreamStatus&) {
                                               EXPECT_TRUE(status.ok()) << status.message();
                                               ++checks_;
                                             }}));
  }
  actors::StreamConsumerActor consumers() { return consumers_of(stream_); }
  Reply<Settlement> put(std::uint64_t group) {
    auto reply = ask<Settlement>(stream_, atom::put_v, sample_group(group, kGroupSize));
    drain();
    return reply;
  }
  Reply<LeaseReply> lease(const actors::LeaseRequest& request) {
    auto reply = ask<LeaseReply>(consumers(), atom::lease_v, request);
    drain();
    return reply;
  }
  // Leases what is ready now.
  std::vector<storage::LeasedRow> rows_of(SampleTask task, std::uint32_t units = 100) {
    const auto reply = lease(sample_lease(task, units));
    advance(0s);
    EXPECT_TRUE(reply.ok()) << reply.status().to_string();
    return reply.ok() ? reply.value().rows : std::vector<storage::LeasedRow>{};
  }
  Settlement ack(SampleTask task, const std::vector<storage::LeasedRow>& rows,
                 const std::vector<storage::ColumnValue>& cells) {
    const auto reply = ask<Settlement>(consumers(), atom::ack_v, ack_of(task, rows, cells));
    drain();
    EXPECT_TRUE(reply.ok()) << reply.status().to_string();
    return reply.value();
  }
  bool settled(const Reply<Settlement>& reply) {
    drain();
    return reply.ok();
  }
  Settlement nack(SampleTask task, const std::vector<storage::LeasedRow>& rows) {
    const auto reply =
        ask<Settlement>(consumers(), atom::nack_v, lease_update_of(task, rows, "broken"));
    drain();
    EXPECT_TRUE(reply.ok()) << reply.status().to_string();
    return reply.value();
  }
  Settlement retire(std::uint64_t group, storage::VerdictKind kind) {
    const auto reply =
        ask<Settlement>(consumers(), atom::retire_v, actors::GroupVerdict{{group}, {kind, "why"}});
    drain();
    EXPECT_TRUE(reply.ok()) << reply.status().to_string();
    return reply.value();
  }
  StreamStatus counts() {
    const auto reply = ask<StreamStatus>(stream_, atom::status_v);
    drain();
    EXPECT_TRUE(reply.ok());
    return reply.value();
  }
  // Returns the sum of all slot changes that the keeper has received.
  storage::SlotChanges slot_changes() const {
    storage::SlotChanges sum;
    for (const storage::SlotChanges& change : keeper_->changes) {
      sum.accepted += change.accepted;
      sum.aborted += change.aborted;
      sum.rejected += change.rejected;
      sum.forfeited += change.forfeited;
    }
    return sum;
  }
  // Completes all tasks before training for all ready rows.
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

// The parameter says whether the consumers are in another process. Producers never are.
class StreamTest : public StreamSuite, public ::testing::WithParamInterface<bool> {
protected:
  StreamTest() { is_remote_ = GetParam(); }

  // Lets a group of rows become ready for a task for which `waiting` workers wait, beside as many
  // trainers. Checks which of them get messages. Returns how often leases were tried meanwhile.
  std::uint64_t attempts_to_wake(int waiting);
};

INSTANTIATE_TEST_SUITE_P(Places, StreamTest, ::testing::Bool(), place_name);

// -- put ------------------------------------------------------------------------------------------

TEST_F(StreamSuite, PutRepliesOnceTheGroupIsInTheStream) {
  start();
  const auto reply = put(0);
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply.value().done, (std::vector<SampleId>{{0}, {1}}));
  EXPECT_EQ(counts().live, kGroupSize);
  EXPECT_GT(checks_, 0);
}

TEST_F(StreamSuite, PutRefusesAnInvalidGroupAndKeepsNoRowOfIt) {
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
    const auto reply = ask<Settlement>(stream_, atom::put_v, group);
    drain();
    EXPECT_EQ(reply.status().code(), Errc::kInvalidArgument) << reply.status().to_string();
    EXPECT_EQ(counts().live, 0U);
  }
}

TEST_P(StreamTest, PutWaitsAtTheByteLimitUntilAGroupLeaves) {
  options_.limit_bytes = 400;
  options_.group_bytes = 400;
  start();
  std::uint64_t groups = 0;
  Reply<Settlement> last = put(groups++);
  while (last.ok() && groups < 100) {
    last = put(groups++);
  }
  ASSERT_FALSE(last.arrived()) << "the limit has not held any group back";
  const Reply<Settlement> behind = put(groups);
  EXPECT_FALSE(behind.arrived());
  advance(10min);
  EXPECT_FALSE(last.arrived());
  retire(0, storage::VerdictKind::kDrop);
  EXPECT_TRUE(last.ok());  // in the order of arrival
  EXPECT_LE(counts().bytes, options_.limit_bytes + options_.group_bytes);
}

TEST_P(StreamTest, APutThatWaitsIsTriedAgainOnlyWhenBytesAreFreed) {
  options_.limit_bytes = 400;
  options_.group_bytes = 400;
  start();
  ASSERT_TRUE(put(0).ok());
  const auto rows = rows_of(SampleTask::kRollout);
  const Reply<Settlement> waiting = put(1);
  ASSERT_FALSE(waiting.arrived());
  const std::uint64_t refused = counts().refused;
  EXPECT_GT(refused, 0U);
  for (int i = 0; i < 20; ++i) {
    ask<Settlement>(consumers(), atom::renew_v, lease_update_of(SampleTask::kRollout, rows));
    drain();
  }
  EXPECT_EQ(counts().refused, refused);
  retire(0, storage::VerdictKind::kDrop);
  EXPECT_TRUE(waiting.ok());
}

// Links have timers of their own.
TEST_F(StreamSuite, ARepliedLeaseLeavesNoTimer) {
  start();
  for (std::uint64_t group = 0; group < 50; ++group) {
    const auto waiting = lease(sample_lease(SampleTask::kRollout, 4, 1h));
    put(group);
    ASSERT_TRUE(waiting.ok());
    ack(SampleTask::kRollout, waiting.value().rows, rollout_cells());
    advance(1s);
  }
  EXPECT_LE(num_timers(), 3U);
  // The one that is left still works.
  const auto last = lease(sample_lease(SampleTask::kRollout, 4, 1h));
  advance(59min);
  EXPECT_FALSE(last.arrived());
  advance(1min);
  EXPECT_TRUE(last.ok());
}

TEST_P(StreamTest, PutGoesOnWhenALeaseDropsAStaleGroup) {
  options_.limit_bytes = 400;
  options_.group_bytes = 400;
  start();
  put(0);
  actors::AckRequest generated =
      ack_of(SampleTask::kRollout, rows_of(SampleTask::kRollout), rollout_cells());
  for (storage::HeldRow& row : generated.rows) {
    row.facts.oldest_step = 0;
  }
  ASSERT_TRUE(settled(ask<Settlement>(consumers(), atom::ack_v, std::move(generated))));
  ack(SampleTask::kReward, rows_of(SampleTask::kReward), reward_cells());
  ack(SampleTask::kAdvantage, rows_of(SampleTask::kAdvantage), advantage_cells());
  const Reply<Settlement> waiting = put(1);
  ASSERT_FALSE(waiting.arrived()) << "the limit holds no group back";
  auto both = sample_lease(SampleTask::kTrain, 2, 1h);
  both.min_units = 2;  // stays pending: one group is ready
  const auto trained = lease(both);
  ASSERT_FALSE(trained.arrived());
  caf::anon_send(stream_, atom::publish_v, std::uint64_t{1});
  drain();
  EXPECT_EQ(counts().dropped, kGroupSize);
  EXPECT_TRUE(waiting.ok()) << "the bytes of the dropped group are free";
  advance(0s);
}

// -- lease ----------------------------------------------------------------------------------------

TEST_P(StreamTest, LeaseRepliesWhenEnoughIsReady) {
  start();
  auto request = sample_lease(SampleTask::kRollout, 4, 10s);
  request.min_units = 3;
  const auto reply = lease(request);
  put(0);
  EXPECT_FALSE(reply.arrived());
  put(1);
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply.value().rows.size(), 4U);
  EXPECT_EQ(reply.value().lease_time, Duration(60s));
  EXPECT_EQ(reply.count(), 1);
}

TEST_P(StreamTest, LeaseRepliesWithNoRowsAndTheReasonAfterItsWait) {
  start();
  put(0);
  const auto reply = lease(sample_lease(SampleTask::kReward, 4, 10s));
  advance(9s);
  EXPECT_FALSE(reply.arrived());
  advance(1s);
  ASSERT_TRUE(reply.ok());
  EXPECT_TRUE(reply.value().rows.empty());
  EXPECT_FALSE(reply.value().ended);
  EXPECT_FALSE(reply.value().waiting_for.empty());
}

TEST_P(StreamTest, LeaseSaysThatATaskHasEnded) {
  start();
  put(0);
  const auto rollout = lease(sample_lease(SampleTask::kRollout, 1, 1h));
  const auto train = lease(sample_lease(SampleTask::kTrain, 1, 1h));
  caf::anon_send(stream_, atom::finish_v);
  drain();
  EXPECT_FALSE(train.arrived());  // the group may still be trained
  retire(0, storage::VerdictKind::kDrop);
  ASSERT_TRUE(train.ok());
  EXPECT_TRUE(train.value().ended);
  EXPECT_TRUE(rollout.ok());
}

TEST_P(StreamTest, TrainingEndsWhenTooFewGroupsRemainForABatch) {
  start();
  put(0);
  auto request = sample_lease(SampleTask::kTrain, 2, 1h);
  request.min_units = 2;
  const auto reply = lease(request);
  EXPECT_FALSE(reply.arrived());
  caf::anon_send(stream_, atom::finish_v);
  drain();
  ASSERT_TRUE(reply.ok());
  EXPECT_TRUE(reply.value().ended);
}

TEST_P(StreamTest, LeaseRefusesRequestsThatCanNeverBeFulfilled) {
  start();
  put(0);
  for (const auto& request : {sample_lease(SampleTask::kRollout, 0, 1h), [] {
                                auto unknown = sample_lease(SampleTask::kRollout, 1, 1h);
                                unknown.task = {99};
                                return unknown;
                              }()}) {
    const auto reply = lease(request);
    EXPECT_EQ(reply.status().code(), Errc::kInvalidArgument) << reply.status().to_string();
  }
}

TEST_P(StreamTest, LeaseBelowAGroupTakesAllRemainingRows) {
  start();
  put(0);
  prepare();
  auto request = sample_lease(SampleTask::kTrain, 2, 1h);
  request.before_group = 2;
  const auto reply = lease(request);
  EXPECT_FALSE(reply.arrived());  // group 1 has not been admitted yet
  put(1);
  EXPECT_FALSE(reply.arrived());  // group 1 is not ready
  retire(1, storage::VerdictKind::kFilter);
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply.value().rows.size(), kGroupSize);
  EXPECT_TRUE(reply.value().whole);

  ack(SampleTask::kTrain, reply.value().rows, {});
  const auto again = lease(request);
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again.value().rows.empty());
  EXPECT_TRUE(again.value().whole);  // even if no rows remain
}

// Many workers may wait for a long time, so their requests are not tried with every message.
TEST_P(StreamTest, APendingLeaseIsTriedAgainOnlyWhenItsTaskMayHaveRows) {
  start();
  std::vector<Reply<LeaseReply>> workers;
  for (int i = 0; i < 5; ++i) {
    actors::LeaseRequest request = sample_lease(SampleTask::kReward, 4, 1h);
    request.min_units = 4;
    workers.push_back(lease(request));
  }
  const auto trainer = lease(sample_lease(SampleTask::kTrain, 1, 1h));
  put(0);
  const auto rows = rows_of(SampleTask::kRollout);
  ack(SampleTask::kRollout, rows, rollout_cells());  // two rows are ready, but four are asked for
  put(1);
  const auto more = rows_of(SampleTask::kRollout);
  ASSERT_EQ(more.size(), kGroupSize);
  const std::uint64_t attempts = counts().lease_attempts;
  for (int i = 0; i < 20; ++i) {
    ask<Settlement>(consumers(), atom::renew_v, lease_update_of(SampleTask::kRollout, more));
    drain();
  }
  EXPECT_EQ(counts().lease_attempts, attempts);
  const auto last = lease(sample_lease(SampleTask::kReward, 3, 1h));  // only this one is tried
  ASSERT_TRUE(last.ok());
  EXPECT_EQ(counts().lease_attempts, attempts + 1);
  nack(SampleTask::kReward, last.value().rows);
  ack(SampleTask::kRollout, more, rollout_cells());
  EXPECT_TRUE(workers[0].ok());  // in the order of arrival
  EXPECT_FALSE(workers[1].arrived());
  EXPECT_FALSE(trainer.arrived());
  EXPECT_LE(counts().lease_attempts, attempts + 1 + 2 * workers.size());
}

std::uint64_t StreamTest::attempts_to_wake(int waiting) {
  std::vector<Reply<LeaseReply>> rewards;
  std::vector<Reply<LeaseReply>> trainers;
  for (int i = 0; i < waiting; ++i) {
    rewards.push_back(lease(sample_lease(SampleTask::kReward, 1, 1h)));
    trainers.push_back(lease(sample_lease(SampleTask::kTrain, 1, 1h)));
  }
  const std::uint64_t before = counts().lease_attempts;
  put(0);  // ready for the rollout task, for which no request is pending
  const auto rows = rows_of(SampleTask::kRollout);
  ask<Settlement>(consumers(), atom::renew_v, lease_update_of(SampleTask::kRollout, rows));
  drain();
  const auto arrived = [](const auto& replies) {
    return std::count_if(replies.begin(), replies.end(),
                         [](const auto& reply) { return reply.arrived(); });
  };
  EXPECT_EQ(arrived(rewards), 0);
  ack(SampleTask::kRollout, rows, rollout_cells());
  EXPECT_EQ(arrived(rewards), kGroupSize) << "one for each row";
  EXPECT_TRUE(rewards[0].arrived() && rewards[1].arrived()) << "in the order of arrival";
  EXPECT_EQ(arrived(trainers), 0);
  return counts().lease_attempts - before;
}

TEST_P(StreamTest, ReadyRowsWakeOnlyTheWorkersThatGetThem) {
  start();
  const std::uint64_t attempts = attempts_to_wake(4);
  start();
  EXPECT_EQ(attempts_to_wake(40), attempts) << "the others are not even tried";
}

// -- ack, nack, renew, expiry ---------------------------------------------------------------------

TEST_P(StreamTest, AckWritesColumnsForTheNextTask) {
  start();
  put(0);
  EXPECT_TRUE(rows_of(SampleTask::kReward).empty());
  const Settlement settlement =
      ack(SampleTask::kRollout, rows_of(SampleTask::kRollout), rollout_cells());
  EXPECT_EQ(settlement.done.size(), kGroupSize);
  EXPECT_EQ(slot_changes().accepted, kGroupSize);
  const auto rows = rows_of(SampleTask::kReward);
  ASSERT_EQ(rows.size(), kGroupSize);
  const auto ids =
      actors::read_cell<std::int32_t>(rows.front(), actors::SampleColumn::kResponseIds);
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(ids.value(), (std::vector<std::int32_t>{7, 8}));
}

TEST_P(StreamTest, AckOfALostLeaseChangesNothing) {
  start();
  put(0);
  const auto first = rows_of(SampleTask::kRollout);
  advance(61s);  // the lease expires
  const auto second = rows_of(SampleTask::kRollout);
  ASSERT_EQ(second.size(), kGroupSize);
  EXPECT_EQ(second.front().row.id, first.front().row.id);  // at its old position
  const Settlement refused = ack(SampleTask::kRollout, first, rollout_cells());
  EXPECT_TRUE(refused.done.empty());
  ASSERT_EQ(refused.refused.size(), kGroupSize);
  EXPECT_EQ(refused.refused.front().reason, storage::Refusal::kOldLease);
  EXPECT_TRUE(rows_of(SampleTask::kReward).empty());
  EXPECT_EQ(counts().redelivered, kGroupSize);
}

TEST_P(StreamTest, AnExpiredLeaseFulfillsAPendingRequest) {
  start();
  put(0);
  rows_of(SampleTask::kRollout);
  const auto reply = lease(sample_lease(SampleTask::kRollout, 4, 1h));
  EXPECT_FALSE(reply.arrived());
  EXPECT_TRUE(run_until([&] { return reply.arrived(); }));
  EXPECT_EQ(reply.value().rows.size(), kGroupSize);
}

TEST_P(StreamTest, RenewExtendsALease) {
  start();
  put(0);
  const auto rows = rows_of(SampleTask::kRollout);
  advance(40s);
  const auto renewed =
      ask<Settlement>(consumers(), atom::renew_v, lease_update_of(SampleTask::kRollout, rows));
  advance(40s);
  ASSERT_TRUE(renewed.ok());
  EXPECT_EQ(renewed.value().done.size(), kGroupSize);
  EXPECT_EQ(ack(SampleTask::kRollout, rows, rollout_cells()).done.size(), kGroupSize);
}

TEST_P(StreamTest, NackReturnsARowUntilItsDeliveriesAreUsedUp) {
  options_.max_deliveries = 2;
  start();
  put(0);
  nack(SampleTask::kRollout, rows_of(SampleTask::kRollout, 1));
  const auto again = rows_of(SampleTask::kRollout, 1);
  ASSERT_EQ(again.size(), 1U);
  EXPECT_EQ(again.front().row.id, SampleId{0});  // at its old position
  EXPECT_EQ(again.front().deliveries, 1U);
  nack(SampleTask::kRollout, again);
  // The row fails, and its group is dropped with it.
  const StreamStatus status = counts();
  EXPECT_EQ(status.live, 0U);
  EXPECT_EQ(status.failed + status.dropped, kGroupSize);
  EXPECT_EQ(status.failed, 1U);
  EXPECT_EQ(slot_changes().aborted, kGroupSize);
}

TEST_P(StreamTest, AGroupThatShrinksContinuesWithoutTheFailedRow) {
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
  EXPECT_EQ(slot_changes().accepted, kGroupSize);  // the failed row keeps its slot
  EXPECT_EQ(slot_changes().aborted, 0);
}

// -- retire, publish, release ---------------------------------------------------------------------

TEST_P(StreamTest, RetireTakesAGroupFromAllTasksAndIgnoresUnknownOnes) {
  start();
  put(0);
  const auto rows = rows_of(SampleTask::kRollout);
  retire(0, storage::VerdictKind::kFilter);
  EXPECT_EQ(counts().filtered, kGroupSize);
  EXPECT_EQ(slot_changes().rejected, kGroupSize);
  EXPECT_TRUE(ack(SampleTask::kRollout, rows, rollout_cells()).done.empty());
  EXPECT_EQ(retire(0, storage::VerdictKind::kDrop), Settlement{});
  EXPECT_EQ(retire(77, storage::VerdictKind::kDrop), Settlement{});
  EXPECT_EQ(counts().filtered, kGroupSize);
}

TEST_P(StreamTest, AFinishedGroupThatLeavesUntrainedForfeitsItsSlots) {
  start();
  put(0);
  prepare();
  retire(0, storage::VerdictKind::kFilter);
  EXPECT_EQ(slot_changes().accepted, kGroupSize);
  EXPECT_EQ(slot_changes().forfeited, kGroupSize);
}

TEST_F(StreamSuite, AnOlderVersionEndsTheStream) {
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

TEST_P(StreamTest, ReleaseTakesBackTheLeasesOfATerminatedConsumer) {
  start();
  put(0);
  const auto rows = rows_of(SampleTask::kRollout);
  caf::anon_send(stream_, atom::release_v, std::string("another consumer"));
  EXPECT_TRUE(rows_of(SampleTask::kRollout).empty());
  caf::anon_send(stream_, atom::release_v, std::string("consumer-0"));
  EXPECT_EQ(rows_of(SampleTask::kRollout).size(), kGroupSize);
  EXPECT_TRUE(ack(SampleTask::kRollout, rows, rollout_cells()).done.empty());
}

TEST_P(StreamTest, ATerminatedConsumerWithAPendingRequestGetsNoRows) {
  start();
  const auto terminated = lease(sample_lease(SampleTask::kRollout, 4, 1h));
  caf::anon_send(stream_, atom::release_v, std::string("consumer-0"));
  drain();
  put(0);
  auto request = sample_lease(SampleTask::kRollout, 4);
  request.consumer = "consumer-1";
  const auto next = lease(request);
  ASSERT_TRUE(next.ok());
  EXPECT_EQ(next.value().rows.size(), kGroupSize);
  EXPECT_FALSE(terminated.ok());
}

// -- capture and restore --------------------------------------------------------------------------

TEST_P(StreamTest, ACapturedStreamIsRestoredAsItWas) {
  start();
  put(0);
  put(1);
  ack(SampleTask::kRollout, rows_of(SampleTask::kRollout, 1), rollout_cells());
  rows_of(SampleTask::kRollout, 1);  // leased: becomes ready again
  const auto captured = ask<actors::StreamCapture>(stream_, atom::capture_v);
  drain();
  ASSERT_TRUE(captured.ok());
  const actors::StreamImage image = actors::encode_stream_image(captured.value());
  const auto restored = actors::decode_stream_image(image);
  ASSERT_TRUE(restored.ok());
  const actors::StreamOrigin& origin = restored.value()->origin;
  EXPECT_EQ(origin.next_group, 2U);
  EXPECT_EQ(origin.next_draw, 2U);
  EXPECT_EQ(origin.finished_rows, 1);
  EXPECT_EQ(origin.unfinished_rows, 3);
  kill(stream_);

  start(restored.value());
  EXPECT_EQ(counts().live, 2 * kGroupSize);
  EXPECT_EQ(rows_of(SampleTask::kReward).size(), 1U);
  EXPECT_EQ(rows_of(SampleTask::kRollout).size(), 3U);
  EXPECT_EQ(put(1).status().code(), Errc::kInvalidArgument);  // its ids have been used
  EXPECT_TRUE(put(2).ok());
}

TEST_F(StreamSuite, ACaptureCopiesNoCell) {
  start();
  put(0);
  const auto leased = lease(sample_lease(SampleTask::kRollout, 1));
  ASSERT_TRUE(leased.ok());
  const storage::LeasedRow& row = leased.value().rows.at(0);
  const auto captured = ask<actors::StreamCapture>(stream_, atom::capture_v);
  drain();
  ASSERT_TRUE(captured.ok());
  ASSERT_EQ(captured.value().snapshot.rows.size(), kGroupSize);
  const storage::RowColumns& cells = captured.value().snapshot.rows.front();
  ASSERT_EQ(cells.row, row.row.id);
  const auto prompt =
      std::ranges::find(cells.columns, row.columns.at(0).column, &storage::ColumnValue::column);
  ASSERT_NE(prompt, cells.columns.end());
  EXPECT_EQ(prompt->value.bytes().data(), row.columns.at(0).value.bytes().data());
}

TEST_F(StreamSuite, ARestoredStreamKeepsNoCellLongerThanItsRow) {
  start();
  put(0);
  const auto captured = ask<actors::StreamCapture>(stream_, atom::capture_v);
  drain();
  auto restored =
      actors::decode_stream_image(actors::encode_stream_image(captured.value())).value();
  const std::weak_ptr<const actors::RestoredStream> watched = restored;
  start(std::move(restored));
  drain();
  EXPECT_TRUE(watched.expired());
}

TEST_F(StreamSuite, AnImageThatIsEmptyOrUnreadable) {
  EXPECT_EQ(actors::decode_stream_image({}).value(), nullptr);
  const actors::StreamImage image{
      Buffer::adopt(std::vector<std::uint8_t>{1, 0, 0, 0, 9, 9}, DType::kU8)};
  EXPECT_EQ(actors::decode_stream_image(image).status().code(), Errc::kCorruptData);
}

TEST_F(StreamSuite, RowsThatContradictEachOtherEndTheStreamAtOnce) {
  auto restored = std::make_shared<actors::RestoredStream>();
  restored->snapshot.rows.resize(1);  // cells of a row that the index does not have
  start(restored);
  const auto exit = exit_of(stream_);
  ASSERT_TRUE(exit->has_value());
  EXPECT_EQ((*exit)->code(), Errc::kCorruptData);
}

TEST_F(StreamSuite, AnImageOfAnotherVersionIsRefused) {
  const actors::StreamImage image{Buffer::adopt(std::vector<std::uint8_t>(64, 7), DType::kU8)};
  EXPECT_THAT(actors::decode_stream_image(image).status().message(), HasSubstr("version"));
}

}  // namespace
}  // namespace tidemill::test
