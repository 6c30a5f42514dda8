// SPDX-License-Identifier: Apache-2.0
// The contract of actors/remote/handles.hpp and spawn.hpp: workers of another process, the gate of
// that process, and its host.
#include <chrono>
#include <list>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/remote/spawn.hpp"
#include "actors/stream/sample_columns.hpp"
#include "tests/actors/sample_rows.hpp"
#include "tests/support/actor_test.hpp"
#include "tests/support/fake_actors.hpp"
#include "tests/support/remote_workers.hpp"

namespace tidemill::test {
namespace {

using actors::LeaseReply;
using actors::MessageKind;
using actors::SampleTask;
using storage::Settlement;
using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RemoteTest : public ActorTest {
protected:
  void SetUp() override {
    stream_handle_ = keep(spawn_fake_stream(system(), stream_));
    add_process();
  }
  void TearDown() override {
    for (RemoteWorkers& process : processes_) {
      process.stop();
    }
    ActorTest::TearDown();
  }

  // A process whose workers drain at once, and fail with a text that they are sent.
  RemoteWorkers& add_process() {
    return processes_.emplace_back(
        system(), stream_handle_,
        [this](const actors::StreamConsumerActor&) {
          return keep(system().spawn([this](caf::event_based_actor* self) {
            return caf::behavior{
                [this, self](atom::drain) {
                  ++drained_;
                  self->quit();
                },
                [self](atom::record, const std::string& why) {
                  self->quit(actors::to_caf_error({Errc::kCorruptData, why}));
                },
            };
          }));
        },
        [](SimulatedPeers&) {});
  }
  RemoteWorkers& process() { return processes_.front(); }
  actors::RemoteWorkerActor start(const actors::StartWorker& worker) {
    auto started = keep(process().start(worker));
    drain();
    return started;
  }
  actors::RemoteWorkerActor start(std::uint32_t number) {
    return start({"reward-" + std::to_string(number), "reward", number});
  }
  // Lets time pass in small steps, so that links exchange their heartbeats.
  void wait(Duration time) {
    for (; time > 0ms; time -= 100ms) {
      advance(100ms);
    }
  }
  Reply<LeaseReply> lease(const std::string& consumer, SampleTask task = SampleTask::kReward) {
    actors::LeaseRequest request = sample_lease(task, 4, 10s);
    request.consumer = consumer;
    auto reply = ask<LeaseReply>(process().stream(), atom::lease_v, request);
    drain();
    return reply;
  }

  std::shared_ptr<FakeStream> stream_ = std::make_shared<FakeStream>();
  actors::StreamActor stream_handle_;
  std::list<RemoteWorkers> processes_;
  int drained_ = 0;
};

// -- start and end of a worker --------------------------------------------------------------------

TEST_F(RemoteTest, AStartedWorkerReachesTheStreamUnderItsName) {
  const auto exit = exit_of(start(0));
  ASSERT_EQ(process().started().size(), 1U);
  const auto reply = lease("reward-0");
  ASSERT_EQ(stream_->leases.size(), 1U);
  EXPECT_EQ(stream_->leases.front().request.consumer, "reward-0");
  EXPECT_EQ(stream_->leases.front().request.wait, Duration(10s));
  LeaseReply rows;
  rows.rows = {trainable_row(7, 3)};
  rows.lease_time = 60s;
  take(stream_->leases).reply(rows);
  drain();
  ASSERT_TRUE(reply.ok()) << reply.status().to_string();
  EXPECT_EQ(reply.value().rows.at(0).row.id, SampleId{7});
  EXPECT_EQ(reply.value().lease_time, Duration(60s));
  EXPECT_FALSE(exit->has_value());
}

TEST_F(RemoteTest, AWorkerThatTheProcessCannotStartEndsWithTheFailure) {
  const struct {
    actors::StartWorker worker;
    Status failure;
  } cases[] = {
      // What a process does not find, it will not find at the next start either.
      {{"missing-0", "missing", 0}, {Errc::kInvalidArgument, "no workers of this kind"}},
      {{"other", "reward", 3},
       {Errc::kInvalidArgument,
        "worker host: worker 3 of kind reward is reward-3 here, not other"}},
  };
  for (const auto& [worker, failure] : cases) {
    const auto exit = exit_of(start(worker));
    ASSERT_TRUE(exit->has_value()) << worker.name;
    EXPECT_EQ((*exit)->code(), failure.code());
    EXPECT_EQ((*exit)->message(), "process worker-1: " + failure.message());
    EXPECT_EQ(lease(worker.name).status().code(), Errc::kNotFound) << "the gate forgets it";
  }
  EXPECT_TRUE(process().started().empty());
}

TEST_F(RemoteTest, ANameIsForOneWorkerAtATime) {
  const auto first = exit_of(start(0));
  const auto worker = exit_of(process().started().front());
  const auto second = exit_of(start(0));
  ASSERT_TRUE(first->has_value());
  EXPECT_EQ((*first)->code(), Errc::kUnavailable);
  EXPECT_EQ((*first)->message(), "reward-0 was started again");
  EXPECT_TRUE(worker->has_value()) << "the first worker has ended";
  EXPECT_FALSE(second->has_value());
  EXPECT_EQ(process().started().size(), 2U);
  lease("reward-0");
  EXPECT_EQ(stream_->leases.size(), 1U) << "the second worker goes on";
}

TEST_F(RemoteTest, ARemoteWorkerEndsAsTheWorkerDoes) {
  const auto finished = exit_of(start(0));
  const auto failed = exit_of(start(1));
  caf::anon_send(process().started()[0], atom::drain_v);
  caf::anon_send(process().started()[1], atom::record_v, std::string("the scorer is broken"));
  drain();
  ASSERT_TRUE(finished->has_value());
  EXPECT_TRUE((*finished)->ok()) << (*finished)->to_string();
  ASSERT_TRUE(failed->has_value());
  EXPECT_EQ((*failed)->code(), Errc::kCorruptData);
  EXPECT_EQ((*failed)->message(), "the scorer is broken");
  EXPECT_TRUE(process().gate_ends().empty());
}

TEST_F(RemoteTest, ADrainedRemoteWorkerLetsTheWorkerFinish) {
  const auto worker = start(0);
  const auto other = exit_of(start(1));
  const auto exit = exit_of(worker);
  caf::anon_send(worker, atom::drain_v);
  drain();
  EXPECT_EQ(drained_, 1);
  ASSERT_TRUE(exit->has_value());
  EXPECT_TRUE((*exit)->ok()) << (*exit)->to_string();
  EXPECT_FALSE(other->has_value());
}

TEST_F(RemoteTest, AWorkerMayBeDrainedBeforeItHasStarted) {
  const auto worker = keep(process().start("reward", 0));
  caf::anon_send(worker, atom::drain_v);
  const auto exit = exit_of(worker);
  ASSERT_TRUE(exit->has_value());
  EXPECT_TRUE((*exit)->ok()) << (*exit)->to_string();
  drain();
  for (const caf::actor& started : process().started()) {
    EXPECT_TRUE(exit_of(started)->has_value()) << "it runs without its stand-in";
  }
  EXPECT_EQ(lease("reward-0").status().code(), Errc::kNotFound);
}

TEST_F(RemoteTest, KillingARemoteWorkerKillsTheWorker) {
  const auto worker = start(0);
  const auto exit = exit_of(process().started().front());
  const auto other = exit_of(start(1));
  kill(worker);
  ASSERT_TRUE(exit->has_value());
  EXPECT_EQ((*exit)->code(), Errc::kUnavailable);
  EXPECT_EQ(drained_, 0);
  EXPECT_FALSE(other->has_value());
  EXPECT_EQ(lease("reward-0").status().code(), Errc::kNotFound);
  start(0);  // its name is free
  EXPECT_EQ(process().started().size(), 3U);
}

// -- end of a process -----------------------------------------------------------------------------

TEST_F(RemoteTest, WhenTheProcessIsLostItsRemoteWorkersEnd) {
  const auto first = exit_of(start(0));
  const auto second = exit_of(start(1));
  process().ports().worker->close("killed");
  wait(20s);
  EXPECT_FALSE(first->has_value()) << "the process may come back";
  wait(15s);
  for (const auto& exit : {first, second}) {
    ASSERT_TRUE(exit->has_value());
    EXPECT_EQ((*exit)->code(), Errc::kUnavailable);
    EXPECT_EQ(
        (*exit)->message(),
        "process worker-1: nothing received for 30 s; the other side has closed the connection");
  }
  wait(60s);
  ASSERT_EQ(process().gate_ends().size(), 1U);
  EXPECT_EQ(process().gate_ends()[0].code(), Errc::kUnavailable);
  EXPECT_EQ(process().gate_ends()[0].message(), (*first)->message());
}

TEST_F(RemoteTest, AWorkerOfALostProcessCannotBeStarted) {
  process().ports().owner->close("the process has exited");
  drain();
  const auto exit = exit_of(start(0));
  ASSERT_TRUE(exit->has_value());
  EXPECT_EQ((*exit)->code(), Errc::kUnavailable);
  EXPECT_TRUE(process().started().empty());
}

TEST_F(RemoteTest, WhenTheOwnerIsLostTheHostKillsItsWorkers) {
  start(0);
  start(1);
  std::vector<std::shared_ptr<std::optional<Status>>> exits;
  for (const caf::actor& worker : process().started()) {
    exits.push_back(exit_of(worker));
  }
  const auto host = exit_of(process().host());
  process().ports().owner->close("killed");
  wait(35s);
  EXPECT_THAT(process().host_ends(),
              ElementsAre("nothing received for 30 s; the other side has closed the connection"));
  for (const auto& exit : exits) {
    EXPECT_TRUE(exit->has_value());
  }
  EXPECT_TRUE(host->has_value());
  EXPECT_EQ(drained_, 0);
  wait(60s);
  EXPECT_EQ(process().host_ends().size(), 1U);
}

TEST_F(RemoteTest, CallsAfterTheEndFailAtOnce) {
  start(0);
  process().ports().worker->close("the link is cut");
  const auto late = lease("reward-0");
  ASSERT_TRUE(late.arrived());
  EXPECT_EQ(late.status().code(), Errc::kUnavailable);
  EXPECT_EQ(late.status().message(), "the link is cut");
  EXPECT_TRUE(stream_->leases.empty());
}

TEST_F(RemoteTest, CallsInProgressFailWhenTheLinkEnds) {
  start(0);
  const auto reply = lease("reward-0");
  EXPECT_FALSE(reply.arrived());
  process().ports().worker->close("the link is cut");
  drain();
  EXPECT_EQ(reply.status().code(), Errc::kUnavailable);
  EXPECT_EQ(reply.count(), 1);
}

// -- messages -------------------------------------------------------------------------------------

TEST_F(RemoteTest, LinesOfTheProcessReachTheLogOfTheRun) {
  caf::anon_send(process().host(), atom::record_v, std::string("reward-0: 2 samples"));
  caf::anon_send(process().host(), atom::record_v, std::string("reward-0: 3 samples"));
  drain();
  EXPECT_THAT(process().log(), ElementsAre("reward-0: 2 samples", "reward-0: 3 samples"));
}

TEST_F(RemoteTest, EveryRequestOfAConsumerReachesTheStreamAndIsAnswered) {
  start(0);
  const std::vector<storage::LeasedRow> rows{trainable_row(0, 0), trainable_row(1, 0)};
  actors::AckRequest ack = ack_of(SampleTask::kReward, rows, reward_cells());
  actors::LeaseUpdate update = lease_update_of(SampleTask::kReward, rows, "broken");
  ack.consumer = update.consumer = "reward-0";
  stream_->refused = {{{{5}, 6, 7}, storage::Refusal::kBadColumn, "column reward: bad"}};
  const auto proxy = process().stream();
  const auto acked = ask<Settlement>(proxy, atom::ack_v, ack);
  const auto nacked = ask<Settlement>(proxy, atom::nack_v, update);
  const auto renewed = ask<Settlement>(proxy, atom::renew_v, update);
  const auto retired = ask<Settlement>(
      proxy, atom::retire_v, actors::GroupVerdict{{4}, {storage::VerdictKind::kFilter, "even"}});
  drain();
  for (const auto& reply : {acked, nacked, renewed}) {
    ASSERT_TRUE(reply.ok()) << reply.status().to_string();
    EXPECT_EQ(reply.value().done, (std::vector<SampleId>{{0}, {1}}));
    EXPECT_EQ(reply.value().refused, stream_->refused);
  }
  ASSERT_TRUE(retired.ok()) << retired.status().to_string();
  ASSERT_EQ(stream_->acks.size(), 1U);
  EXPECT_EQ(stream_->acks[0].rows.at(1).columns.size(), 1U);
  ASSERT_EQ(stream_->nacks.size(), 1U);
  EXPECT_EQ(stream_->nacks[0].reason, "broken");
  EXPECT_EQ(stream_->renewals.size(), 1U);
  ASSERT_EQ(stream_->verdicts.size(), 1U);
  EXPECT_EQ(stream_->verdicts[0].group, GroupId{4});
  EXPECT_EQ(stream_->verdicts[0].verdict,
            (storage::Verdict{storage::VerdictKind::kFilter, "even"}));
}

TEST_F(RemoteTest, AFailureOfTheStreamReachesTheWorkerWithItsCode) {
  start(0);
  const auto reply = lease("reward-0");
  take(stream_->leases).fail({Errc::kResourceExhausted, "not now"});
  drain();
  EXPECT_EQ(reply.status().code(), Errc::kResourceExhausted);
  EXPECT_EQ(reply.status().message(), "not now");
}

TEST_F(RemoteTest, AProcessSpeaksForItsOwnWorkersOnly) {
  const auto proxy = process().stream();
  const auto retired =
      ask<Settlement>(proxy, atom::retire_v, actors::GroupVerdict{{4}, {}});  // it has no worker
  drain();
  EXPECT_EQ(retired.status().code(), Errc::kNotFound);
  start(0);
  actors::AckRequest ack{actors::task_id(SampleTask::kReward), "reward-1", {}};
  actors::LeaseUpdate update{.task = ack.task, .consumer = "reward-1"};
  const auto acked = ask<Settlement>(proxy, atom::ack_v, ack);
  const auto nacked = ask<Settlement>(proxy, atom::nack_v, update);
  const auto renewed = ask<Settlement>(proxy, atom::renew_v, update);
  const auto leased = lease("reward-1");
  for (const Status& status :
       {acked.status(), nacked.status(), renewed.status(), leased.status()}) {
    EXPECT_EQ(status.code(), Errc::kNotFound);
    EXPECT_EQ(status.message(), "process worker-1: runs no worker reward-1");
  }
  EXPECT_TRUE(stream_->leases.empty());
  EXPECT_TRUE(stream_->acks.empty());
  EXPECT_TRUE(stream_->nacks.empty());
  EXPECT_TRUE(stream_->renewals.empty());
  EXPECT_TRUE(stream_->verdicts.empty());
  EXPECT_TRUE(process().gate_ends().empty()) << "a worker may have ended meanwhile";
}

TEST_F(RemoteTest, AMessageThatBreaksTheRulesEndsItsGateOnly) {
  const Buffer garbage = Buffer::adopt(std::vector<std::uint64_t>{1, 2, 3}, DType::kU64);
  const struct {
    MessageKind kind;
    const char* reason;
  } cases[] = {
      {MessageKind::kLease, "lease: not a Cap'n Proto message"},
      {MessageKind::kAck, "ack: not a Cap'n Proto message"},
      {MessageKind::kNack, "lease update: not a Cap'n Proto message"},
      {MessageKind::kRenew, "lease update: not a Cap'n Proto message"},
      {MessageKind::kRetire, "group verdict: not a Cap'n Proto message"},
      {MessageKind::kWorkerEnded, "worker ended: not a Cap'n Proto message"},
      {MessageKind::kLogLine, "log line: not a Cap'n Proto message"},
      {MessageKind::kStartWorker, "a message of kind 64, which no worker sends"},
      {static_cast<MessageKind>(999), "a message of kind 999, which no worker sends"},
  };
  const auto others = exit_of(start(0));
  for (const auto& [kind, reason] : cases) {
    RemoteWorkers& bad = add_process();
    const auto exit = exit_of(keep(bad.start("reward", 0)));
    const auto worker = exit_of(bad.started().at(0));
    bad.ports().worker->tell(kind, garbage);
    drain();
    ASSERT_EQ(bad.gate_ends().size(), 1U) << reason;
    EXPECT_EQ(bad.gate_ends()[0].message(), std::string("process worker-1: ") + reason);
    ASSERT_TRUE(exit->has_value()) << reason;
    EXPECT_EQ((*exit)->code(), Errc::kUnavailable);
    EXPECT_EQ((*exit)->message(), std::string("process worker-1: ") + reason);
    EXPECT_FALSE(worker->has_value()) << "the process notices it later";
  }
  EXPECT_FALSE(others->has_value());
  EXPECT_TRUE(process().gate_ends().empty());
  lease("reward-0");
  EXPECT_EQ(stream_->leases.size(), 1U);
}

TEST_F(RemoteTest, AHostIgnoresWhatItCannotRead) {
  const auto worker = exit_of(start(0));
  const Buffer garbage = Buffer::adopt(std::vector<std::uint64_t>{1, 2, 3}, DType::kU64);
  for (const MessageKind kind : {MessageKind::kStartWorker, MessageKind::kDrainWorker,
                                 MessageKind::kStopWorker, MessageKind::kLogLine}) {
    process().ports().owner->tell(kind, garbage);
  }
  process().ports().owner->tell(MessageKind::kStopWorker,
                                actors::to_wire(actors::StartedWorker{"reward-9"}));
  drain();
  EXPECT_FALSE(worker->has_value());
  EXPECT_TRUE(process().host_ends().empty());
  EXPECT_EQ(process().started().size(), 1U);
}

TEST_F(RemoteTest, ACallWithoutReplyFailsAtItsDeadline) {
  start(0);
  const auto reply = lease("reward-0");  // waits for 10 s, and the margin is 30 s
  wait(39s);
  EXPECT_FALSE(reply.arrived());
  wait(2s);
  EXPECT_EQ(reply.status().code(), Errc::kTimeout) << reply.status().to_string();
  EXPECT_EQ(reply.count(), 1);
  take(stream_->leases).reply({});  // too late
  drain();
  EXPECT_EQ(reply.count(), 1);
}

// -- leases that are too large --------------------------------------------------------------------

class LargeLeaseTest : public RemoteTest {
protected:
  // Replies with rows of these groups and sizes in MiB, whose ids count from 0.
  Reply<LeaseReply> lease_rows(SampleTask task,
                               const std::vector<std::pair<std::uint64_t, std::size_t>>& rows) {
    start(0);
    const auto reply = lease("reward-0", task);
    LeaseReply leased;
    leased.whole = true;
    for (const auto& [group, size] : rows) {
      storage::LeasedRow& row = leased.rows.emplace_back();
      row.row.id = {leased.rows.size() - 1};
      row.row.group = {group};
      row.lease = {row.row.id, 0, 1};
      row.columns = {{{0}, Buffer::adopt(std::vector<std::byte>(size << 20U), DType::kU8)}};
    }
    take(stream_->leases).reply(std::move(leased));
    drain();
    return reply;
  }
  static std::vector<std::uint64_t> ids_of(const actors::LeaseUpdate& update) {
    std::vector<std::uint64_t> ids;
    for (const storage::HeldRow& row : update.rows) {
      ids.push_back(row.lease.row.value);
    }
    return ids;
  }
};

TEST_F(LargeLeaseTest, RowsThatDoNotFitAreGivenBack) {
  const auto reply = lease_rows(SampleTask::kReward, {{0, 5}, {0, 5}, {0, 5}, {0, 5}, {0, 5}});
  ASSERT_TRUE(reply.ok()) << reply.status().to_string();
  ASSERT_EQ(reply.value().rows.size(), 2U);
  EXPECT_EQ(reply.value().rows[1].row.id, SampleId{1});
  EXPECT_FALSE(reply.value().whole) << "the group has more rows";
  ASSERT_EQ(stream_->nacks.size(), 1U);
  EXPECT_EQ(stream_->nacks[0].release, storage::Release::kLeft);
  EXPECT_EQ(stream_->nacks[0].consumer, "reward-0");
  EXPECT_EQ(stream_->nacks[0].task, actors::task_id(SampleTask::kReward));
  EXPECT_THAT(ids_of(stream_->nacks[0]), ElementsAre(2, 3, 4));
}

TEST_F(LargeLeaseTest, ARowThatIsTooLargeAloneFailsAndTheOthersAreLeft) {
  const auto reply = lease_rows(SampleTask::kReward, {{0, 17}, {0, 1}, {1, 1}});
  ASSERT_TRUE(reply.ok()) << reply.status().to_string();
  EXPECT_TRUE(reply.value().rows.empty());
  EXPECT_FALSE(reply.value().whole);
  EXPECT_THAT(reply.value().waiting_for, HasSubstr("too large for one message"));
  ASSERT_EQ(stream_->nacks.size(), 2U);
  EXPECT_EQ(stream_->nacks[0].release, storage::Release::kFailed);
  EXPECT_THAT(stream_->nacks[0].reason,
              ::testing::MatchesRegex("a row of [0-9]+ bytes is too large for one message"));
  EXPECT_THAT(ids_of(stream_->nacks[0]), ElementsAre(0));
  EXPECT_EQ(stream_->nacks[1].release, storage::Release::kLeft);
  EXPECT_THAT(ids_of(stream_->nacks[1]), ElementsAre(1, 2));
}

// The rows of an acknowledgement that is too large are charged with it, so they do not come back
// for ever.
TEST_F(LargeLeaseTest, RowsOfAnAcknowledgementThatIsTooLargeFail) {
  start(0);
  actors::AckRequest ack{actors::task_id(SampleTask::kReward), "reward-0", {}};
  for (const std::uint64_t id : {7, 8}) {
    const Buffer cell = Buffer::adopt(std::vector<std::byte>(9 << 20U), DType::kU8);
    ack.rows.push_back({{{id}, 0, 1}, {{{0}, cell}}, {}});
  }
  const auto reply = ask<Settlement>(process().stream(), atom::ack_v, ack);
  drain();
  EXPECT_TRUE(stream_->acks.empty());
  ASSERT_EQ(stream_->nacks.size(), 1U);
  EXPECT_EQ(stream_->nacks[0].task, ack.task);
  EXPECT_EQ(stream_->nacks[0].consumer, "reward-0");
  EXPECT_EQ(stream_->nacks[0].release, storage::Release::kFailed);
  EXPECT_THAT(ids_of(stream_->nacks[0]), ElementsAre(7, 8));
  EXPECT_TRUE(stream_->nacks[0].rows[0].columns.empty());
  EXPECT_THAT(stream_->nacks[0].reason,
              ::testing::MatchesRegex("an acknowledgement of 2 rows with [0-9]+ bytes is too large "
                                      "for one message \\(at most 16776960\\)"));
  EXPECT_EQ(reply.status().code(), Errc::kInvalidArgument);
  EXPECT_EQ(reply.status().message(), stream_->nacks[0].reason);
  EXPECT_EQ(reply.count(), 1);
}

// The stream refuses to take back a part of a group from a task that takes groups.
TEST_F(LargeLeaseTest, GroupsAreGivenBackAsAWhole) {
  const auto reply = lease_rows(SampleTask::kAdvantage,
                                {{3, 2}, {3, 2}, {3, 2}, {4, 2}, {4, 2}, {4, 2}, {5, 4}, {5, 4}});
  ASSERT_TRUE(reply.ok()) << reply.status().to_string();
  ASSERT_EQ(reply.value().rows.size(), 3U);
  EXPECT_EQ(reply.value().rows.back().row.group, GroupId{3});
  ASSERT_EQ(stream_->nacks.size(), 1U);
  EXPECT_EQ(stream_->nacks[0].release, storage::Release::kLeft);
  EXPECT_THAT(ids_of(stream_->nacks[0]), ElementsAre(3, 4, 5, 6, 7));
}

TEST_F(LargeLeaseTest, AFirstGroupOfMostRowsIsTriedAlone) {
  const auto reply = lease_rows(SampleTask::kAdvantage, {{3, 2}, {3, 2}, {3, 2}, {3, 2}, {4, 9}});
  ASSERT_TRUE(reply.ok()) << reply.status().to_string();
  EXPECT_EQ(reply.value().rows.size(), 4U);
  ASSERT_EQ(stream_->nacks.size(), 1U);
  EXPECT_THAT(ids_of(stream_->nacks[0]), ElementsAre(4));
}

TEST_F(LargeLeaseTest, AGroupThatIsTooLargeAloneFails) {
  const auto reply = lease_rows(SampleTask::kAdvantage, {{3, 9}, {3, 9}, {4, 1}});
  ASSERT_TRUE(reply.ok()) << reply.status().to_string();
  EXPECT_TRUE(reply.value().rows.empty());
  ASSERT_EQ(stream_->nacks.size(), 2U);
  EXPECT_EQ(stream_->nacks[0].release, storage::Release::kFailed);
  EXPECT_THAT(stream_->nacks[0].reason, HasSubstr("a group of "));
  EXPECT_THAT(ids_of(stream_->nacks[0]), ElementsAre(0, 1));
  EXPECT_EQ(stream_->nacks[1].release, storage::Release::kLeft);
  EXPECT_THAT(ids_of(stream_->nacks[1]), ElementsAre(2));
}

}  // namespace
}  // namespace tidemill::test
