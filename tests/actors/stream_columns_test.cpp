// SPDX-License-Identifier: Apache-2.0
// What the stream "samples" checks: which cells it takes, which actor may use a lease, and how
// optional columns and progress travel.
#include <algorithm>
#include <chrono>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/stream/stream_image.hpp"
#include "tests/actors/stream_fixture.hpp"

namespace tidemill::test {
namespace {

using actors::SampleColumn;
using actors::SampleTask;
using storage::ColumnValue;
using storage::Settlement;
using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class StreamColumnsSuite : public StreamFixture {
protected:
  StreamColumnsSuite() { options_.incarnation = 4; }

  Settlement settle(SampleTask task, const std::vector<storage::LeasedRow>& rows,
                    const std::vector<ColumnValue>& cells) {
    const auto reply = ask<Settlement>(consumers(), atom::ack_v, ack_of(task, rows, cells));
    drain();
    EXPECT_TRUE(reply.ok()) << reply.status().to_string();
    return reply.value();
  }
  // Writes the outputs of a rollout with another cell for its column. Returns what is wrong, or "".
  std::string fault_of(ColumnValue cell) {
    std::vector<ColumnValue> cells = rollout_cells();
    const auto same = std::find_if(cells.begin(), cells.end(), [&](const ColumnValue& known) {
      return known.column == cell.column;
    });
    if (same != cells.end()) {
      cells.erase(same);
    }
    cells.push_back(std::move(cell));
    const Settlement settlement =
        settle(SampleTask::kRollout, rows_of(SampleTask::kRollout, 1), cells);
    return settlement.refused.empty() ? "" : settlement.refused.at(0).detail;
  }
};

// The parameter says whether the consumers are in another process.
class StreamColumnsTest : public StreamColumnsSuite, public ::testing::WithParamInterface<bool> {
protected:
  StreamColumnsTest() { is_remote_ = GetParam(); }
};

INSTANTIATE_TEST_SUITE_P(Places, StreamColumnsTest, ::testing::Bool(), place_name);

TEST_P(StreamColumnsTest, CellsOfARolloutFollowTheirRules) {
  options_.max_deliveries = 0;
  SetUp();
  put(0);
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const engines::VersionSpan span{{0, 0, 0}, 3};
  EXPECT_EQ(fault_of(actors::make_cell(SampleColumn::kBehaviorLogprobs, std::vector<float>{-1.0F})),
            "sample 0, column behavior_logprobs: 1 elements, but response_ids has 2");
  EXPECT_THAT(
      fault_of(actors::make_cell(SampleColumn::kBehaviorLogprobs, std::vector<float>{-1.0F, kNan})),
      HasSubstr("element 1 is nan"));
  EXPECT_THAT(
      fault_of(actors::make_cell(SampleColumn::kResponseIds, std::vector<std::int32_t>{7, -8})),
      HasSubstr("element 1 is -8"));
  EXPECT_THAT(fault_of(actors::make_versions_cell({&span, 1})), HasSubstr("do not add up"));
  EXPECT_THAT(fault_of(actors::make_versions_cell({})), HasSubstr("must be at least 3"));
  EXPECT_THAT(fault_of(actors::make_cell(SampleColumn::kFinish, std::vector<std::uint8_t>{})),
              HasSubstr("must be at least 1"));
  EXPECT_THAT(
      fault_of(actors::make_cell(SampleColumn::kResponseMask, std::vector<std::uint8_t>{0, 2})),
      HasSubstr("must be 0 or 1"));
  EXPECT_THAT(fault_of(actors::make_cell(SampleColumn::kReward, std::vector<double>{1.0})),
              HasSubstr("is no output of task rollout"));
  EXPECT_EQ(counts().returned.failed, 8U);
  EXPECT_EQ(counts().redelivered, 8U);
  EXPECT_EQ(fault_of(actors::make_cell(SampleColumn::kValues, std::vector<float>{0.5F, 1.0F})), "");
}

TEST_P(StreamColumnsTest, RewardsAndAdvantagesMustBeFinite) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  put(0);
  ack(SampleTask::kRollout, rows_of(SampleTask::kRollout, 2), rollout_cells());
  const std::vector<ColumnValue> rewards{
      actors::make_cell(SampleColumn::kReward, std::vector<double>{1.0, kInfinity})};
  const Settlement of_reward =
      settle(SampleTask::kReward, rows_of(SampleTask::kReward, 1), rewards);
  EXPECT_EQ(of_reward.refused.at(0).detail,
            "sample 0, column reward: element 1 is inf, must be finite");
  ack(SampleTask::kReward, rows_of(SampleTask::kReward, 2), reward_cells());
  const Settlement of_group = settle(SampleTask::kAdvantage, rows_of(SampleTask::kAdvantage, 1),
                                     advantage_cells(std::numeric_limits<float>::quiet_NaN()));
  EXPECT_THAT(of_group.refused, SizeIs(2));
  EXPECT_THAT(of_group.refused.at(0).detail, HasSubstr("column advantage: element 0 is nan"));
  EXPECT_THAT(rows_of(SampleTask::kAdvantage, 1), SizeIs(2)) << "the group is ready again";
}

TEST_P(StreamColumnsTest, AWorkerThatAlwaysWritesGarbageCannotLoop) {
  put(0);
  const std::vector<ColumnValue> garbage = reward_cells();
  int deliveries = 0;
  for (auto rows = rows_of(SampleTask::kRollout, 1); !rows.empty() && rows[0].row.id.value == 0;
       rows = rows_of(SampleTask::kRollout, 1)) {
    ASSERT_LE(++deliveries, 3);
    EXPECT_THAT(settle(SampleTask::kRollout, rows, garbage).refused, SizeIs(1));
  }
  EXPECT_EQ(deliveries, 3);
  EXPECT_EQ(counts().failed, 1U);
  EXPECT_THAT(counts().last_lost_reason, HasSubstr("failed 3 times, last: bad_column: sample 0"));
}

// The name of a consumer says whose leases end with it. The actor behind it must be the same too.
// For all consumers of another process, that is their gate.
TEST_F(StreamColumnsSuite, AnotherActorOfTheSameNameCannotUseALease) {
  put(0);
  const auto rows = rows_of(SampleTask::kRollout, 1);
  ASSERT_THAT(rows, SizeIs(1));
  const auto refused = std::make_shared<std::vector<storage::RefusedRow>>();
  keep(system().spawn([&, refused](caf::event_based_actor* self) {
    const auto take = [refused](const Settlement& reply) {
      refused->insert(refused->end(), reply.refused.begin(), reply.refused.end());
    };
    const auto ignore = [](const caf::error&) {};
    self->request(stream_, Duration(1h), atom::renew_v, lease_update_of(SampleTask::kRollout, rows))
        .then(take, ignore);
    self->request(stream_, Duration(1h), atom::nack_v, lease_update_of(SampleTask::kRollout, rows))
        .then(take, ignore);
    self->request(stream_, Duration(1h), atom::ack_v,
                  ack_of(SampleTask::kRollout, rows, rollout_cells()))
        .then(take, ignore);
  }));
  drain();
  const storage::RefusedRow expected{rows[0].lease, storage::Refusal::kOtherConsumer};
  EXPECT_THAT(*refused, ElementsAre(expected, expected, expected));
  EXPECT_THAT(settle(SampleTask::kRollout, rows, rollout_cells()).done, SizeIs(1));
}

TEST_P(StreamColumnsTest, ALeaseCarriesTheIncarnationAndNoOtherOneIsAccepted) {
  put(0);
  auto rows = rows_of(SampleTask::kRollout, 1);
  ASSERT_THAT(rows, SizeIs(1));
  EXPECT_EQ(rows[0].lease.incarnation, 4U);
  auto earlier = rows;
  earlier[0].lease.incarnation = 3;
  const Settlement settlement = settle(SampleTask::kRollout, earlier, rollout_cells());
  EXPECT_THAT(settlement.refused, ElementsAre(storage::RefusedRow{
                                      earlier[0].lease, storage::Refusal::kOtherIncarnation}));
  EXPECT_THAT(settle(SampleTask::kRollout, rows, rollout_cells()).done, SizeIs(1));
}

TEST_P(StreamColumnsTest, OptionalColumnsReachTheTrainer) {
  options_.group_size = 1;
  SetUp();
  put(0);
  std::vector<ColumnValue> cells = rollout_cells();
  cells.push_back(actors::make_cell(SampleColumn::kResponseMask, std::vector<std::uint8_t>{0, 1}));
  cells.push_back(
      actors::make_cell(SampleColumn::kReferenceLogprobs, std::vector<float>{-2.0F, -3.0F}));
  ack(SampleTask::kRollout, rows_of(SampleTask::kRollout, 1), cells);
  cells = reward_cells();
  cells.push_back(actors::make_cell(SampleColumn::kTokenRewards, std::vector<float>{0.0F, 1.0F}));
  ack(SampleTask::kReward, rows_of(SampleTask::kReward, 1), cells);
  const auto decided = rows_of(SampleTask::kAdvantage, 1);
  ASSERT_THAT(decided, SizeIs(1));
  EXPECT_THAT(actors::read_optional_cell<float>(decided[0], SampleColumn::kTokenRewards),
              ElementsAre(0.0F, 1.0F));
  EXPECT_EQ(actors::find_optional_cell(decided[0], SampleColumn::kValues), nullptr);
  cells = advantage_cells();
  cells.push_back(
      actors::make_cell(SampleColumn::kTokenAdvantages, std::vector<float>{0.25F, 0.75F}));
  ack(SampleTask::kAdvantage, decided, cells);
  const auto trained = rows_of(SampleTask::kTrain, 1);
  ASSERT_THAT(trained, SizeIs(1));
  EXPECT_THAT(actors::read_optional_cell<std::uint8_t>(trained[0], SampleColumn::kResponseMask),
              ElementsAre(0, 1));
  EXPECT_THAT(actors::read_optional_cell<float>(trained[0], SampleColumn::kReferenceLogprobs),
              ElementsAre(-2.0F, -3.0F));
  EXPECT_THAT(actors::read_optional_cell<float>(trained[0], SampleColumn::kTokenAdvantages),
              ElementsAre(0.25F, 0.75F));
}

TEST_P(StreamColumnsTest, ProgressTravelsThroughACommitToTheNextConsumer) {
  put(0);
  const auto rows = rows_of(SampleTask::kRollout, 1);
  const engines::VersionSpan span{{0, 1, 6}, 2};
  actors::LeaseUpdate left = lease_update_of(SampleTask::kRollout, rows, "draining");
  left.release = storage::Release::kLeft;
  left.rows.at(0).columns = {
      actors::make_cell(SampleColumn::kPartialIds, std::vector<std::int32_t>{7, 8}),
      actors::make_cell(SampleColumn::kPartialLogprobs, std::vector<float>{-1.0F, -2.0F}),
      actors::make_versions_cell({&span, 1}, SampleColumn::kPartialVersions)};
  const auto reply = ask<Settlement>(consumers(), atom::nack_v, left);
  drain();
  ASSERT_TRUE(reply.ok());
  EXPECT_THAT(reply.value().done, SizeIs(1));
  EXPECT_EQ(counts().returned, (storage::ReturnedDeliveries{1, 0, 0}));

  const auto captured = ask<actors::StreamCapture>(stream_, atom::capture_v);
  drain();
  ASSERT_TRUE(captured.ok());
  const auto restored = actors::decode_stream_image(actors::encode_stream_image(captured.value()));
  ASSERT_TRUE(restored.ok()) << restored.status().to_string();
  stream_ = keep(actors::spawn_stream(
      system(), {options_,
                 keep(spawn_fake_keeper(system(), std::make_shared<FakeKeeper>())),
                 restored.value(),
                 {}}));
  const auto again = rows_of(SampleTask::kRollout, 1);
  ASSERT_THAT(again, SizeIs(1));
  EXPECT_THAT(actors::read_cell<std::int32_t>(again[0], SampleColumn::kPartialIds).value(),
              ElementsAre(7, 8));
  EXPECT_THAT(
      actors::cell_versions(actors::find_cell(again[0], SampleColumn::kPartialVersions).value()),
      ElementsAre(span));
  EXPECT_THAT(settle(SampleTask::kRollout, again, rollout_cells()).done, SizeIs(1));
  EXPECT_EQ(counts().bytes, 2 * (12 + 8 + 6 + 2) + 8 + 8 + 24 + 1);
}

// A commit of a program that knew ten columns.
TEST_P(StreamColumnsTest, AnImageWithTheFirstColumnsOnlyIsRestored) {
  put(0);
  ack(SampleTask::kRollout, rows_of(SampleTask::kRollout, 1), rollout_cells());
  const auto captured = ask<actors::StreamCapture>(stream_, atom::capture_v);
  drain();
  ASSERT_TRUE(captured.ok());
  actors::StreamCapture earlier = captured.value();
  earlier.snapshot.index.columns.resize(10);
  const auto restored = actors::decode_stream_image(actors::encode_stream_image(earlier));
  ASSERT_TRUE(restored.ok()) << restored.status().to_string();
  stream_ = keep(actors::spawn_stream(
      system(), {options_,
                 keep(spawn_fake_keeper(system(), std::make_shared<FakeKeeper>())),
                 restored.value(),
                 {}}));
  EXPECT_EQ(counts().live, 2U);
  EXPECT_THAT(rows_of(SampleTask::kReward, 2), SizeIs(1));
}

}  // namespace
}  // namespace tidemill::test
