// SPDX-License-Identifier: Apache-2.0
// The parts of a stream one by one: ready sets, balancing, cells, and cost.
#include <algorithm>
#include <cstdint>
#include <iostream>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/random.hpp"
#include "storage/stream/balance.hpp"
#include "storage/stream/lease_table.hpp"
#include "storage/stream/ready_set.hpp"
#include "storage/stream/stream_table.hpp"
#include "tests/storage/stream/stream_fixture.hpp"

namespace tidemill::storage {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

// -- ready sets ---------------------------------------------------------------

TEST(ReadySet, SeparatesFreshFromStale) {
  ReadySet set(2);
  set.put({1, 1}, 5);
  set.put({2, 2}, kNoStep);
  set.put({0, 0}, 3);
  set.set_version(6);
  EXPECT_THAT(set.fresh(), ElementsAre(Pair(Unit{1, 1}, 5), Pair(Unit{2, 2}, kNoStep)));
  EXPECT_THAT(set.stale(), ElementsAre(Pair(Unit{0, 0}, 3)));
  set.set_version(5);
  EXPECT_EQ(set.fresh().size(), 3U);
  set.put({1, 1}, 2);
  EXPECT_THAT(set.stale(), ElementsAre(Pair(Unit{1, 1}, 2)));
  set.erase({1, 1});
  set.erase({2, 2});
  set.erase({2, 2});
  EXPECT_THAT(set.fresh(), ElementsAre(Pair(Unit{0, 0}, 3)));
  EXPECT_TRUE(set.stale().empty());
}

TEST(ReadySet, NothingIsStaleWithoutABound) {
  ReadySet set(std::nullopt);
  set.put({0, 0}, 0);
  set.set_version(kNoStep - 1);
  EXPECT_EQ(set.fresh().size(), 1U);
}

TEST(ReadySet, TheLargestBoundDoesNotWrap) {
  ReadySet set(kNoStep);
  set.put({0, 0}, 0);
  set.put({1, 1}, kNoStep - 1);
  set.set_version(kNoStep - 1);
  EXPECT_EQ(set.fresh().size(), 2U);
}

TEST(ReadySet, UnitsMoveWithTheVersionInAnyOrderOfTheirSteps) {
  RandomStream random(5);
  ReadySet set(3);
  std::map<std::uint64_t, std::uint64_t> steps;  // by position
  for (std::uint64_t version = 0; version < 60; ++version) {
    for (int i = 0; i < 40; ++i) {
      const std::uint64_t position = random.below(200);
      if (random.below(3) == 0) {
        set.erase({position, position});
        steps.erase(position);
      } else {
        steps[position] = random.below(8) == 0 ? kNoStep : version + random.below(9);
        set.put({position, position}, steps[position]);
      }
    }
    set.set_version(version);
    std::vector<ReadySet::Units::value_type> fresh;
    std::vector<ReadySet::Units::value_type> stale;
    for (const auto& [position, step] : steps) {
      (step >= version || version - step <= 3 ? fresh : stale)
          .push_back({{position, position}, step});
    }
    ASSERT_THAT(set.fresh(), ::testing::ElementsAreArray(fresh));
    ASSERT_THAT(set.stale(), ::testing::ElementsAreArray(stale));
  }
}

// -- leases -------------------------------------------------------------------

TEST(LeaseTable, ListsLeasesByDeadlineAndByConsumer) {
  LeaseTable table(2);
  const auto add = [&](std::uint32_t task, std::uint64_t row, const char* consumer, int deadline) {
    return table.add(
        {.row = {{task}, {row}}, .deadline = at(deadline), .consumer = table.consumer(consumer)});
  };
  const Slot first = add(0, 7, "a", 10);
  const Slot second = add(0, 3, "b", 20);
  const Slot third = add(1, 5, "a", 5);
  EXPECT_EQ(table.next_deadline(), at(5));
  std::vector<TaskRow> rows;
  table.due(at(10), rows);
  EXPECT_THAT(rows, ElementsAre(TaskRow{{0}, {7}}, TaskRow{{1}, {5}}));
  table.renew(first, at(20));
  table.due(at(10), rows);
  EXPECT_THAT(rows, ElementsAre(TaskRow{{1}, {5}}));
  table.held_by("a", rows);
  EXPECT_THAT(rows, ElementsAre(TaskRow{{0}, {7}}, TaskRow{{1}, {5}}));
  table.remove(second);
  table.held_by("b", rows);
  EXPECT_TRUE(rows.empty());
  table.due(at(30), rows);
  EXPECT_THAT(rows, ElementsAre(TaskRow{{0}, {7}}, TaskRow{{1}, {5}}));
  table.remove(third);
  table.remove(first);
  EXPECT_EQ(table.next_deadline(), std::nullopt);
  EXPECT_EQ(table.size(), 0U);
}

TEST(LeaseTable, ForgetsConsumersThatHaveBeenIdleForLongest) {
  LeaseTable table(1);
  const auto visit = [&](const std::string& consumer) {
    table.remove(table.add({.row = {{0}, {1}}, .consumer = table.consumer(consumer)}));
  };
  const Slot busy = table.add({.row = {{0}, {0}}, .consumer = table.consumer("busy")});
  visit("idle");
  visit("returning");
  for (std::size_t i = 0; i + 1 < LeaseTable::kMaxIdleConsumers; ++i) {
    visit("other " + std::to_string(i));
    visit("returning");
  }
  EXPECT_EQ(table.find_consumer("idle"), kNoSlot);
  EXPECT_NE(table.find_consumer("returning"), kNoSlot);
  EXPECT_NE(table.find_consumer("other 0"), kNoSlot);
  EXPECT_EQ(table.name(table[busy].consumer), "busy");
}

// -- balancing ----------------------------------------------------------------

TEST(Balance, AssignsTheLargestFirstInEqualShares) {
  const std::vector<std::uint64_t> tokens{30, 10, 41, 14};
  EXPECT_THAT(balance(tokens, 2), ElementsAre(ElementsAre(1, 2), ElementsAre(0, 3)));
  EXPECT_THAT(balance(tokens, 1), ElementsAre(ElementsAre(0, 1, 2, 3)));
}

TEST(Balance, EveryUnitOnceEqualCountsAndTheBoundOfListScheduling) {
  RandomStream random(7);
  for (int round = 0; round < 200; ++round) {
    const auto ranks = static_cast<std::uint32_t>(1 + random.below(5));
    std::vector<std::uint64_t> tokens(ranks * (1 + random.below(8)));
    for (std::uint64_t& count : tokens) {
      count = random.below(1000);
    }
    const auto assigned = balance(tokens, ranks);
    ASSERT_EQ(assigned.size(), ranks);
    std::vector<std::uint32_t> all;
    std::uint64_t largest_sum = 0;
    std::uint64_t smallest_sum = kNoStep;
    for (const auto& share : assigned) {
      EXPECT_EQ(share.size(), tokens.size() / ranks);
      EXPECT_TRUE(std::is_sorted(share.begin(), share.end()));
      all.insert(all.end(), share.begin(), share.end());
      std::uint64_t sum = 0;
      for (const std::uint32_t unit : share) {
        sum += tokens[unit];
      }
      largest_sum = std::max(largest_sum, sum);
      smallest_sum = std::min(smallest_sum, sum);
    }
    std::sort(all.begin(), all.end());
    std::vector<std::uint32_t> expected(tokens.size());
    std::iota(expected.begin(), expected.end(), 0U);
    EXPECT_EQ(all, expected);
    if (tokens.size() == std::size_t{2} * ranks) {
      // With two units per rank, the largest unit is paired with the smallest: the sums differ by
      // at most the largest unit.
      EXPECT_LE(largest_sum - smallest_sum, *std::max_element(tokens.begin(), tokens.end()));
    }
  }
}

// -- cells --------------------------------------------------------------------

Buffer text(const std::string& value) {
  return Buffer::adopt(std::vector<char>(value.begin(), value.end()), DType::kU8);
}

std::string text_of(const Buffer& value) {
  const auto chars = value.as<char>();
  return {chars.begin(), chars.end()};
}

StreamOptions typed() {
  StreamOptions options = pipeline(0);
  options.columns = {{"prompt", ColumnType::kString},
                     {"response", ColumnType::kInt32},
                     {"reward", ColumnType::kFloat},
                     {"mask", ColumnType::kU8}};
  return options;
}

TEST(StreamTable, ALeaseCarriesTheInputsAndTheyOutliveTheRow) {
  auto stream = StreamTable::create(typed()).value();
  const SampleRow row{.id = {3}, .epoch = 1, .data_position = 9, .min_step = 4};
  ASSERT_TRUE(stream->put(row, std::vector<ColumnValue>{{kPrompt, text("2+2=")}}, {}).ok());
  const LeasedBatch batch = stream->lease({kRollout, "worker"}, at(0)).value();
  const LeasedRow& leased = batch.shares.at(0).rows.at(0);
  EXPECT_EQ(leased.row, row);
  EXPECT_EQ(batch.deadline, at(10));
  ASSERT_EQ(leased.columns.size(), 1U);
  ASSERT_TRUE(stream->apply_verdict({3}, {VerdictKind::kDrop, ""}).ok());
  EXPECT_EQ(stream->columns().bytes(), 0U);
  EXPECT_EQ(text_of(leased.columns[0].value), "2+2=");
}

TEST(StreamTable, CellsTravelWithoutBeingCopied) {
  auto stream = StreamTable::create(typed()).value();
  const Buffer prompt = text("a long prompt");
  ASSERT_TRUE(stream->put({.id = {0}}, std::vector<ColumnValue>{{kPrompt, prompt}}, {}).ok());
  const LeasedBatch batch = stream->lease({kRollout, "worker"}, at(0)).value();
  EXPECT_EQ(batch.shares.at(0).rows.at(0).columns.at(0).value.bytes().data(),
            prompt.bytes().data());
}

TEST(StreamTable, ARowPassesThroughAllTasks) {
  auto stream = StreamTable::create(typed()).value();
  ASSERT_TRUE(stream->put({.id = {0}}, std::vector<ColumnValue>{{kPrompt, text("2+2=")}}, {}).ok());
  Lease lease = stream->lease({kRollout, "w"}, at(0)).value().shares.at(0).rows.at(0).lease;
  std::vector<HeldRow> finished{
      {lease, {{kResponse, Buffer::adopt<std::int32_t>({4, 2}, DType::kI32)}}, {6, 2}}};
  ASSERT_EQ(stream->complete({kRollout, "w"}, finished, at(0)).value().done.size(), 1U);

  const LeasedBatch scored = stream->lease({kReward, "w"}, at(0)).value();
  const LeasedRow& row = scored.shares.at(0).rows.at(0);
  EXPECT_EQ(scored.shares.at(0).tokens, 2U);
  EXPECT_EQ(row.facts, (RowFacts{6, 2}));
  ASSERT_EQ(row.columns.size(), 2U) << "in the order of the task's inputs";
  EXPECT_EQ(text_of(row.columns[0].value), "2+2=");
  EXPECT_THAT(row.columns[1].value.as<std::int32_t>(), ElementsAre(4, 2));

  finished = {{row.lease, {{kRewardColumn, Buffer::adopt<float>({1.0F}, DType::kF32)}}, {}}};
  ASSERT_EQ(stream->complete({kReward, "w"}, finished, at(0)).value().done.size(), 1U);
  EXPECT_EQ(stream->columns().bytes(), 4U + 8U + 4U);
  lease = stream->lease({kTrain, "w"}, at(0)).value().shares.at(0).rows.at(0).lease;
  ASSERT_EQ(stream->complete({kTrain, "w"}, std::vector<HeldRow>{{lease, {}, {}}}, at(0))
                .value()
                .done.size(),
            1U);
  EXPECT_EQ(stream->columns().num_rows(), 0U);
  EXPECT_EQ(stream->columns().bytes(), 0U);
  EXPECT_TRUE(stream->check_invariants().ok());
}

TEST(StreamTable, ValuesOfAnotherTypeAreRefusedAndCounted) {
  auto stream = StreamTable::create(typed()).value();
  const auto reason = [&](ColumnId column, Buffer value) {
    return reason_of(
        stream->put({.id = {0}}, std::vector<ColumnValue>{{column, std::move(value)}}, {}));
  };
  EXPECT_EQ(reason(kPrompt, Buffer::adopt<float>({1.0F}, DType::kF32)), "bad_column");
  EXPECT_EQ(reason(kResponse, text("four")), "bad_column");
  EXPECT_EQ(reason(kRewardColumn, Buffer::adopt<double>({1.0}, DType::kF64)), "bad_column");
  EXPECT_EQ(reason(ColumnId{8}, text("")), "unknown_column");
  EXPECT_EQ(stream->index().refused(Refusal::kBadColumn), 3U);
  EXPECT_EQ(stream->columns().num_rows(), 0U);
  EXPECT_EQ(reason(kResponse, Buffer{}), "") << "an empty cell fits everywhere";
  EXPECT_TRUE(stream->check_invariants().ok());
}

TEST(ColumnStore, SaysWhichCellIsMissing) {
  ColumnStore store;
  const std::vector<ColumnId> asked{{0}};
  EXPECT_EQ(store.read({4}, asked).status().message(), "column store: no sample 4");
  store.put({4}, std::vector<ColumnValue>{{{1}, text("x")}});
  EXPECT_EQ(store.read({4}, asked).status().message(),
            "column store: sample 4 has no column number 0");
  EXPECT_EQ(store.read_all({4}).size(), 1U);
  EXPECT_TRUE(store.read_all({5}).empty());
  store.erase({5});
  store.erase({4});
  EXPECT_EQ(store.bytes(), 0U);
}

// -- cost ---------------------------------------------------------------------

struct Cost {
  std::uint64_t rows = 0;
  std::uint64_t units = 0;
  friend bool operator==(const Cost&, const Cost&) = default;
};

enum class Arrival { kInOrder, kShuffled };

/// Counts what the last steps of 200 rows (completing write, lease, ack) touch in a table that
/// holds `size` other rows.
Cost cost_of_rows(std::uint64_t size, Arrival arrival) {
  StreamOptions options;
  options.columns = {{"prompt"}, {"response"}};
  options.tasks = {{"consume", {"response"}, {}}};
  options.tasks[0].max_staleness = 1;
  options.tasks[0].stale_policy = StalePolicy::kWait;
  IndexUnderTest index(options);
  for (std::uint64_t id = 0; id < size; ++id) {
    EXPECT_TRUE(index.put(id).ok());
  }
  std::vector<std::uint64_t> order(size);
  std::iota(order.begin(), order.end(), 0U);
  if (arrival == Arrival::kShuffled) {
    RandomStream random(size);
    shuffle(std::span<std::uint64_t>(order), random);
  }
  const WorkCounters before = index->work();
  for (std::uint64_t i = 0; i < 200; ++i) {
    EXPECT_TRUE(index.write(order[i], kResponse, i / 10).ok());
    EXPECT_TRUE(index->set_version(i / 10).ok());
    EXPECT_EQ(index.complete(TaskId{0}, index.lease(TaskId{0}, 1, at(0)), at(0)).done.size(), 1U);
  }
  return {index->work().rows - before.rows, index->work().units - before.units};
}

/// The same for 50 groups of 4 through the whole pipeline, with one expired lease for each.
Cost cost_of_groups(std::uint64_t size) {
  IndexUnderTest index(pipeline(4));
  index.put_groups(size / 4, 4);
  const WorkCounters before = index->work();
  for (std::int64_t i = 0; i < 50; ++i) {
    const TimePoint now = at(20 * i);
    index.lease(kRollout, 1, now);
    const TimePoint later = at(20 * i + 10);
    index.complete(kRollout, index.lease(kRollout, 4, later), later);
    index.complete(kReward, index.lease(kReward, 4, later), later);
    EXPECT_EQ(index.complete(kTrain, index.lease(kTrain, 1, later), later).done.size(), 4U);
  }
  return {index->work().rows - before.rows, index->work().units - before.units};
}

/// Returns the work of asking what each task waits for in a table of `size` rows that are ready for
/// the first task only.
Cost cost_of_reasons(std::uint64_t size) {
  IndexUnderTest index(pipeline(4));
  index.put_groups(size / 4, 4);
  const WorkCounters before = index->work();
  for (std::uint32_t task = 0; task < 3; ++task) {
    static_cast<void>(index->waiting_for({task}));
  }
  return {index->work().rows - before.rows, index->work().units - before.units};
}

TEST(StreamCost, TheReasonToWaitIsFoundWithoutAScan) {
  const Cost small = cost_of_reasons(1'000);
  EXPECT_GT(small.units, 0U);
  EXPECT_EQ(cost_of_reasons(100'000), small);
}

TEST(StreamCost, FollowsTheWorkAndNotTheTable) {
  for (const Arrival arrival : {Arrival::kInOrder, Arrival::kShuffled}) {
    const Cost small = cost_of_rows(1'000, arrival);
    std::cout << "200 rows touch " << small.rows << " rows and " << small.units
              << " units in a table of 1,000\n";
    EXPECT_LE(small.rows, 200U * 6);
    EXPECT_EQ(cost_of_rows(10'000, arrival), small);
    EXPECT_EQ(cost_of_rows(100'000, arrival), small);
  }
  const Cost small = cost_of_groups(1'000);
  std::cout << "50 groups of 4 touch " << small.rows << " rows and " << small.units
            << " units in a table of 1,000\n";
  EXPECT_EQ(cost_of_groups(10'000), small);
  EXPECT_EQ(cost_of_groups(100'000), small);
}

}  // namespace
}  // namespace tidemill::storage
