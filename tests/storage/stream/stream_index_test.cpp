// SPDX-License-Identifier: Apache-2.0
// The rules of the stream index that the recorded traces do not cover, one test each.
#include "storage/stream/stream_index.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/storage/stream/stream_fixture.hpp"

namespace tidemill::storage {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

void expect_sound(IndexUnderTest& index) {
  const Status sound = index->check_invariants();
  EXPECT_TRUE(sound.ok()) << sound.to_string();
}

// -- declarations -------------------------------------------------------------

TEST(StreamOptions, RefusesInvalidDeclarations) {
  const auto message = [](auto change) {
    StreamOptions options = pipeline(4);
    change(options);
    const Status status = StreamIndex::create(options).status();
    EXPECT_EQ(status.code(), Errc::kInvalidArgument);
    return status.message();
  };
  EXPECT_THAT(message([](StreamOptions& o) { o.columns.clear(); }), HasSubstr("columns: 0"));
  EXPECT_THAT(message([](StreamOptions& o) { o.columns.resize(65); }), HasSubstr("columns: 65"));
  EXPECT_THAT(message([](StreamOptions& o) { o.columns[1].name = "prompt"; }),
              HasSubstr("columns: name 'prompt'"));
  EXPECT_THAT(message([](StreamOptions& o) { o.tasks.clear(); }), HasSubstr("tasks: 0"));
  EXPECT_THAT(message([](StreamOptions& o) { o.tasks[1].name = "rollout"; }),
              HasSubstr("tasks: name 'rollout'"));
  EXPECT_THAT(message([](StreamOptions& o) { o.tasks[1].inputs = {"respnse"}; }),
              HasSubstr("task reward: inputs: column 'respnse'"));
  EXPECT_THAT(message([](StreamOptions& o) { o.tasks[1].inputs.clear(); }),
              HasSubstr("task reward: inputs"));
  EXPECT_THAT(message([](StreamOptions& o) { o.tasks[1].outputs = {"response"}; }),
              HasSubstr("task reward: outputs: column 'response'"));
  EXPECT_THAT(message([](StreamOptions& o) { o.tasks[0].outputs = {"reward"}; }),
              HasSubstr("task reward: outputs: column 'reward' is written twice"));
  EXPECT_THAT(message([](StreamOptions& o) { o.max_group_size = 0; }),
              HasSubstr("task train: unit"));
  EXPECT_THAT(message([](StreamOptions& o) { o.tasks[2].lease = Duration::zero(); }),
              HasSubstr("task train: lease"));
  EXPECT_THAT(message([](StreamOptions& o) { o.tasks[2].lease = Duration::max(); }),
              HasSubstr("task train: lease"));
  EXPECT_THAT(message([](StreamOptions& o) { o.accept_column = "answer"; }),
              HasSubstr("accept_column: 'answer'"));
  EXPECT_THAT(message([](StreamOptions& o) { o.limit_bytes = 100; }),
              HasSubstr("limit_bytes: 100 cannot hold one group"));
  EXPECT_THAT(message([](StreamOptions& o) {
                o.limit_bytes = 100;
                o.group_bytes = 101;
              }),
              HasSubstr("limit_bytes: 100 cannot hold one group"));
}

// -- leases -------------------------------------------------------------------

TEST(StreamIndex, CompletionWritesAndAcksInOneStep) {
  IndexUnderTest index(pipeline(0));
  ASSERT_TRUE(index.put(0).ok());
  const auto leases = index.lease(kRollout, 1, at(0));
  EXPECT_EQ(index->num_ready(kReward), 0U);
  EXPECT_THAT(index.complete(kRollout, leases, at(1)).done, ElementsAre(SampleId{0}));
  EXPECT_EQ(index->num_ready(kReward), 1U);
  EXPECT_EQ(index->task_totals(kRollout).acked, 1U);
  expect_sound(index);
}

TEST(StreamIndex, CompletionNeedsExactlyTheDeclaredOutputs) {
  StreamOptions options = pipeline(0);
  options.max_deliveries = 0;
  IndexUnderTest index(options);
  ASSERT_TRUE(index.put(0).ok());
  const auto complete_with = [&](std::vector<CellInfo> cells) {
    const Lease lease = index.lease(kRollout, 1, at(1)).at(0);
    const std::vector<HeldRowInfo> rows{{lease, std::move(cells), {}}};
    return index->complete({kRollout, "worker"}, rows, at(1)).value().refused.at(0).reason;
  };
  EXPECT_EQ(complete_with({}), Refusal::kBadColumn);
  EXPECT_EQ(complete_with({{kRewardColumn, 1}}), Refusal::kBadColumn);
  EXPECT_EQ(complete_with({{kResponse, 1}, {kRewardColumn, 1}}), Refusal::kBadColumn);
  EXPECT_EQ(complete_with({{kResponse, 1}, {kResponse, 1}}), Refusal::kDuplicateColumn);
  EXPECT_EQ(complete_with({{ColumnId{9}, 1}}), Refusal::kUnknownColumn);
  EXPECT_EQ(complete_with({{kResponse, 4, DType::kF32}}), Refusal::kBadColumn);
  EXPECT_EQ(index->num_leased(), 0U) << "a refused row is given back";
  EXPECT_EQ(index->returned(kRollout).failed, 6U);
  EXPECT_EQ(index.complete(kRollout, index.lease(kRollout, 1, at(1)), at(1)).done.size(), 1U);
}

TEST(StreamIndex, AWriteOfSeveralRowsEndsAtTheFirstThatIsRefused) {
  IndexUnderTest index(pipeline(0));
  ASSERT_TRUE(index.put(0).ok());
  const std::vector<CellInfo> response{{kResponse, 1}};
  const std::vector<CellInfo> prompt{{kPrompt, 1}};
  const std::vector<RowWrite> writes{{{.id = {0}}, response},
                                     {{.id = {1}}, prompt},
                                     {{.id = {0}}, response},
                                     {{.id = {2}}, prompt}};
  EXPECT_EQ(reason_of(index->put(writes)), "duplicate_column");
  EXPECT_EQ(index->num_live(), 2U);
  EXPECT_EQ(index->num_ready(kReward), 1U);
  EXPECT_TRUE(index->put(std::span<const RowWrite>()).ok());
}

TEST(StreamIndex, CallsReplaceTheResultsWhoseMemoryTheyReuse) {
  IndexUnderTest index(pipeline(0));
  ASSERT_TRUE(index.put(0).ok());
  ASSERT_TRUE(index.put(1).ok());
  Grant grant;
  Settlement settlement;
  StreamEffects effects;
  ASSERT_TRUE(index->lease({kRollout, "worker", 2}, at(0), grant).ok());
  ASSERT_EQ(grant.shares.at(0).rows.size(), 2U);
  const std::vector<CellInfo> response{{kResponse, 1}};
  const std::vector<HeldRowInfo> rows{{grant.shares[0].rows[0].lease, response},
                                      {grant.shares[0].rows[1].lease, {}}};
  ASSERT_TRUE(index->complete({kRollout, "worker"}, rows, at(1), settlement).ok());
  EXPECT_THAT(settlement.done, ElementsAre(SampleId{0}));
  ASSERT_EQ(settlement.refused.size(), 1U);
  index->take_effects(effects);
  EXPECT_EQ(effects.slots.accepted, 1);

  ASSERT_TRUE(index->lease({kReward, "worker", 2}, at(1), grant).ok());
  EXPECT_EQ(grant.shares.at(0).rows.size(), 1U);
  ASSERT_TRUE(index->lease({kReward, "worker", 2}, at(1), grant).ok());
  EXPECT_TRUE(grant.empty());
  ASSERT_TRUE(index->complete({kRollout, "worker"}, {}, at(1), settlement).ok());
  EXPECT_EQ(settlement, Settlement{});
  index->take_effects(effects);
  EXPECT_EQ(effects.slots, SlotChanges{});
}

TEST(StreamIndex, AnExpiredLeaseWritesNothing) {
  IndexUnderTest index(pipeline(0));
  ASSERT_TRUE(index.put(0).ok());
  const auto leases = index.lease(kRollout, 1, at(0));
  const Settlement late = index.complete(kRollout, leases, at(10));
  EXPECT_THAT(late.refused, ElementsAre(RefusedRow{leases[0], Refusal::kNotLeased}));
  EXPECT_EQ(index->num_ready(kReward), 0U);
  EXPECT_EQ(index->num_ready(kRollout), 1U);
  EXPECT_EQ(index->bytes_used(), 1U);
  EXPECT_EQ(index->refused(Refusal::kNotLeased), 1U);
}

TEST(StreamIndex, AnOlderGenerationIsRefusedEvenFromTheSameConsumer) {
  IndexUnderTest index(pipeline(0));
  ASSERT_TRUE(index.put(0).ok());
  const auto first = index.lease(kRollout, 1, at(0));
  const auto second = index.lease(kRollout, 1, at(10));
  ASSERT_EQ(ids_of(second), ids_of(first));
  EXPECT_GT(second[0].generation, first[0].generation);
  const Settlement old = index.complete(kRollout, first, at(11));
  EXPECT_THAT(old.refused, ElementsAre(RefusedRow{first[0], Refusal::kOldLease}));
  EXPECT_EQ(index.complete(kRollout, second, at(11)).done.size(), 1U);
}

TEST(StreamIndex, AReturnedRowIsFirstAgain) {
  IndexUnderTest index(pipeline(0));
  for (std::uint64_t id = 0; id < 3; ++id) {
    ASSERT_TRUE(index.put(id).ok());
  }
  const auto first = index.lease(kRollout, 1, at(0));
  EXPECT_EQ(index.nack(kRollout, first, at(1)).done.size(), 1U);
  EXPECT_THAT(ids_of(index.lease(kRollout, 2, at(1))), ElementsAre(0, 1));
}

TEST(StreamIndex, ADeadConsumerLosesNothingAndRepeatsNothing) {
  IndexUnderTest index(pipeline(0));
  for (std::uint64_t id = 0; id < 4; ++id) {
    ASSERT_TRUE(index.put(id).ok());
  }
  const auto dead = index.lease(kRollout, 2, at(0), "dead");
  const auto alive = index.lease(kRollout, 2, at(0), "alive");
  index->drop_consumer("dead");
  EXPECT_THAT(ids_of(index.lease(kRollout, 4, at(1), "alive")), ElementsAre(0, 1));
  EXPECT_EQ(index.complete(kRollout, dead, at(1)).refused.size(), 2U);
  EXPECT_EQ(index.complete(kRollout, alive, at(1)).done.size(), 2U);
  EXPECT_THAT(index->take_effects().returned,
              ElementsAre(TaskRow{kRollout, {0}}, TaskRow{kRollout, {1}}));
  expect_sound(index);
}

TEST(StreamIndex, RenewalMovesTheDeadlineAndTheNextOneIsKnown) {
  IndexUnderTest index(pipeline(0));
  ASSERT_TRUE(index.put(0).ok());
  EXPECT_EQ(index->next_deadline(), std::nullopt);
  const auto leases = index.lease(kRollout, 1, at(0));
  EXPECT_EQ(index->next_deadline(), at(10));
  ASSERT_TRUE(index->renew({kRollout, "worker"}, held(leases), at(9)).ok());
  EXPECT_EQ(index->next_deadline(), at(19));
  EXPECT_EQ(index.complete(kRollout, leases, at(18)).done.size(), 1U);
  EXPECT_EQ(index->next_deadline(), std::nullopt);
}

TEST(StreamIndex, TheClockDoesNotGoBack) {
  IndexUnderTest index(pipeline(0));
  ASSERT_TRUE(index->expire(at(5)).ok());
  EXPECT_EQ(reason_of(index->expire(at(4))), "time_regress");
  EXPECT_EQ(reason_of(index->lease({kRollout, "w"}, at(4)).status()), "time_regress");
  EXPECT_EQ(index->refused(Refusal::kTimeRegress), 2U);
}

// -- too many failures ----------------------------------------------------------

TEST(StreamIndex, ARowThatFailsTooOftenIsRetiredWithItsReason) {
  IndexUnderTest index(pipeline(0));
  ASSERT_TRUE(index.put(0).ok());
  for (int delivery = 0; delivery < 3; ++delivery) {
    EXPECT_EQ(index.nack(kRollout, index.lease(kRollout, 1, at(0)), at(0)).done.size(), 1U);
  }
  const StreamEffects effects = index->take_effects();
  ASSERT_EQ(effects.retired.size(), 1U);
  EXPECT_EQ(effects.retired[0].outcome, RowOutcome::kFailed);
  EXPECT_EQ(effects.retired[0].reason, "task rollout: failed 3 times, last: no luck");
  EXPECT_EQ(index->totals().failed, 1U);
  EXPECT_EQ(index->num_live(), 0U);
  expect_sound(index);
}

TEST(StreamIndex, DeliveriesThatAreLostDoNotFailAHealthyRow) {
  IndexUnderTest index(pipeline(0));
  ASSERT_TRUE(index.put(0).ok());
  for (std::int64_t restart = 0; restart < 5; ++restart) {
    const std::string consumer = "worker " + std::to_string(restart);
    ASSERT_EQ(index.lease(kRollout, 1, at(20 * restart), consumer).size(), 1U);
    if (restart % 2 == 0) {
      index->drop_consumer(consumer);
    } else {
      ASSERT_TRUE(index->expire(at(20 * restart + 15)).ok());
    }
  }
  const auto leases = index.lease(kRollout, 1, at(100));
  ASSERT_EQ(leases.size(), 1U);
  ASSERT_TRUE(
      index->nack({kRollout, "worker"}, held(leases), {Release::kLost, "no reply"}, at(100)).ok());
  EXPECT_EQ(index->num_live(), 1U);
  EXPECT_EQ(index->task_totals(kRollout).redelivered, 6U);
  // Failures still count, and only they do.
  index.nack(kRollout, index.lease(kRollout, 1, at(101)), at(101));
  index.nack(kRollout, index.lease(kRollout, 1, at(101)), at(101));
  EXPECT_EQ(index->num_live(), 1U);
  index.nack(kRollout, index.lease(kRollout, 1, at(101)), at(101));
  EXPECT_EQ(index->totals().failed, 1U);
  expect_sound(index);
}

TEST(StreamIndex, DeliveriesToOneTaskDoNotCountForAnother) {
  IndexUnderTest index(pipeline(0));
  ASSERT_TRUE(index.put(0).ok());
  index.nack(kRollout, index.lease(kRollout, 1, at(0)), at(0));
  index.nack(kRollout, index.lease(kRollout, 1, at(0)), at(0));
  index.complete(kRollout, index.lease(kRollout, 1, at(0)), at(0));
  index.nack(kReward, index.lease(kReward, 1, at(0)), at(0));
  EXPECT_EQ(index->num_live(), 1U);
}

// -- groups and verdicts ----------------------------------------------------------

TEST(StreamIndex, AFailedRowRemovesItsGroup) {
  StreamOptions options = pipeline(3);
  options.on_failed = OnFailedRow::kDropGroup;
  IndexUnderTest index(options);
  index.put_groups(2, 3);
  ASSERT_TRUE(index->apply_verdict({1}, {VerdictKind::kFail, "cannot be scored"}).ok());
  EXPECT_EQ(index->totals().failed, 1U);
  EXPECT_EQ(index->totals().dropped, 2U);
  EXPECT_EQ(index->num_live(), 3U);
  const StreamEffects effects = index->take_effects();
  EXPECT_EQ(effects.retired.back().reason, "sample 1 failed: cannot be scored");
  expect_sound(index);
}

TEST(StreamIndex, AShrunkGroupIsCompleteWithoutItsFailedRows) {
  StreamOptions options = pipeline(3);
  options.on_failed = OnFailedRow::kShrink;
  IndexUnderTest index(options);
  index.put_groups(1, 3);
  index.finish(0);
  index.finish(2);
  EXPECT_THAT(index.lease(kTrain, 1, at(0)), IsEmpty());
  ASSERT_TRUE(index->apply_verdict({1}, {VerdictKind::kFail, "poisoned"}).ok());
  EXPECT_THAT(ids_of(index.lease(kTrain, 1, at(0))), ElementsAre(0, 2));
  expect_sound(index);
}

TEST(StreamIndex, AGroupWhoseFirstRowFailedKeepsItsPositionInTheOrder) {
  StreamOptions options = pipeline(2);
  options.on_failed = OnFailedRow::kShrink;
  IndexUnderTest index(options);
  index.put_groups(2, 2);
  for (std::uint64_t id = 1; id < 4; ++id) {
    index.finish(id);
  }
  ASSERT_TRUE(index->apply_verdict({0}, {VerdictKind::kFail, "poisoned"}).ok());
  EXPECT_THAT(ids_of(index.lease(kTrain, 2, at(0))), ElementsAre(1, 2, 3));
}

TEST(StreamIndex, GroupsAreNeverMixed) {
  // Ready rows 1 to 5 of the groups {0, 1, 2} and {3, 4, 5}: neighbors do not make a group.
  StreamOptions options = pipeline(3);
  options.tasks[2].order = DeliveryOrder::kOldestReady;
  IndexUnderTest index(options);
  index.put_groups(2, 3);
  for (std::uint64_t id = 1; id < 6; ++id) {
    index.finish(id);
  }
  EXPECT_THAT(ids_of(index.lease(kTrain, 2, at(0))), ElementsAre(3, 4, 5));
}

TEST(StreamIndex, AVerdictOnAGroupRemovesLeasedRowsToo) {
  IndexUnderTest index(pipeline(2));
  index.put_groups(1, 2);
  const auto leases = index.lease(kRollout, 1, at(0));
  ASSERT_TRUE(index->apply_group_verdict({0}, {VerdictKind::kFilter, "no signal"}).ok());
  EXPECT_EQ(index->totals().filtered, 2U);
  EXPECT_EQ(index->num_leased(), 0U);
  EXPECT_THAT(index.complete(kRollout, leases, at(1)).refused,
              ElementsAre(RefusedRow{leases[0], Refusal::kUnknownRow}));
  EXPECT_EQ(reason_of(index->apply_group_verdict({0}, {VerdictKind::kDrop, ""})), "unknown_row");
  expect_sound(index);
}

TEST(StreamIndex, RowsOfAGroupThatLeftAreRefused) {
  IndexUnderTest index(pipeline(3));
  ASSERT_TRUE(index.put(0, 0, 3, 0).ok());
  ASSERT_TRUE(index->apply_group_verdict({0}, {VerdictKind::kDrop, "not wanted"}).ok());
  EXPECT_EQ(reason_of(index.put(1, 0, 3, 1)), "group_retired");
  EXPECT_TRUE(index.put(1, 1, 3, 0).ok());
}

TEST(StreamIndex, IdsAreNeverReused) {
  IndexUnderTest index(pipeline(2));
  ASSERT_TRUE(index.put(5).ok());
  ASSERT_TRUE(index->apply_verdict({5}, {VerdictKind::kDrop, ""}).ok());
  EXPECT_EQ(reason_of(index.put(5)), "row_retired");
  EXPECT_EQ(reason_of(index.put(4)), "row_retired");
  EXPECT_EQ(reason_of(index.put(6, 0, 2, 2)), "bad_group");
  EXPECT_EQ(reason_of(index.put(6, 0, 3, 0)), "bad_group");
  ASSERT_TRUE(index.put(6, 0, 2, 1).ok());
  EXPECT_EQ(reason_of(index.put(7, 0, 2, 1)), "bad_group") << "the index is taken";
  EXPECT_EQ(reason_of(index.put(7, 0, 1, 0)), "bad_group") << "another size";
  ASSERT_TRUE(index.put(7, 0, 2, 0).ok());
  EXPECT_EQ(index->totals().admitted, 3U);
}

// -- order --------------------------------------------------------------------

TEST(StreamIndex, StrictOrderWaitsForTheOldestGroup) {
  IndexUnderTest index(pipeline(2));
  index.put_groups(3, 2);
  for (const std::uint64_t id : {2U, 3U, 4U, 5U}) {
    index.finish(id);
  }
  EXPECT_EQ(index->num_ready(kTrain), 4U);
  EXPECT_THAT(index.lease(kTrain, 3, at(0)), IsEmpty());
  index.finish(0);
  EXPECT_THAT(index.lease(kTrain, 3, at(0)), IsEmpty());
  index.finish(1);
  EXPECT_THAT(index.lease(kTrain, 4, at(0), "w", 4), IsEmpty()) << "a batch is complete or waits";
  EXPECT_THAT(ids_of(index.lease(kTrain, 2, at(0), "w", 2)), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(ids_of(index.lease(kTrain, 2, at(0))), ElementsAre(4, 5));
}

TEST(StreamIndex, StrictOrderWaitsForAGroupStillBeingAdmitted) {
  IndexUnderTest index(pipeline(2));
  ASSERT_TRUE(index.put(0, 0, 2, 0).ok());
  ASSERT_TRUE(index.put(1, 1, 2, 0).ok());
  ASSERT_TRUE(index.put(2, 1, 2, 1).ok());
  for (const std::uint64_t id : {0U, 1U, 2U}) {
    index.finish(id);
  }
  EXPECT_THAT(index.lease(kTrain, 2, at(0)), IsEmpty());
  EXPECT_EQ(index->waiting_for(kTrain), "group 0: 1 of 2 rows admitted");
  ASSERT_TRUE(index->apply_group_verdict({0}, {VerdictKind::kDrop, "producer is gone"}).ok());
  EXPECT_THAT(ids_of(index.lease(kTrain, 2, at(0))), ElementsAre(1, 2));
}

TEST(StreamIndex, StrictOrderLeasesAReturnedGroupFirst) {
  IndexUnderTest index(pipeline(2));
  index.put_groups(2, 2);
  for (std::uint64_t id = 0; id < 4; ++id) {
    index.finish(id);
  }
  index.lease(kTrain, 1, at(0));
  EXPECT_THAT(ids_of(index.lease(kTrain, 1, at(5))), ElementsAre(2, 3));
  ASSERT_TRUE(index->expire(at(10)).ok());
  EXPECT_THAT(ids_of(index.lease(kTrain, 2, at(10))), ElementsAre(0, 1));
}

TEST(StreamIndex, SaysWhatATaskWaitsFor) {
  IndexUnderTest index(pipeline(2));
  EXPECT_EQ(index->waiting_for(kTrain), "new rows");
  index.put_groups(1, 2);
  EXPECT_EQ(index->waiting_for(kTrain),
            "group 0: sample 0: column response, task rollout, not leased");
  const auto leases = index.lease(kRollout, 1, at(0), "rollout-1");
  EXPECT_EQ(index->waiting_for(kTrain),
            "group 0: sample 0: column response, task rollout, leased by rollout-1");
  EXPECT_EQ(index->waiting_for(kReward),
            "sample 0: column response, task rollout, leased by rollout-1");
  index.complete(kRollout, leases, at(1));
  index.generate_and_score(at(1));
  EXPECT_EQ(index->waiting_for(kTrain), "");
}

// A request that failed is tried again only if the revision has changed. It changes if the lease
// may succeed now, and not with every operation.
TEST(StreamIndex, TheRevisionOfATaskChangesOnlyWhenALeaseMaySucceed) {
  StreamOptions options = pipeline(2);
  options.tasks[2].max_staleness = 1;
  IndexUnderTest index(options);
  std::map<std::uint32_t, std::uint64_t> last;
  const auto changed = [&] {  // the tasks whose revision has changed since the last call
    std::vector<std::uint32_t> tasks;
    for (const TaskId task : {kRollout, kReward, kTrain}) {
      const std::uint64_t revision = index->revision(task);
      EXPECT_GE(revision, last[task.value]);
      if (std::exchange(last[task.value], revision) != revision) {
        tasks.push_back(task.value);
      }
    }
    return tasks;
  };
  changed();
  index.put_groups(1, 2);
  EXPECT_THAT(changed(), ElementsAre(kRollout.value));
  const auto rollouts = index.lease(kRollout, 2, at(0));
  EXPECT_THAT(changed(), IsEmpty());  // the unit is taken
  ASSERT_TRUE(index->renew(index.holder(kRollout, rollouts), held(rollouts), at(1)).ok());
  EXPECT_THAT(changed(), IsEmpty());
  EXPECT_THAT(index.lease(kReward, 1, at(1)), IsEmpty());
  EXPECT_THAT(changed(), IsEmpty());
  index.complete(kRollout, rollouts, at(1));
  EXPECT_THAT(changed(), ElementsAre(kReward.value));
  const auto rewards = index.lease(kReward, 2, at(1));
  ASSERT_TRUE(
      index->nack(index.holder(kReward, rewards), held(rewards), {Release::kLost, "later"}, at(2))
          .ok());
  EXPECT_THAT(changed(), ElementsAre(kReward.value));
  index.complete(kReward, index.lease(kReward, 2, at(2)), at(2));
  EXPECT_THAT(changed(), ElementsAre(kTrain.value));
  ASSERT_TRUE(index->set_version(1).ok());  // ready units may be stale now
  EXPECT_THAT(changed(), ElementsAre(kRollout.value, kReward.value, kTrain.value));
  ASSERT_TRUE(index->apply_group_verdict({0}, {VerdictKind::kDrop, "gone"}).ok());
  EXPECT_THAT(changed(), Contains(kTrain.value));  // a younger group may be the oldest now
  const IndexSnapshot empty = index->snapshot();
  ASSERT_TRUE(index->restore(empty).ok());
  EXPECT_THAT(changed(), ElementsAre(kRollout.value, kReward.value, kTrain.value));
}

// -- staleness ----------------------------------------------------------------

TEST(StreamIndex, AStaleGroupIsDroppedForAllTasksAndForfeited) {
  StreamOptions options = pipeline(2);
  options.tasks[2].max_staleness = 1;
  options.tasks[2].stale_policy = StalePolicy::kDrop;
  IndexUnderTest index(options);
  index.put_groups(2, 2);
  index.finish(0, 0);
  index.finish(1, 3);
  index.finish(2, 2);
  index.finish(3, 3);
  ASSERT_TRUE(index->set_version(3).ok());
  EXPECT_EQ(index->totals().dropped, 0U) << "stale policies apply only at a lease";
  EXPECT_EQ(index->waiting_for(kTrain), "group 0: too stale at version 3");
  EXPECT_THAT(ids_of(index.lease(kTrain, 1, at(0))), ElementsAre(2, 3));
  EXPECT_EQ(index->totals().dropped, 2U);
  const StreamEffects effects = index->take_effects();
  EXPECT_EQ(effects.retired.front().reason, "stale: step 0 at version 3");
  EXPECT_EQ(effects.slots.forfeited, 2);
  expect_sound(index);
}

TEST(StreamIndex, TheVersionDoesNotGoBackByItself) {
  IndexUnderTest index(pipeline(0));
  ASSERT_TRUE(index->set_version(4).ok());
  const Status back = index->set_version(3);
  EXPECT_EQ(back.code(), Errc::kStaleVersion);
  EXPECT_EQ(reason_of(back), "version_regress");
  index->restore_version(1);
  EXPECT_EQ(index->version(), 1U);
}

// -- bytes --------------------------------------------------------------------

TEST(StreamIndex, AProducerFinishesItsGroupWhileANewGroupWaits) {
  StreamOptions options = pipeline(2);
  options.group_bytes = 100;
  options.limit_bytes = 250;
  IndexUnderTest index(options);
  EXPECT_TRUE(index.put(0, 0, 2, 0, 10).ok());
  EXPECT_TRUE(index.put(1, 1, 2, 0, 10).ok());
  const Status refused = index.put(2, 2, 2, 0, 10);
  EXPECT_EQ(refused.code(), Errc::kResourceExhausted);
  EXPECT_EQ(reason_of(refused), "byte_limit");
  EXPECT_EQ(reason_of(index.put(2)), "byte_limit") << "a row without a group counts as a new group";
  EXPECT_TRUE(index.put(2, 0, 2, 1, 200).ok()) << "even beyond the declared bytes";
  EXPECT_TRUE(index.put(3, 1, 2, 1, 10).ok());
  EXPECT_EQ(index->bytes_used(), 230U);
  EXPECT_EQ(index->bytes_reserved(), 310U);
  ASSERT_TRUE(index->apply_group_verdict({0}, {VerdictKind::kDrop, ""}).ok());
  EXPECT_EQ(index->bytes_used(), 20U);
  EXPECT_EQ(index->bytes_reserved(), 100U);
  EXPECT_TRUE(index.put(4, 2, 2, 0, 10).ok());
  EXPECT_EQ(index->refused(Refusal::kByteLimit), 2U);
  expect_sound(index);
}

TEST(StreamIndex, AFastProducerStaysUnderTheLimit) {
  StreamOptions options = pipeline(2);
  options.group_bytes = 8;
  options.limit_bytes = 80;
  IndexUnderTest index(options);
  std::uint64_t next = 0;
  std::uint64_t peak = 0;
  for (int round = 0; round < 200; ++round) {
    for (int tries = 0; tries < 10; ++tries) {  // offers ten groups for each that is consumed
      if (index.put(next, next / 2, 2, 0).ok()) {
        ASSERT_TRUE(index.put(next + 1, next / 2, 2, 1).ok());
        next += 2;
      }
    }
    index.generate_and_score(at(round));
    peak = std::max(peak, index->bytes_used());
    index.complete(kTrain, index.lease(kTrain, 1, at(round)), at(round));
    ASSERT_LE(index->bytes_reserved(), 80U);
  }
  EXPECT_LE(peak, 80U);
  EXPECT_EQ(index->totals().trained, 400U) << "back-pressure does not starve the consumer";
  EXPECT_EQ(index->totals().dropped, 0U);
}

// -- slots --------------------------------------------------------------------

TEST(StreamIndex, SlotsFollowTheGroup) {
  StreamOptions options = pipeline(3);
  options.on_failed = OnFailedRow::kShrink;
  IndexUnderTest index(options);
  index.put_groups(4, 3);
  EXPECT_EQ(index->held_slots(), (HeldSlots{12, 0}));

  // Group 0 is trained; a row that failed in it keeps its slot until then.
  ASSERT_TRUE(index->apply_verdict({0}, {VerdictKind::kFail, ""}).ok());
  EXPECT_EQ(index->take_effects().slots, (SlotChanges{1, 0, 0, 0}));
  index.finish(1);
  index.finish(2);
  EXPECT_EQ(index->take_effects().slots, (SlotChanges{2, 0, 0, 0}));
  index.complete(kRollout, {}, at(0));
  EXPECT_EQ(index->held_slots(), (HeldSlots{9, 3}));

  // Group 1 is filtered half finished. Group 2 fails row by row before any response is finished.
  index.finish(3);
  ASSERT_TRUE(index->apply_group_verdict({1}, {VerdictKind::kFilter, ""}).ok());
  EXPECT_EQ(index->take_effects().slots, (SlotChanges{1, 0, 2, 1}));
  for (const std::uint64_t id : {6U, 7U, 8U}) {
    ASSERT_TRUE(index->apply_verdict({id}, {VerdictKind::kFail, ""}).ok());
  }
  EXPECT_EQ(index->take_effects().slots, (SlotChanges{2, 1, 0, 2}));
  EXPECT_EQ(index->held_slots(), (HeldSlots{3, 3}));
  expect_sound(index);
}

TEST(StreamIndex, TrainedRowsGiveNoSlotBack) {
  IndexUnderTest index(pipeline(2));
  index.put_groups(1, 2);
  index.generate_and_score(at(0));
  EXPECT_EQ(index->take_effects().slots, (SlotChanges{2, 0, 0, 0}));
  EXPECT_EQ(index.complete(kTrain, index.lease(kTrain, 1, at(0)), at(0)).done.size(), 2U);
  EXPECT_EQ(index->take_effects().slots, (SlotChanges{}));
  EXPECT_EQ(index->held_slots(), (HeldSlots{}));
  EXPECT_EQ(index->totals().trained, 2U);
}

TEST(StreamIndex, AGroupRemovedDuringAdmissionGivesAllSlotsBack) {
  IndexUnderTest index(pipeline(3));
  ASSERT_TRUE(index.put(0, 0, 3, 0).ok());
  ASSERT_TRUE(index->apply_group_verdict({0}, {VerdictKind::kDrop, ""}).ok());
  EXPECT_EQ(index->take_effects().slots, (SlotChanges{0, 3, 0, 0}));
}

// -- settling groups --------------------------------------------------------------

TEST(StreamIndex, AGroupIsSettledAsAWhole) {
  IndexUnderTest index(pipeline(2));
  index.put_groups(1, 2);
  index.generate_and_score(at(0));
  auto leases = index.lease(kTrain, 1, at(0));
  const std::vector<HeldRowInfo> half{{leases[0], {}, {}}};
  EXPECT_EQ(reason_of(index->complete({kTrain, "worker"}, half, at(0)).status()), "partial_group");
  const std::vector<HeldRowInfo> twice{{leases[0], {}, {}}, {leases[0], {}, {}}};
  EXPECT_EQ(reason_of(index->complete({kTrain, "worker"}, twice, at(0)).status()), "duplicate_row");
  std::vector<Lease> mixed = leases;
  ++mixed[1].generation;
  EXPECT_THAT(index.complete(kTrain, mixed, at(0)).refused,
              ElementsAre(RefusedRow{mixed[0], Refusal::kGroupRefused},
                          RefusedRow{mixed[1], Refusal::kOldLease}));
  EXPECT_EQ(index.complete(kTrain, leases, at(0)).done.size(), 2U);
}

TEST(StreamIndex, UnknownTasksAndBadCountsAreRefusedAndCounted) {
  StreamOptions options = pipeline(0);
  options.tasks[0].ranks = 2;
  IndexUnderTest index(options);
  EXPECT_EQ(reason_of(index->lease({TaskId{7}, "w"}, at(0)).status()), "unknown_task");
  EXPECT_EQ(reason_of(index->complete({TaskId{7}}, {}, at(0)).status()), "unknown_task");
  EXPECT_EQ(reason_of(index->lease({kReward, "w", 0, 0}, at(0)).status()), "bad_count");
  EXPECT_EQ(reason_of(index->lease({kReward, "w", 2, 3}, at(0)).status()), "bad_count");
  EXPECT_EQ(reason_of(index->lease({kRollout, "w", 3}, at(0)).status()), "bad_count");
  EXPECT_EQ(index->refused(Refusal::kUnknownTask), 2U);
  EXPECT_EQ(index->refused(Refusal::kBadCount), 3U);
}

}  // namespace
}  // namespace tidemill::storage
