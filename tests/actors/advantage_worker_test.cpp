// SPDX-License-Identifier: Apache-2.0
// The contract of actors/advantage/spawn.hpp.
#include <chrono>
#include <string>

#include <gtest/gtest.h>

#include "actors/advantage/spawn.hpp"
#include "tests/actors/sample_rows.hpp"
#include "tests/support/actor_test.hpp"
#include "tests/support/fake_actors.hpp"

namespace tidemill::test {
namespace {

using actors::GroupDecision;
using actors::GroupMember;
using actors::LeaseReply;
using actors::SampleTask;
using storage::VerdictKind;
using namespace std::chrono_literals;

class AdvantageWorkerTest : public ActorTest {
protected:
  void SetUp() override {
    stream_handle_ = keep(spawn_fake_stream(system(), stream_));
    actors::AdvantageWorkerDeps deps;
    deps.stream = stream_handle_;
    deps.max_groups = 5;
    deps.decide = [this](std::span<const GroupMember> group) -> Result<GroupDecision> {
      seen_.assign(group.begin(), group.end());
      if (!failure_.ok()) {
        return failure_;
      }
      return GroupDecision{std::vector<float>(group.size(), 0.5F), filtered_};
    };
    worker_ = keep(actors::spawn_advantage_worker(system(), std::move(deps)));
    exit_ = exit_of(worker_);
  }
  void lease(std::vector<storage::LeasedRow> rows, bool ended = false) {
    LeaseReply reply;
    reply.rows = std::move(rows);
    reply.ended = ended;
    take(stream_->leases).reply(std::move(reply));
    drain();
  }

  std::vector<GroupMember> seen_;
  std::string filtered_;
  Status failure_;
  std::shared_ptr<FakeStream> stream_ = std::make_shared<FakeStream>();
  actors::StreamActor stream_handle_;
  actors::AdvantageWorkerActor worker_;
  std::shared_ptr<std::optional<Status>> exit_;
};

TEST_F(AdvantageWorkerTest, ADrainedWorkerLeavesTheGroupsThatItStillGetsAndEnds) {
  caf::anon_send(worker_, atom::drain_v);
  drain();
  EXPECT_FALSE(exit_->has_value()) << "a request is on its way";
  lease({trainable_row(0, 0), trainable_row(1, 0)});
  EXPECT_TRUE(stream_->acks.empty());
  EXPECT_TRUE(stream_->leases.empty());
  ASSERT_EQ(stream_->nacks.size(), 1U);
  EXPECT_EQ(stream_->nacks[0].rows.size(), 2U);
  EXPECT_EQ(stream_->nacks[0].release, storage::Release::kLeft);
  ASSERT_TRUE(exit_->has_value());
  EXPECT_TRUE((*exit_)->ok());
}

TEST_F(AdvantageWorkerTest, ADrainedWorkerEndsIfItGetsNoMoreGroups) {
  caf::anon_send(worker_, atom::drain_v);
  drain();
  lease({}, /*ended=*/true);
  EXPECT_TRUE(stream_->nacks.empty());
  ASSERT_TRUE(exit_->has_value());
  EXPECT_TRUE((*exit_)->ok());
}

TEST_F(AdvantageWorkerTest, AnIdleWorkerCanBeDrainedAfterTheLastGroup) {
  lease({}, /*ended=*/true);
  EXPECT_TRUE(stream_->leases.empty());
  caf::anon_send(worker_, atom::drain_v);
  drain();
  ASSERT_TRUE(exit_->has_value());
  EXPECT_TRUE((*exit_)->ok());
}

TEST_F(AdvantageWorkerTest, DecidesWholeGroupsAndWritesTheirAdvantages) {
  ASSERT_EQ(stream_->leases.size(), 1U);
  EXPECT_EQ(stream_->leases.front().request.task, actors::task_id(SampleTask::kAdvantage));
  EXPECT_EQ(stream_->leases.front().request.max_units, 5U);
  lease({trainable_row(0, 0, 0, 0.25), trainable_row(1, 0), trainable_row(2, 1)});
  ASSERT_EQ(stream_->acks.size(), 1U);
  EXPECT_EQ(stream_->acks[0].rows.size(), 3U);
  EXPECT_EQ(seen_.size(), 1U);  // the second group, of one row
  EXPECT_EQ(seen_[0].id, SampleId{2});
  EXPECT_EQ(seen_[0].response_tokens, 2U);
  EXPECT_EQ(seen_[0].reward, 1.0);
  EXPECT_FALSE(seen_[0].truncated);
  storage::LeasedRow read;
  read.columns = stream_->acks[0].rows[0].columns;
  EXPECT_EQ(actors::read_cell<float>(read, actors::SampleColumn::kAdvantage).value(),
            (std::vector<float>{0.5F}));
  EXPECT_EQ(stream_->leases.size(), 1U);
}

TEST_F(AdvantageWorkerTest, FilteredGroupsAreRetiredWithTheReason) {
  filtered_ = "no signal";
  lease({trainable_row(0, 4), trainable_row(1, 4)});
  EXPECT_TRUE(stream_->acks.empty());
  ASSERT_EQ(stream_->verdicts.size(), 1U);
  EXPECT_EQ(stream_->verdicts[0].group, GroupId{4});
  EXPECT_EQ(stream_->verdicts[0].verdict, (storage::Verdict{VerdictKind::kFilter, "no signal"}));
  EXPECT_EQ(stream_->leases.size(), 1U);
}

TEST_F(AdvantageWorkerTest, AGroupThatCannotBeDecidedFailsWithTheReason) {
  failure_ = invalid_argument("reward of sample 0 is not finite");
  lease({trainable_row(0, 4)});
  ASSERT_EQ(stream_->verdicts.size(), 1U);
  EXPECT_EQ(stream_->verdicts[0].verdict.kind, VerdictKind::kFail);
  EXPECT_EQ(stream_->verdicts[0].verdict.reason, "advantage: reward of sample 0 is not finite");
}

TEST_F(AdvantageWorkerTest, AnEmptyCellFailsItsGroup) {
  storage::LeasedRow empty = trainable_row(0, 4);
  for (storage::ColumnValue& cell : empty.columns) {
    if (cell.column.value == static_cast<std::uint32_t>(actors::SampleColumn::kReward)) {
      cell = actors::make_cell(actors::SampleColumn::kReward, std::vector<double>{});
    }
  }
  lease({empty});
  ASSERT_EQ(stream_->verdicts.size(), 1U);
  EXPECT_EQ(stream_->verdicts[0].verdict.kind, VerdictKind::kFail);
}

TEST_F(AdvantageWorkerTest, RetriesAfterAFailureOfTheStream) {
  take(stream_->leases).fail({Errc::kUnavailable, "not now"});
  drain();
  EXPECT_TRUE(stream_->leases.empty());
  advance(200ms);
  ASSERT_EQ(stream_->leases.size(), 1U);
  stream_->failure = {Errc::kUnavailable, "not now"};
  lease({trainable_row(0, 0)});
  EXPECT_TRUE(stream_->leases.empty());  // the ack failed; its leases will expire
  advance(200ms);
  EXPECT_EQ(stream_->leases.size(), 1U);
  EXPECT_FALSE(exit_->has_value());
}

TEST_F(AdvantageWorkerTest, SendsNoRequestsAfterTheTaskHasEnded) {
  lease({}, /*ended=*/true);
  advance(1min);
  EXPECT_TRUE(stream_->leases.empty());
}

}  // namespace
}  // namespace tidemill::test
