// SPDX-License-Identifier: Apache-2.0
// When actors act, on the virtual clock: commits, renewals of leases, pauses before restarts,
// wake-ups and deadlines. Each time is checked from both sides.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/keeper/spawn.hpp"
#include "actors/reward/spawn.hpp"
#include "actors/rollout/spawn.hpp"
#include "actors/supervisor/spawn.hpp"
#include "tests/actors/sample_rows.hpp"
#include "tests/actors/stream_fixture.hpp"
#include "tests/actors/trainer_fixture.hpp"
#include "tests/support/fake_reward_engine.hpp"

namespace tidemill::test {
namespace {

using actors::LeaseReply;
using actors::SampleTask;
using namespace std::chrono_literals;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::SizeIs;

// -- commits --------------------------------------------------------------------------------------

TEST_F(TrainerFixture, AStepIsCommittedOnceTheIntervalHasPassed) {
  deps_.options.commit_interval = 3s;
  start_trainer();
  const auto run_step = [this](std::uint64_t step) {
    deliver(
        {trainable_row(2 * step, 2 * step, step), trainable_row(2 * step + 1, 2 * step + 1, step)});
    train();
    advance(0s);
  };
  run_step(0);
  EXPECT_EQ(stream_->captured, 0);
  advance(3s - 1ms);
  run_step(1);
  EXPECT_EQ(stream_->captured, 0);
  advance(1ms);
  run_step(2);
  EXPECT_EQ(stream_->captured, 1);
  EXPECT_EQ(commits_->last->weights.version.step, 3U);
  advance(3s - 1ms);
  run_step(3);
  EXPECT_EQ(stream_->captured, 1) << "the interval begins at the last commit";
  advance(1ms);
  run_step(4);
  EXPECT_EQ(stream_->captured, 2);
}

// -- renewals of leases ---------------------------------------------------------------------------

class RenewalTest : public TrainerFixture {
protected:
  void start_rollout_worker() {
    actors::RolloutWorkerDeps deps;
    deps.stream = deps_.stream;
    deps.serving = deps_.serving;
    keep(actors::spawn_rollout_worker(system(), std::move(deps)));
    drain();
  }
  void start_reward_worker() {
    engine_->thinking = true;
    actors::RewardWorkerDeps deps;
    deps.stream = deps_.stream;
    deps.engine = engine_;
    deps.decode = [](const std::vector<std::int32_t>&) { return std::string(); };
    deps.port = &port();
    keep(actors::spawn_reward_worker(system(), std::move(deps)));
    drain();
  }

  // Replies to the last lease request: those before it have timed out. The leases last for
  // `lease_time` from now.
  void lease(std::vector<storage::LeasedRow> rows, Duration lease_time) {
    while (stream_->leases.size() > 1) {
      take(stream_->leases);
    }
    for (storage::LeasedRow& row : rows) {
      expires_[row.lease] = now() + lease_time;
    }
    deliver(std::move(rows), lease_time);
  }
  // Lets time pass in steps of `tick`. Returns how long after its beginning each renewal came.
  // Expects that every lease is renewed before it expires.
  std::vector<Duration> renewals_within(Duration time, Duration lease_time, Duration tick = 500ms) {
    std::vector<Duration> renewals;
    const TimePoint begun = now();
    while (now() - begun < time) {
      const std::size_t before = stream_->renewals.size();
      advance(tick);
      for (std::size_t i = before; i < stream_->renewals.size(); ++i) {
        renewals.push_back(now() - begun);
        for (const storage::Lease& row : leases_of(stream_->renewals[i].rows)) {
          EXPECT_LT(now(), expires_.at(row)) << "the lease has expired";
          expires_[row] = now() + lease_time;
        }
      }
      for (const auto& [row, expires] : expires_) {
        EXPECT_LT(now(), expires) << "row " << row.row.value << " was not renewed in time";
      }
    }
    return renewals;
  }
  // The pauses between renewals.
  static std::vector<Duration> pauses(const std::vector<Duration>& renewals) {
    std::vector<Duration> pauses;
    for (std::size_t i = 1; i < renewals.size(); ++i) {
      pauses.push_back(renewals[i] - renewals[i - 1]);
    }
    return pauses;
  }

  std::shared_ptr<FakeRewardEngine> engine_ = std::make_shared<FakeRewardEngine>();
  std::map<storage::Lease, TimePoint> expires_;
};

// An actor that holds leases: two rows of a task, or a batch of two groups.
struct LeaseHolder {
  const char* name;
  void (RenewalTest::*start)();
};

class LeaseHolderTest : public RenewalTest, public ::testing::WithParamInterface<LeaseHolder> {
public:
  static std::vector<LeaseHolder> all() {
    return {{"RolloutWorker", &LeaseHolderTest::start_rollout_worker},
            {"RewardWorker", &LeaseHolderTest::start_reward_worker},
            {"Trainer", &LeaseHolderTest::start_trainer}};
  }
};

TEST_P(LeaseHolderTest, RenewsThreeTimesInALeaseForAsLongAsItHoldsRows) {
  (this->*GetParam().start)();
  lease({trainable_row(0, 0), trainable_row(1, 1)}, 60s);
  const auto renewals = renewals_within(9min, 60s);
  EXPECT_GE(renewals.size(), 26U);
  EXPECT_THAT(pauses(renewals), Each(20s));
  EXPECT_THAT(stream_->renewals.back().rows, SizeIs(2));
}

INSTANTIATE_TEST_SUITE_P(Renewals, LeaseHolderTest, ::testing::ValuesIn(LeaseHolderTest::all()),
                         [](const auto& holder) { return std::string(holder.param.name); });

TEST_F(RenewalTest, ARowLeasedBetweenTwoRenewalsIsInTheNext) {
  start_rollout_worker();
  lease({trainable_row(0, 0)}, 60s);
  renewals_within(59s, 60s);
  lease({trainable_row(1, 0)}, 60s);
  renewals_within(5min, 60s);
  EXPECT_THAT(stream_->renewals.back().rows, SizeIs(2));
}

TEST_F(RenewalTest, TheSecondBatchIsRenewedUnderItsOwnLeases) {
  start_trainer();
  lease({trainable_row(0, 0), trainable_row(1, 1)}, 60s);
  renewals_within(1min, 60s);
  train();
  const std::size_t of_first = stream_->renewals.size();
  expires_.clear();
  lease({trainable_row(2, 2, 1), trainable_row(3, 3, 1), trainable_row(4, 3, 1)}, 30s);
  const auto renewals = renewals_within(5min, 30s);
  EXPECT_GE(renewals.size(), 27U);
  for (std::size_t i = of_first; i < stream_->renewals.size(); ++i) {
    EXPECT_THAT(leases_of(stream_->renewals[i].rows),
                ElementsAre(storage::Lease{{2}, 0, 1}, storage::Lease{{3}, 0, 1},
                            storage::Lease{{4}, 0, 1}));
  }
}

TEST_F(RenewalTest, ShortLeasesAreRenewedAtMostTwiceASecond) {
  start_rollout_worker();
  lease({trainable_row(0, 0)}, 900ms);
  EXPECT_THAT(pauses(renewals_within(20s, 900ms, 100ms)), Each(500ms));
}

// A reply that is lost costs one renewal, not the lease.
TEST_F(RenewalTest, AFailedRenewalIsMadeUpForByTheNext) {
  start_rollout_worker();
  lease({trainable_row(0, 0)}, 60s);
  stream_->failure = {Errc::kUnavailable, "not now"};
  renewals_within(20s, 60s);
  stream_->failure = {};
  EXPECT_THAT(pauses(renewals_within(2min, 60s)), Each(20s));
}

// -- restarts of workers --------------------------------------------------------------------------

class RestartTest : public ActorTest {
protected:
  void start(std::uint32_t max_restarts) {
    actors::SupervisorDeps deps;
    deps.commits = commits_;
    deps.prepare = [](const actors::RunOrigin&) { return std::shared_ptr<void>{}; };
    deps.spawn = [this](const actors::RunOrigin&, const std::shared_ptr<void>&,
                        const actors::RunListenerActor&) { return spawn_parts(); };
    deps.on_end = [this](Result<actors::RunSummary> result) { ends_.push_back(std::move(result)); };
    deps.log = [](const std::string&) {};
    deps.port = &port();
    deps.max_restarts = max_restarts;
    const auto supervisor = keep(actors::spawn_supervisor(system(), std::move(deps)));
    caf::anon_send(supervisor, atom::start_v);
    advance(0s);
  }
  caf::actor spawn_part() {
    return keep(system().spawn([](caf::event_based_actor* self) {
      return caf::behavior{[self](const caf::error& why) { self->quit(why); }};
    }));
  }
  actors::RunParts spawn_parts() {
    actors::RunParts parts;
    parts_["core"] = spawn_part();
    parts.core = {{"core", parts_["core"]}};
    for (const char* name : {"worker", "other"}) {
      parts.workers.push_back({name, [this, name] {
                                 ++spawned_[name];
                                 return parts_[name] = spawn_part();
                               }});
    }
    parts.start = [] {};
    parts.stop = [] {};
    return parts;
  }
  void end(const std::string& part) {
    caf::anon_send(parts_[part], actors::to_caf_error(Status(Errc::kInternal, "broken")));
    drain();
  }
  // Ends the worker, and returns how long it takes to be restarted, in milliseconds.
  std::int64_t pause_after_end(const std::string& name) {
    const int before = spawned_[name];
    end(name);
    for (std::int64_t ms = 0; ms < 60'000; ms += 10) {
      if (spawned_[name] > before) {
        return ms;
      }
      advance(10ms);
    }
    return -1;
  }

  std::map<std::string, caf::actor> parts_;
  std::map<std::string, int> spawned_;
  std::shared_ptr<MemoryCommits> commits_ = std::make_shared<MemoryCommits>();
  std::vector<Result<actors::RunSummary>> ends_;
};

TEST_F(RestartTest, ThePauseDoublesFromAFifthOfASecondUpToSixTimes) {
  start(/*max_restarts=*/100);
  std::vector<std::int64_t> pauses;
  for (int i = 0; i < 9; ++i) {
    pauses.push_back(pause_after_end("worker"));
  }
  EXPECT_THAT(pauses, ElementsAre(200, 400, 800, 1600, 3200, 6400, 12800, 12800, 12800));
  EXPECT_EQ(spawned_["other"], 1);
}

TEST_F(RestartTest, EveryWorkerHasAPauseOfItsOwn) {
  start(/*max_restarts=*/100);
  EXPECT_EQ(pause_after_end("worker"), 200);
  EXPECT_EQ(pause_after_end("worker"), 400);
  EXPECT_EQ(pause_after_end("other"), 200);
}

TEST_F(RestartTest, AMinuteOfWorkResetsThePauseAndLessDoesNot) {
  start(/*max_restarts=*/100);
  EXPECT_EQ(pause_after_end("worker"), 200);
  advance(59s + 900ms);
  EXPECT_EQ(pause_after_end("worker"), 400);
  advance(60s);
  EXPECT_EQ(pause_after_end("worker"), 200);
  EXPECT_EQ(pause_after_end("worker"), 400);
}

TEST_F(RestartTest, AWorkerThatDiesOnceMoreThanTheLimitEndsTheIncarnation) {
  start(/*max_restarts=*/3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_GT(pause_after_end("worker"), 0);
  }
  EXPECT_EQ(spawned_["other"], 1);
  end("worker");
  advance(0s);
  EXPECT_EQ(spawned_["other"], 2) << "the run starts again";
  EXPECT_TRUE(ends_.empty());
}

TEST_F(RestartTest, ARestartOfTheRunForgetsTheDeathsOfItsWorkers) {
  start(/*max_restarts=*/3);
  for (int i = 0; i < 2; ++i) {
    pause_after_end("worker");
  }
  end("core");
  advance(0s);
  EXPECT_EQ(pause_after_end("worker"), 200);
  EXPECT_EQ(pause_after_end("worker"), 400);
  EXPECT_TRUE(ends_.empty());
}

// Only a commit that is newer than that of the start before resets the count.
TEST_F(RestartTest, AfterEveryCommitTheRunMayFailAsOftenAsTheLimitSays) {
  start(/*max_restarts=*/2);
  for (std::uint64_t step = 1; step <= 3; ++step) {
    commits_->last.emplace();
    commits_->last->weights.version.step = step;
    for (int failure = 0; failure < 2; ++failure) {
      end("core");
      advance(0s);
      EXPECT_TRUE(ends_.empty()) << step << " " << failure;
    }
  }
  end("core");  // the second one since the last commit was used
  advance(0s);
  EXPECT_TRUE(ends_.empty());
  end("core");
  advance(0s);
  ASSERT_EQ(ends_.size(), 1U);
  EXPECT_FALSE(ends_[0].ok());
}

// -- wake-ups and deadlines -----------------------------------------------------------------------

class StreamCadenceTest : public StreamFixture {};

TEST_F(StreamCadenceTest, ALeaseExpiresWhenItsTimeIsOverAndNotBefore) {
  put(0);
  const auto first = lease(SampleTask::kRollout, 0s);
  const auto second = lease(SampleTask::kRollout, 1h);
  advance(60s - 1ms);
  EXPECT_FALSE(second.arrived());
  advance(1ms);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second.value().rows.size(), 2U);
  EXPECT_EQ(second.value().rows[0].deliveries, 1U);
}

TEST_F(StreamCadenceTest, EachRenewalMovesTheExpiryToAWholeLeaseFromThen) {
  put(0);
  const auto first = lease(SampleTask::kRollout, 0s);
  const auto second = lease(SampleTask::kRollout, 1h);
  for (int i = 0; i < 3; ++i) {
    advance(59s);
    renew(SampleTask::kRollout, first.value().rows);
  }
  advance(60s - 1ms);
  EXPECT_FALSE(second.arrived());
  advance(1ms);
  EXPECT_TRUE(second.ok());
}

TEST_F(StreamCadenceTest, ARequestThatComesLaterMayBeDueEarlier) {
  put(0);
  const auto slow = lease(SampleTask::kReward, 1h);
  advance(1s);
  const auto fast = lease(SampleTask::kTrain, 10s);
  const auto faster = lease(SampleTask::kAdvantage, 5s);
  advance(4921ms);  // a wait may end a 64th early
  EXPECT_FALSE(faster.arrived());
  advance(79ms);
  EXPECT_TRUE(faster.arrived());
  EXPECT_FALSE(fast.arrived());
  advance(5s);
  EXPECT_TRUE(fast.arrived());
  advance(1h - 57s - 11s);
  EXPECT_FALSE(slow.arrived());
  advance(57s);
  EXPECT_TRUE(slow.arrived());
}

// The stream wakes once for waits that began at about the same time.
TEST_F(StreamCadenceTest, WaitsThatBeginTogetherEndTogether) {
  put(0);
  std::vector<Reply<LeaseReply>> waiting;
  for (int i = 0; i < 50; ++i) {
    waiting.push_back(lease(SampleTask::kReward, 64s));
    advance(10ms);
  }
  const auto arrived = [&waiting] {
    return std::ranges::count_if(waiting, [](const auto& reply) { return reply.arrived(); });
  };
  std::set<std::ptrdiff_t> counts;
  for (Duration passed{0}; passed < 65s; passed += 50ms) {
    advance(50ms);
    counts.insert(arrived());
  }
  EXPECT_EQ(arrived(), 50);
  EXPECT_LE(counts.size(), 3U) << "none, perhaps some, and all";
}

TEST_F(StreamCadenceTest, TheEndOfTheDataEndsPendingRequestsAtOnce) {
  const auto generating = lease(SampleTask::kRollout, 1h);
  const auto scoring = lease(SampleTask::kReward, 1h);
  caf::anon_send(stream_, atom::finish_v);
  drain();
  for (const auto& reply : {generating, scoring}) {
    ASSERT_TRUE(reply.ok());
    EXPECT_TRUE(reply.value().ended);
  }
}

TEST_F(StreamCadenceTest, ExpiriesWakeTheStreamAgainAndAgain) {
  put(0);
  for (std::uint32_t delivery = 0; delivery < 4; ++delivery) {
    const auto waiting = lease(SampleTask::kRollout, 1h);
    if (delivery > 0) {
      advance(60s - 1ms);
      EXPECT_FALSE(waiting.arrived()) << delivery;
      advance(1ms);
    }
    ASSERT_TRUE(waiting.ok()) << delivery;
    EXPECT_EQ(waiting.value().rows.at(0).deliveries, delivery);
  }
}

class KeeperCadenceTest : public ActorTest {
protected:
  void SetUp() override {
    actors::KeeperOptions options;
    options.group_size = 1;
    options.batch_rows = 1;
    options.max_concurrent = 100;
    options.total_steps = 10;
    keeper_ = keep(actors::spawn_keeper(
        system(), {{{"device", keep(spawn_fake_device(system(), device_))}}, {}, options, {}, {}}));
    exit_ = exit_of(keeper_);
  }
  Reply<actors::Admission> admit(Duration wait) {
    auto reply = ask<actors::Admission>(keeper_, atom::admit_v, actors::AdmissionRequest{1, wait});
    drain();
    return reply;
  }

  std::shared_ptr<FakeDevice> device_ = std::make_shared<FakeDevice>();
  actors::KeeperActor keeper_;
  std::shared_ptr<std::optional<Status>> exit_;
};

TEST_F(KeeperCadenceTest, EveryAdmissionHasItsOwnDeadline) {
  ASSERT_TRUE(admit(1s).ok());  // the only slot
  const auto slow = admit(1min);
  const auto fast = admit(5s);
  advance(5s - 1ms);
  EXPECT_FALSE(fast.arrived());
  advance(1ms);
  ASSERT_TRUE(fast.ok());
  EXPECT_EQ(fast.value().groups, 0U);
  EXPECT_EQ(fast.count(), 1);
  advance(55s - 1ms);
  EXPECT_FALSE(slow.arrived());
  advance(1ms);
  EXPECT_TRUE(slow.arrived());
}

TEST_F(KeeperCadenceTest, TheFirstToAskIsTheFirstToBeAdmitted) {
  ASSERT_TRUE(admit(1s).ok());
  const auto first = admit(1h);
  const auto second = admit(1h);
  caf::anon_send(keeper_, atom::record_v, storage::SlotChanges{0, 1, 0, 0});
  drain();
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(first.value().groups, 1U);
  EXPECT_FALSE(second.arrived());
}

TEST_F(KeeperCadenceTest, ALoadMayTakeFiveMinutes) {
  engines::Snapshot snapshot;
  snapshot.version = {0, 0, 1};
  ask<PolicyVersion>(keeper_, atom::publish_v, snapshot);
  advance(5min - 1ms);
  EXPECT_FALSE(exit_->has_value());
  advance(1ms);
  ASSERT_TRUE(exit_->has_value());
  EXPECT_EQ((*exit_)->code(), Errc::kTimeout);
}

// With a fixed order, no other group replaces one that leaves, in whatever way it leaves.
TEST_F(KeeperCadenceTest, InAFixedOrderAGroupThatLeavesKeepsItsSlots) {
  actors::KeeperOptions options;
  options.group_size = 1;
  options.batch_rows = 3;
  options.max_concurrent = 100;
  options.total_steps = 10;
  options.generation_order = actors::GenerationOrder::kFixed;
  keeper_ = keep(actors::spawn_keeper(
      system(), {{{"device", keep(spawn_fake_device(system(), device_))}}, {}, options, {}, {}}));
  const auto all = ask<actors::Admission>(keeper_, atom::admit_v, actors::AdmissionRequest{9, 1s});
  drain();
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all.value().groups, 3U);
  const auto more = admit(1h);
  caf::anon_send(keeper_, atom::record_v, storage::SlotChanges{1, 0, 1, 0});
  caf::anon_send(keeper_, atom::record_v, storage::SlotChanges{0, 1, 0, 0});
  drain();
  EXPECT_FALSE(more.arrived());
  const auto status = ask<actors::KeeperStatus>(keeper_, atom::status_v);
  drain();
  EXPECT_EQ(status.value().accepted, 3);
  EXPECT_EQ(status.value().running, 0);
}

class RewardLogTest : public ActorTest {};

TEST_F(RewardLogTest, SaysNothingBeforeTenSecondsHavePassedAfterEachLine) {
  const auto stream = std::make_shared<FakeStream>();
  const auto engine = std::make_shared<FakeRewardEngine>();
  engine->refusal = invalid_argument("the row is not an object");
  std::vector<std::string> log;
  actors::RewardWorkerDeps deps;
  deps.stream = keep(spawn_fake_stream(system(), stream));
  deps.engine = engine;
  deps.decode = [](const std::vector<std::int32_t>&) { return std::string(); };
  deps.port = &port();
  deps.lease_wait = 1h;
  deps.log = [&](const std::string& line) { log.push_back(line); };
  keep(actors::spawn_reward_worker(system(), std::move(deps)));
  drain();
  std::uint64_t id = 0;
  const auto fail_one = [&] {
    LeaseReply reply;
    reply.rows = {trainable_row(id++, 0)};
    reply.lease_time = 60s;
    take(stream->leases).reply(std::move(reply));
    advance(0s);
  };
  fail_one();
  EXPECT_EQ(log.size(), 1U);
  for (std::size_t lines = 1; lines < 4; ++lines) {
    advance(10s - 1ms);
    fail_one();
    EXPECT_EQ(log.size(), lines);
    advance(1ms);
    fail_one();
    ASSERT_EQ(log.size(), lines + 1);
    EXPECT_THAT(log.back(), ::testing::HasSubstr(": 2 samples")) << "since the last line";
  }
}

}  // namespace
}  // namespace tidemill::test
