// SPDX-License-Identifier: Apache-2.0
// The contract of actors/reward/spawn.hpp.
#include <chrono>
#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/reward/spawn.hpp"
#include "tests/actors/sample_rows.hpp"
#include "tests/support/actor_test.hpp"
#include "tests/support/fake_actors.hpp"
#include "tests/support/fake_reward_engine.hpp"
#include "tests/support/remote_workers.hpp"
#include "tests/support/watched_port.hpp"

namespace tidemill::test {
namespace {

using actors::LeaseReply;
using actors::SampleTask;
using namespace std::chrono_literals;

// The parameter says whether the worker reaches its stream through a process boundary.
class RewardWorkerTest : public ActorTest, public ::testing::WithParamInterface<bool> {
protected:
  void SetUp() override {
    stream_handle_ = keep(spawn_fake_stream(system(), stream_));
    actors::RewardWorkerDeps deps;
    deps.max_in_flight = 4;
    deps.max_unscored = 6;
    deps.engine = engine_;
    deps.decode = [this](const std::vector<std::int32_t>& ids) {
      ++(watched_port_.in_work() ? decoded_in_work_ : decoded_elsewhere_);
      return std::to_string(ids.size());
    };
    deps.port = &watched_port_;
    deps.log = [this](const std::string& line) { log_.push_back(line); };
    if (GetParam()) {
      remote_.emplace(system(), stream_handle_, [&](const actors::StreamConsumerActor& stream) {
        deps.stream = stream;
        worker_ = keep(actors::spawn_reward_worker(system(), deps));
        return caf::actor_cast<caf::actor>(worker_);
      });
      keep(remote_->start("reward", 0));
      drain();
    } else {
      deps.stream = stream_handle_;
      worker_ = keep(actors::spawn_reward_worker(system(), std::move(deps)));
    }
    exit_ = exit_of(worker_);
  }
  void TearDown() override {
    if (remote_.has_value()) {
      remote_->stop();
    }
    ActorTest::TearDown();
  }
  static storage::LeasedRow row(std::uint64_t id) { return trainable_row(id, 0); }
  void lease(std::vector<storage::LeasedRow> rows, bool ended = false) {
    LeaseReply reply;
    reply.rows = std::move(rows);
    reply.lease_time = 60s;
    reply.ended = ended;
    take(stream_->leases).reply(std::move(reply));
    drain();
  }

  std::shared_ptr<FakeStream> stream_ = std::make_shared<FakeStream>();
  std::shared_ptr<FakeRewardEngine> engine_ = std::make_shared<FakeRewardEngine>();
  actors::StreamActor stream_handle_;
  actors::RewardWorkerActor worker_;
  std::shared_ptr<std::optional<Status>> exit_;
  std::optional<RemoteWorkers> remote_;
  std::vector<std::string> log_;
  WatchedWorkPort watched_port_{port()};
  int decoded_in_work_ = 0;
  int decoded_elsewhere_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Places, RewardWorkerTest, ::testing::Bool(), place_name);

TEST_P(RewardWorkerTest, ScoresLeasedRowsAndWritesTheRewardsBack) {
  ASSERT_EQ(stream_->leases.size(), 1U);
  EXPECT_EQ(stream_->leases.front().request.task, actors::task_id(SampleTask::kReward));
  EXPECT_EQ(stream_->leases.front().request.max_units, 4U);
  engine_->reward = 0.75;
  lease({row(0), row(1)});
  ASSERT_EQ(engine_->requests.size(), 2U);
  EXPECT_EQ(engine_->requests[0].prompt, "prompt 0");
  EXPECT_EQ(engine_->requests[0].reference_answer, "answer");
  EXPECT_EQ(engine_->requests[0].fields, "{}");
  EXPECT_EQ(engine_->requests[0].response, "2");  // as decoded
  advance(0s);
  ASSERT_EQ(stream_->acks.size(), 1U);
  ASSERT_EQ(stream_->acks[0].rows.size(), 2U);
  storage::LeasedRow read;
  read.columns = stream_->acks[0].rows[1].columns;
  EXPECT_EQ(actors::read_cell<double>(read, actors::SampleColumn::kReward).value(),
            (std::vector<double>{0.75}));
}

TEST_P(RewardWorkerTest, ADrainedWorkerScoresItsRowsAndEnds) {
  lease({row(0), row(1)});
  caf::anon_send(worker_, atom::drain_v);
  drain();
  EXPECT_FALSE(exit_->has_value());
  if (!stream_->leases.empty()) {
    lease({});  // the request was on its way
  }
  EXPECT_TRUE(run_until([&] { return exit_->has_value(); }, 3));
  EXPECT_TRUE((*exit_)->ok()) << (*exit_)->to_string();
  ASSERT_EQ(stream_->acks.size(), 1U);
  EXPECT_EQ(stream_->acks[0].rows.size(), 2U);
  EXPECT_TRUE(stream_->leases.empty());
}

TEST_P(RewardWorkerTest, ADrainedWorkerLeavesRowsThatItsEngineHasNotGot) {
  lease({row(0)});
  lease({row(1)});  // waits until the work at the port is done
  ASSERT_FALSE(stream_->leases.empty());
  caf::anon_send(worker_, atom::drain_v);
  drain();
  ASSERT_EQ(stream_->nacks.size(), 1U);
  EXPECT_EQ(stream_->nacks[0].release, storage::Release::kLeft);
  EXPECT_EQ(stream_->nacks[0].rows.at(0).lease.row, SampleId{1});
  lease({row(2)});  // the reply was on its way
  ASSERT_EQ(stream_->nacks.size(), 2U);
  EXPECT_EQ(stream_->nacks[1].release, storage::Release::kLeft);
  EXPECT_TRUE(run_until([&] { return exit_->has_value(); }, 3));
  EXPECT_TRUE((*exit_)->ok()) << (*exit_)->to_string();
  ASSERT_EQ(stream_->acks.size(), 1U);
  EXPECT_EQ(stream_->acks[0].rows.size(), 1U);
  EXPECT_EQ(engine_->requests.size(), 1U);
}

TEST_P(RewardWorkerTest, WritesThePartsOfASumAfterIt) {
  engine_->parts = {1.0, -0.25};
  lease({row(0)});
  advance(0s);
  ASSERT_EQ(stream_->acks.size(), 1U);
  storage::LeasedRow read;
  read.columns = stream_->acks[0].rows.at(0).columns;
  EXPECT_EQ(actors::read_cell<double>(read, actors::SampleColumn::kReward).value(),
            (std::vector<double>{1.0, 1.0, -0.25}));
}

TEST_P(RewardWorkerTest, GivesBackSamplesThatCannotBeScoredByReason) {
  engine_->error_of[1] = "no number in the answer";
  engine_->reward_of[2] = std::numeric_limits<double>::quiet_NaN();
  engine_->reward_of[3] = -2e30;  // such as a sum of rewards
  lease({row(0), row(1), row(2), row(3)});
  advance(0s);
  ASSERT_EQ(stream_->acks.size(), 1U);
  EXPECT_EQ(stream_->acks[0].rows.size(), 1U);
  ASSERT_EQ(stream_->nacks.size(), 3U);
  EXPECT_EQ(stream_->nacks[0].reason, "reward: beyond 1e30");
  EXPECT_EQ(stream_->nacks[0].rows.at(0).lease.row, SampleId{3});
  EXPECT_EQ(stream_->nacks[1].reason, "reward: no number in the answer");
  EXPECT_EQ(stream_->nacks[2].reason, "reward: not a finite number");
  EXPECT_EQ(stream_->nacks[2].rows.at(0).lease.row, SampleId{2});
}

TEST_P(RewardWorkerTest, LogsSamplesWithoutARewardOnceInTenSeconds) {
  engine_->refusal = invalid_argument("the row is not an object");
  lease({row(0), row(1)});
  advance(0s);
  EXPECT_THAT(log_, ::testing::ElementsAre(
                        "reward-0: 2 samples without a reward, delivered up to "
                        "stream.max_deliveries times; the last: reward: the row is not an object"));
  lease({row(2)});
  advance(0s);
  EXPECT_EQ(log_.size(), 1U);
  advance(10s);
  lease({row(3), row(4)});
  advance(0s);
  ASSERT_EQ(log_.size(), 2U);
  EXPECT_THAT(log_[1], ::testing::HasSubstr("reward-0: 3 samples without a reward"));
}

TEST_P(RewardWorkerTest, TheLogHasTheReasonOfTheLastSample) {
  engine_->error_of[0] = "z: first";
  engine_->error_of[1] = "a: last";
  lease({row(0), row(1)});
  advance(0s);
  ASSERT_EQ(log_.size(), 1U);
  EXPECT_THAT(log_[0], ::testing::EndsWith("times; the last: reward: a: last"));
}

TEST_P(RewardWorkerTest, GivesBackSamplesThatTheEngineRefusesAndContinues) {
  engine_->refusal = invalid_argument("the row is not an object");
  lease({row(0)});
  advance(0s);
  ASSERT_EQ(stream_->nacks.size(), 1U);
  EXPECT_EQ(stream_->nacks[0].reason, "reward: the row is not an object");
  EXPECT_EQ(stream_->nacks[0].release, storage::Release::kFailed);
  EXPECT_FALSE(exit_->has_value());
  EXPECT_EQ(stream_->leases.size(), 1U);
}

TEST_P(RewardWorkerTest, EndsIfTooManySamplesInARowHaveNoReward) {
  engine_->refusal = invalid_argument("the row is not an object");
  lease({row(0), row(1), row(2)});
  advance(0s);
  EXPECT_FALSE(exit_->has_value());
  lease({row(3), row(4), row(5)});
  advance(0s);
  ASSERT_TRUE(exit_->has_value());
  EXPECT_EQ((*exit_)->code(), Errc::kInvalidArgument);
  EXPECT_EQ((*exit_)->message(),
            "6 samples in a row without a reward; the last: reward: the row is not an object");
}

// The lease of a row is lost while the engine has its sample, and the worker leases the row again.
// The result of the first submission then says nothing about the second delivery.
TEST_P(RewardWorkerTest, ALateFailureIsNotChargedToTheNextDelivery) {
  engine_->thinking = true;
  lease({row(0)});
  stream_->refused = {{{{0}, 0, 1}, storage::Refusal::kNotLeased}};
  advance(30s);  // the renewal is refused
  stream_->refused.clear();
  storage::LeasedRow again = row(0);
  again.lease.generation = 2;
  lease({again});
  while (engine_->requests.size() < 2) {
    advance(0s);
  }
  engine_->thinking = false;
  engine_->one_at_a_time = true;
  engine_->error_of[0] = "no reply within 30000 ms";
  advance(0s);  // the first submission fails
  engine_->error_of.clear();
  advance(0s);
  EXPECT_TRUE(stream_->nacks.empty());
  EXPECT_TRUE(log_.empty());
  EXPECT_TRUE(stream_->acks.empty());
  advance(0s);
  ASSERT_EQ(stream_->acks.size(), 1U);
  EXPECT_EQ(stream_->acks[0].rows.at(0).lease.generation, 2U);
}

TEST_P(RewardWorkerTest, ALateRewardIsWrittenOnce) {
  engine_->thinking = true;
  lease({row(0)});
  stream_->refused = {{{{0}, 0, 1}, storage::Refusal::kNotLeased}};
  advance(30s);
  stream_->refused.clear();
  storage::LeasedRow again = row(0);
  again.lease.generation = 2;
  lease({again});
  while (engine_->requests.size() < 2) {
    advance(0s);
  }
  engine_->thinking = false;
  engine_->one_at_a_time = true;
  for (int i = 0; i < 4; ++i) {
    advance(0s);
  }
  ASSERT_EQ(stream_->acks.size(), 1U);
  EXPECT_EQ(stream_->acks[0].rows.at(0).lease.generation, 2U);
  EXPECT_TRUE(stream_->nacks.empty());
}

// An engine that could not be made: no sample is charged for it, and a restart may succeed.
TEST_P(RewardWorkerTest, EndsIfTheEngineIsUnavailable) {
  engine_->refusal = {Errc::kUnavailable, "the program does not start"};
  lease({row(0), row(1)});
  advance(0s);
  ASSERT_TRUE(exit_->has_value());
  EXPECT_EQ((*exit_)->code(), Errc::kUnavailable);
  EXPECT_EQ((*exit_)->message(), "the program does not start");
  EXPECT_TRUE(stream_->nacks.empty());
}

TEST_P(RewardWorkerTest, DecodesAtThePort) {
  lease({row(0)});
  ASSERT_EQ(engine_->requests.size(), 1U);
  EXPECT_EQ(decoded_in_work_, 1);
  EXPECT_EQ(decoded_elsewhere_, 0);
}

TEST_P(RewardWorkerTest, GivesBackARowThatLacksAColumn) {
  storage::LeasedRow broken = row(0);
  broken.columns.clear();
  lease({broken, row(1)});
  advance(0s);
  ASSERT_EQ(stream_->nacks.size(), 1U);
  EXPECT_EQ(stream_->nacks[0].rows.at(0).lease.row, SampleId{0});
  EXPECT_EQ(engine_->requests.size(), 1U);
}

TEST_P(RewardWorkerTest, RenewsTheLeasesOfSamplesThatAreNotScoredYet) {
  engine_->thinking = true;
  lease({row(0), row(1)});
  advance(30s);
  ASSERT_FALSE(stream_->renewals.empty());
  EXPECT_EQ(stream_->renewals.front().rows.size(), 2U);
  EXPECT_EQ(stream_->renewals.front().task, actors::task_id(SampleTask::kReward));
  engine_->thinking = false;
  ASSERT_TRUE(run_until([&] { return stream_->acks.size() == 1; }));
  const std::size_t renewals = stream_->renewals.size();
  advance(5min);
  EXPECT_EQ(stream_->renewals.size(), renewals);  // no row is held
}

TEST_P(RewardWorkerTest, RowsLeasedDuringAStepOfTheEngineWaitForIt) {
  lease({row(0)});
  ASSERT_EQ(engine_->requests.size(), 1U);
  lease({row(1)});  // a step of the engine is at the port
  EXPECT_EQ(engine_->requests.size(), 1U);
  advance(0s);
  EXPECT_EQ(engine_->requests.size(), 2U);
}

TEST_P(RewardWorkerTest, ExitsWithTheErrorOfAnEngineThatGivesUp) {
  engine_->failure = {Errc::kUnavailable, "the program died 3 times in a row"};
  lease({row(0)});
  advance(0s);
  ASSERT_TRUE(exit_->has_value());
  EXPECT_EQ((*exit_)->message(), "the program died 3 times in a row");
}

TEST_P(RewardWorkerTest, RetriesAfterAFailureOfTheStream) {
  take(stream_->leases).fail({Errc::kUnavailable, "not now"});
  drain();
  EXPECT_TRUE(stream_->leases.empty());
  advance(200ms);
  EXPECT_EQ(stream_->leases.size(), 1U);
}

TEST_P(RewardWorkerTest, DoesNotExitIfTheStreamDies) {
  kill(stream_handle_);
  advance(10s);
  EXPECT_FALSE(exit_->has_value());  // the supervisor terminates it with the other actors
}

TEST_P(RewardWorkerTest, SendsNoRequestsAfterTheTaskHasEnded) {
  lease({}, /*ended=*/true);
  advance(1min);
  EXPECT_TRUE(stream_->leases.empty());
}

}  // namespace
}  // namespace tidemill::test
