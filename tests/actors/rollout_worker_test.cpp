// SPDX-License-Identifier: Apache-2.0
// The contract of actors/rollout/spawn.hpp.
#include <chrono>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/rollout/spawn.hpp"
#include "tests/actors/sample_rows.hpp"
#include "tests/support/actor_test.hpp"
#include "tests/support/fake_actors.hpp"
#include "tests/support/remote_serving.hpp"
#include "tests/support/remote_workers.hpp"

namespace tidemill::test {
namespace {

using actors::LeaseReply;
using actors::SampleTask;
using engines::FinishReason;
using namespace std::chrono_literals;
using ::testing::HasSubstr;

class RolloutWorkerFixture : public ActorTest {
protected:
  // Starts the worker. If it `is_remote`, it reaches its stream and its device through a process
  // boundary.
  void start(bool is_remote) {
    stream_handle_ = keep(spawn_fake_stream(system(), stream_));
    device_handle_ = keep(spawn_fake_device(system(), device_));
    actors::RolloutWorkerDeps deps;
    deps.serving = device_handle_;
    deps.max_in_flight = 4;
    deps.max_failed = 3;
    deps.seed = 11;
    deps.max_new_tokens = 9;
    deps.stop_ids = {2};
    deps.stop_strings = {"end"};
    deps.sampling.temperature = 0.5F;
    if (is_remote) {
      serving_.emplace(system(), device_handle_, port());
      deps.serving = serving_->serving();
      remote_.emplace(system(), stream_handle_, [&](const actors::StreamConsumerActor& stream) {
        deps.stream = stream;
        worker_ = keep(actors::spawn_rollout_worker(system(), deps));
        return caf::actor_cast<caf::actor>(worker_);
      });
      keep(remote_->start("rollout", 0));
      drain();
    } else {
      deps.stream = stream_handle_;
      worker_ = keep(actors::spawn_rollout_worker(system(), std::move(deps)));
    }
    exit_ = exit_of(worker_);
  }
  void TearDown() override {
    if (remote_.has_value()) {
      serving_->stop();
      remote_->stop();
    }
    ActorTest::TearDown();
  }
  static storage::LeasedRow row(std::uint64_t id, std::uint64_t generation = 1) {
    storage::LeasedRow leased;
    leased.row.id = {id};
    leased.row.min_step = 3;
    leased.lease = {{id}, 0, generation};
    leased.columns = sample_group(0, 1).rows.front().columns;
    return leased;
  }
  void lease(std::vector<storage::LeasedRow> rows, bool ended = false) {
    LeaseReply reply;
    reply.rows = std::move(rows);
    reply.lease_time = 60s;
    reply.ended = ended;
    take(stream_->leases).reply(std::move(reply));
    drain();
  }
  static engines::RolloutResult result(std::uint64_t id, FinishReason reason) {
    return {{id}, {7, 8}, {-0.5F, -0.25F}, {{{0, 0, 5}, 1}, {{0, 0, 4}, 1}}, reason, "", {}, {}};
  }
  void respond(FinishReason reason = FinishReason::kStop) {
    auto pending = take(device_->generations);
    pending.reply(result(pending.request.id.value, reason));
    drain();
  }
  void respond_with(std::size_t tokens) {
    auto pending = take(device_->generations);
    engines::RolloutResult large = result(pending.request.id.value, FinishReason::kLength);
    large.response_ids.assign(tokens, 7);
    large.behavior_logprobs.assign(tokens, -0.5F);
    large.versions = {{{0, 0, 5}, static_cast<std::uint32_t>(tokens)}};
    pending.reply(std::move(large));
    drain();
  }
  // Replies to the ack that the stream holds, and returns the rows that it had.
  std::vector<std::uint64_t> settle_ack(std::vector<storage::RefusedRow> refused = {}) {
    auto ack = take(stream_->held_acks);
    storage::Settlement settlement = settled(ack.request.rows);
    settlement.refused = std::move(refused);
    ack.reply(std::move(settlement));
    drain();
    std::vector<std::uint64_t> rows;
    for (const storage::HeldRow& row : ack.request.rows) {
      rows.push_back(row.lease.row.value);
    }
    return rows;
  }

  // Lets a day pass. A link that does nothing for a whole day ends.
  void pass_a_day() {
    advance(12h);
    advance(12h);
  }

  std::shared_ptr<FakeStream> stream_ = std::make_shared<FakeStream>();
  std::shared_ptr<FakeDevice> device_ = std::make_shared<FakeDevice>();
  actors::StreamActor stream_handle_;
  actors::DeviceActor device_handle_;
  actors::RolloutWorkerActor worker_;
  std::shared_ptr<std::optional<Status>> exit_;
  std::optional<RemoteWorkers> remote_;
  std::optional<RemoteServing> serving_;
};

// The parameter says whether the worker is remote.
class RolloutWorkerTest : public RolloutWorkerFixture, public ::testing::WithParamInterface<bool> {
protected:
  void SetUp() override { start(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Places, RolloutWorkerTest, ::testing::Bool(), place_name);

TEST_P(RolloutWorkerTest, RequestsAsManyRowsAsItMayStillHold) {
  ASSERT_EQ(stream_->leases.size(), 1U);
  EXPECT_EQ(stream_->leases.front().request.task, actors::task_id(SampleTask::kRollout));
  EXPECT_EQ(stream_->leases.front().request.max_units, 4U);
  lease({row(0), row(1), row(2)});
  ASSERT_EQ(stream_->leases.size(), 1U);
  EXPECT_EQ(stream_->leases.front().request.max_units, 1U);
  lease({row(3)});
  EXPECT_TRUE(stream_->leases.empty());  // full
  respond();
  ASSERT_EQ(stream_->leases.size(), 1U);
  EXPECT_EQ(stream_->leases.front().request.max_units, 1U);
}

TEST_P(RolloutWorkerTest, ResponsesThatTheStreamRefusesAreFailedDeliveries) {
  for (std::uint64_t id = 0; id < 3; ++id) {
    ASSERT_FALSE(exit_->has_value());
    stream_->refused = {{{{id}, 0, 1}, storage::Refusal::kBadColumn, "column response_ids: bad"}};
    lease({row(id)});
    respond();
  }
  ASSERT_TRUE(exit_->has_value());
  EXPECT_EQ((*exit_)->message(),
            "3 samples in a row without a response; the last: column response_ids: bad");
}

TEST_P(RolloutWorkerTest, SendsEachPromptToTheDeviceWithItsOptions) {
  lease({row(6)});
  ASSERT_EQ(device_->generations.size(), 1U);
  const engines::RolloutRequest& request = device_->generations.front().request;
  EXPECT_EQ(request.id, SampleId{6});
  EXPECT_EQ(request.prompt_ids, (std::vector<std::int32_t>{1, 2, 3}));
  EXPECT_EQ(request.seed, 11U);
  EXPECT_EQ(request.max_new_tokens, 9);
  EXPECT_EQ(request.stop_ids, (std::vector<std::int32_t>{2}));
  EXPECT_EQ(request.stop_strings, (std::vector<std::string>{"end"}));
  EXPECT_EQ(request.min_step, 3U);
  EXPECT_EQ(request.sampling.temperature, 0.5F);
}

TEST_P(RolloutWorkerTest, ADrainedWorkerFinishesItsRowsAndLeavesOthers) {
  lease({row(0)});
  caf::anon_send(worker_, atom::drain_v);
  drain();
  lease({row(1), row(2)});  // the reply was on its way
  EXPECT_TRUE(stream_->leases.empty()) << "it asks for no more rows";
  ASSERT_EQ(stream_->nacks.size(), 1U);
  EXPECT_EQ(stream_->nacks[0].release, storage::Release::kLeft);
  EXPECT_EQ(stream_->nacks[0].rows.size(), 2U);
  EXPECT_EQ(device_->generations.size(), 1U);
  EXPECT_FALSE(exit_->has_value());
  respond();
  ASSERT_TRUE(exit_->has_value());
  EXPECT_TRUE((*exit_)->ok()) << (*exit_)->to_string();
  EXPECT_EQ(stream_->acks.size(), 1U);
}

TEST_P(RolloutWorkerTest, ACancelledResponseIsNoFailureOfItsRow) {
  lease({row(0)});
  respond(FinishReason::kCancelled);
  ASSERT_EQ(stream_->nacks.size(), 1U);
  EXPECT_EQ(stream_->nacks[0].release, storage::Release::kLost);
}

TEST_P(RolloutWorkerTest, ADrainedWorkerWithoutRowsEndsWithTheReplyToItsRequest) {
  caf::anon_send(worker_, atom::drain_v);
  drain();
  EXPECT_FALSE(exit_->has_value());
  lease({});
  ASSERT_TRUE(exit_->has_value());
  EXPECT_TRUE((*exit_)->ok());
}

TEST_P(RolloutWorkerTest, WritesAResponseBackInOneMessage) {
  lease({row(6)});
  respond(FinishReason::kLength);
  ASSERT_EQ(stream_->acks.size(), 1U);
  const storage::HeldRow& written = stream_->acks.front().rows.at(0);
  EXPECT_EQ(written.lease, (storage::Lease{{6}, 0, 1}));
  EXPECT_EQ(written.facts.tokens, 2U);
  EXPECT_EQ(written.facts.oldest_step, 4U);  // the smallest of its spans
  EXPECT_EQ(written.columns.size(), 4U);
  storage::LeasedRow read;
  read.columns = written.columns;
  EXPECT_EQ(actors::read_cell<std::int32_t>(read, actors::SampleColumn::kResponseIds).value(),
            (std::vector<std::int32_t>{7, 8}));
  EXPECT_EQ(actors::cell_versions(actors::find_cell(read, actors::SampleColumn::kVersions).value())
                .size(),
            2U);
  EXPECT_TRUE(stream_->nacks.empty());
}

TEST_P(RolloutWorkerTest, AcksTogetherWhatArrivesWhileAnAckIsOnItsWay) {
  stream_->holds_acks = true;
  lease({row(0), row(1), row(2), row(3)});
  for (int i = 0; i < 3; ++i) {
    respond();
  }
  ASSERT_EQ(stream_->held_acks.size(), 1U);
  EXPECT_EQ(settle_ack(), std::vector<std::uint64_t>{0});
  ASSERT_EQ(stream_->held_acks.size(), 1U);
  EXPECT_EQ(settle_ack(), (std::vector<std::uint64_t>{1, 2}));
  EXPECT_TRUE(stream_->held_acks.empty());
  respond();
  EXPECT_EQ(settle_ack(), std::vector<std::uint64_t>{3});
}

// Three responses of 800 KiB each wait: two of them exceed what is added to.
TEST_P(RolloutWorkerTest, AcksLargeResponsesOneAfterTheOther) {
  constexpr std::size_t kTokens = 100'000;
  stream_->holds_acks = true;
  lease({row(0), row(1), row(2), row(3)});
  for (int i = 0; i < 4; ++i) {
    respond_with(kTokens);
  }
  EXPECT_EQ(settle_ack(), std::vector<std::uint64_t>{0});
  EXPECT_EQ(settle_ack(), (std::vector<std::uint64_t>{1, 2}));
  EXPECT_EQ(settle_ack(), std::vector<std::uint64_t>{3});
}

TEST_P(RolloutWorkerTest, DoesNotAckARowThatItLosesMeanwhile) {
  stream_->holds_acks = true;
  lease({row(0), row(1), row(2), row(3)});
  respond();
  respond();
  stream_->refused = {{{{1}, 0, 1}, storage::Refusal::kNotLeased, "expired"}};
  advance(20s);
  stream_->refused = {};
  respond();
  EXPECT_EQ(settle_ack(), std::vector<std::uint64_t>{0});
  EXPECT_EQ(settle_ack(), std::vector<std::uint64_t>{2});
}

TEST_P(RolloutWorkerTest, ARowThatTheStreamTakesEndsTheFailuresInARow) {
  const auto bad = [](std::uint64_t id) {
    return storage::RefusedRow{{{id}, 0, 1}, storage::Refusal::kBadColumn, "bad"};
  };
  stream_->holds_acks = true;
  lease({row(0), row(1), row(2), row(3)});
  for (int i = 0; i < 4; ++i) {
    respond();
  }
  settle_ack({bad(0)});
  settle_ack({bad(1), bad(3)});
  EXPECT_FALSE(exit_->has_value()) << "row 2 was taken";
}

TEST_P(RolloutWorkerTest, GivesBackRowsThatFailedOrWereCancelled) {
  lease({row(0), row(1)});
  auto failed = take(device_->generations);
  auto response = result(0, FinishReason::kFailed);
  response.error = "no room";
  failed.reply(response);
  respond(FinishReason::kCancelled);
  ASSERT_EQ(stream_->nacks.size(), 2U);
  EXPECT_EQ(stream_->nacks[0].reason, "rollout failed: no room");
  EXPECT_EQ(stream_->nacks[1].reason, "rollout cancelled");
  EXPECT_TRUE(stream_->acks.empty());
}

TEST_P(RolloutWorkerTest, GivesBackRowsThatTheDeviceRefuses) {
  lease({row(0)});
  take(device_->generations).fail(invalid_argument("token outside the vocabulary"));
  drain();
  ASSERT_EQ(stream_->nacks.size(), 1U);
  EXPECT_THAT(stream_->nacks[0].reason, HasSubstr("token outside the vocabulary"));
}

TEST_P(RolloutWorkerTest, GivesBackARowWithoutAPrompt) {
  storage::LeasedRow broken = row(0);
  broken.columns.clear();
  lease({broken});
  ASSERT_EQ(stream_->nacks.size(), 1U);
  EXPECT_THAT(stream_->nacks[0].reason, HasSubstr("prompt_ids"));
  EXPECT_TRUE(device_->generations.empty());
}

// The device would refuse all further samples too, and the run would go on without an end.
TEST_P(RolloutWorkerTest, EndsIfTooManySamplesInARowHaveNoResponse) {
  const auto fail_one = [this](std::uint64_t id) {
    lease({row(id)});
    take(device_->generations).fail(invalid_argument("top_p: must be in (0, 1]"));
    drain();
  };
  fail_one(0);
  fail_one(1);
  lease({row(2)});
  respond();
  fail_one(3);
  fail_one(4);
  EXPECT_FALSE(exit_->has_value());
  fail_one(5);
  ASSERT_TRUE(exit_->has_value());
  EXPECT_EQ((*exit_)->code(), Errc::kInvalidArgument);
  EXPECT_EQ((*exit_)->message(),
            "3 samples in a row without a response; the last: rollout: top_p: must be in (0, 1]");
}

// Time in which the device trains would count, so only the number of tokens is limited.
TEST_P(RolloutWorkerTest, LimitsNeitherTheGenerationOfAResponseNorItsWaitInTheDevice) {
  lease({row(0)});
  EXPECT_EQ(device_->generations.front().request.time_limit, 0s);
  advance(3h);  // behind other rows, or until its version is served
  EXPECT_TRUE(stream_->nacks.empty());
  EXPECT_TRUE(device_->cancelled.empty());
  respond();
  EXPECT_EQ(stream_->acks.size(), 1U);
}

TEST_P(RolloutWorkerTest, AResponseThatTakesTooLongIsAFailureOfTheRow) {
  lease({row(0)});
  auto response = result(0, FinishReason::kCancelled);
  response.error = "exceeded its time limit";
  take(device_->generations).reply(response);
  drain();
  ASSERT_EQ(stream_->nacks.size(), 1U);
  EXPECT_EQ(stream_->nacks[0].release, storage::Release::kFailed);
  EXPECT_EQ(stream_->nacks[0].reason, "rollout cancelled: exceeded its time limit");
}

TEST_P(RolloutWorkerTest, GivesBackAndCancelsARowThatTheDeviceNeverStarts) {
  lease({row(0)});
  advance(23h);
  EXPECT_TRUE(stream_->nacks.empty());
  advance(1h);
  ASSERT_EQ(stream_->nacks.size(), 1U);
  EXPECT_EQ(stream_->nacks[0].release, storage::Release::kLost);
  EXPECT_EQ(device_->cancelled, (std::vector<SampleId>{{0}}));
  EXPECT_FALSE(exit_->has_value());
}

TEST_P(RolloutWorkerTest, GivesBackAllRowsAndContinuesIfTheDeviceDies) {
  lease({row(0), row(1)});
  kill(device_handle_);
  pass_a_day();
  EXPECT_EQ(stream_->nacks.size(), 2U);
  EXPECT_FALSE(exit_->has_value());
}

TEST_P(RolloutWorkerTest, ALostReplyIsNotAFailureOfTheRow) {
  lease({row(0), row(1)});
  take(device_->generations).fail(invalid_argument("token outside the vocabulary"));
  drain();
  kill(device_handle_);
  pass_a_day();
  ASSERT_EQ(stream_->nacks.size(), 2U);
  EXPECT_EQ(stream_->nacks[0].release, storage::Release::kFailed);
  EXPECT_EQ(stream_->nacks[1].release, storage::Release::kLost);
}

TEST_P(RolloutWorkerTest, ALateRefusalOfAnOldLeaseLeavesTheNewOneAlone) {
  lease({row(0)});
  stream_->refused = {{{{0}, 0, 1}, storage::Refusal::kOldLease}};
  lease({row(0, 2)});
  advance(30s);  // a renewal is refused for generation 1 only
  ASSERT_FALSE(stream_->renewals.empty());
  stream_->refused.clear();
  device_->generations.erase(device_->generations.begin());  // of the first lease
  respond();
  ASSERT_EQ(stream_->acks.size(), 1U) << "the row is still held";
  EXPECT_EQ(stream_->acks.front().rows.at(0).lease, (storage::Lease{{0}, 0, 2}));
}

TEST_P(RolloutWorkerTest, RenewsTheLeasesThatItHolds) {
  lease({row(0), row(1)});
  advance(30s);
  ASSERT_FALSE(stream_->renewals.empty());
  EXPECT_EQ(stream_->renewals.front().rows.size(), 2U);
  EXPECT_EQ(stream_->renewals.front().task, actors::task_id(SampleTask::kRollout));
  respond();
  respond();
  const std::size_t renewals = stream_->renewals.size();
  advance(5min);
  EXPECT_EQ(stream_->renewals.size(), renewals);  // no row is held
}

// While it held as many rows as it may, it had no request at the stream.
TEST_P(RolloutWorkerTest, AFullWorkerThatLosesItsLeasesRequestsMore) {
  lease({row(0), row(1), row(2), row(3)});
  ASSERT_TRUE(stream_->leases.empty());
  for (std::uint64_t id = 0; id < 4; ++id) {
    stream_->refused.push_back({{{id}, 0, 1}, storage::Refusal::kOldLease});
  }
  advance(30s);
  ASSERT_EQ(stream_->leases.size(), 1U);
  EXPECT_EQ(stream_->leases.front().request.max_units, 4U);
}

TEST_P(RolloutWorkerTest, CancelsARowThatItHasLost) {
  lease({row(0)});
  stream_->refused = {{{{0}, 0, 1}, storage::Refusal::kNotLeased}};
  advance(30s);
  EXPECT_EQ(device_->cancelled, (std::vector<SampleId>{{0}}));
  stream_->refused.clear();
  respond(FinishReason::kCancelled);
  EXPECT_TRUE(stream_->nacks.empty());
  EXPECT_TRUE(stream_->acks.empty());
}

TEST_P(RolloutWorkerTest, ALateReplyForALostLeaseDoesNotAffectTheNextOne) {
  lease({row(0, 1)});
  stream_->refused = {{{{0}, 0, 1}, storage::Refusal::kNotLeased}};
  advance(30s);
  stream_->refused.clear();
  while (!stream_->leases.empty() && stream_->leases.size() > 1) {
    take(stream_->leases);
  }
  lease({row(0, 2)});  // delivered again, to the same worker
  ASSERT_EQ(device_->generations.size(), 2U);
  respond(FinishReason::kCancelled);  // the first request, cancelled
  EXPECT_TRUE(stream_->nacks.empty());
  respond(FinishReason::kStop);
  ASSERT_EQ(stream_->acks.size(), 1U);
  EXPECT_EQ(stream_->acks.front().rows.at(0).lease.generation, 2U);
}

TEST_P(RolloutWorkerTest, RetriesAfterAFailureOfTheStream) {
  take(stream_->leases).fail({Errc::kUnavailable, "not now"});
  drain();
  EXPECT_TRUE(stream_->leases.empty());
  advance(200ms);
  EXPECT_EQ(stream_->leases.size(), 1U);
  EXPECT_FALSE(exit_->has_value());
}

TEST_P(RolloutWorkerTest, ContinuesAfterAFailedAck) {
  lease({row(0), row(1), row(2), row(3)});
  stream_->failure = {Errc::kUnavailable, "not now"};
  respond();
  EXPECT_TRUE(stream_->leases.empty());
  stream_->failure = {};
  advance(200ms);
  EXPECT_EQ(stream_->leases.size(), 1U);  // the lost row is delivered again when its lease expires
}

// A request to the device may take a day, so a deadline that stayed would stay for long. Links have
// timers too, so the worker is in the same process.
TEST_F(RolloutWorkerFixture, RequestsThatHaveFailedLeaveNoTimer) {
  start(/*is_remote=*/false);
  const auto num_later_than = [this](Duration from) { return num_timers() - num_timers(from); };
  take(stream_->leases).fail({Errc::kUnavailable, "not now"});
  drain();
  EXPECT_EQ(num_later_than(1s), 0U) << "of the lease request";
  advance(200ms);
  lease({row(0), row(1), row(2), row(3)});
  EXPECT_EQ(num_later_than(1h), 4U);
  const std::size_t before_ack = num_later_than(25s);
  stream_->failure = {Errc::kUnavailable, "not now"};
  respond();
  EXPECT_EQ(num_later_than(25s), before_ack - 1) << "of the ack";
  take(device_->generations).fail({Errc::kInvalidArgument, "empty prompt"});
  drain();
  EXPECT_EQ(num_later_than(1h), 2U) << "of the request to the device";
}

TEST_P(RolloutWorkerTest, SendsNoRequestsAfterTheTaskHasEnded) {
  lease({}, /*ended=*/true);
  EXPECT_TRUE(stream_->leases.empty());
  advance(1min);
  EXPECT_TRUE(stream_->leases.empty());
}

}  // namespace
}  // namespace tidemill::test
