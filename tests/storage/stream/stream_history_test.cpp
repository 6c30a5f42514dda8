// SPDX-License-Identifier: Apache-2.0
// Commits and restores: a restored stream continues as if it had never stopped.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/random.hpp"
#include "storage/stream/stream_table.hpp"
#include "tests/storage/stream/stream_fixture.hpp"

namespace tidemill::storage {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(StreamHistory, AcksBetweenCommitsRollBack) {
  IndexUnderTest index(pipeline(2));
  index.put_groups(2, 2);
  index.generate_and_score(at(0));
  const IndexSnapshot committed = index->snapshot();

  EXPECT_EQ(index.complete(kTrain, index.lease(kTrain, 1, at(1)), at(1)).done.size(), 2U);
  EXPECT_EQ(index->totals().trained, 2U);
  ASSERT_TRUE(index->restore(committed).ok());
  EXPECT_EQ(index->totals().trained, 0U);
  EXPECT_THAT(ids_of(index.lease(kTrain, 1, at(2))), ElementsAre(0, 1));
}

TEST(StreamHistory, ASnapshotHoldsWhatWasTrainedBefore) {
  IndexUnderTest index(pipeline(2));
  index.put_groups(2, 2);
  index.generate_and_score(at(0));
  index.complete(kTrain, index.lease(kTrain, 1, at(1)), at(1));
  ASSERT_TRUE(index->restore(index->snapshot()).ok());
  EXPECT_EQ(index->totals().trained, 2U);
  EXPECT_THAT(ids_of(index.lease(kTrain, 1, at(2))), ElementsAre(2, 3));
}

TEST(StreamHistory, LeasedRowsAreRestoredAsReadyWithoutAnotherDelivery) {
  IndexUnderTest index(pipeline(0));
  ASSERT_TRUE(index.put(0).ok());
  index.nack(kRollout, index.lease(kRollout, 1, at(0)), at(0));
  const auto leases = index.lease(kRollout, 1, at(0));
  ASSERT_TRUE(index->restore(index->snapshot()).ok());
  EXPECT_EQ(index->num_leased(), 0U);
  const auto again = index->lease({kRollout, "worker"}, at(1));
  EXPECT_EQ(again.value().shares.at(0).rows.at(0).deliveries, 1U);
  const Settlement settled = index.complete(kRollout, leases, at(1));
  EXPECT_THAT(settled.refused, ElementsAre(RefusedRow{leases[0], Refusal::kOldLease}))
      << "a lease of the undone history is not valid";
}

TEST(StreamHistory, NoTokenOfTheUndoneHistoryMatchesALaterLease) {
  IndexUnderTest index(pipeline(0));
  ASSERT_TRUE(index.put(0).ok());
  const IndexSnapshot before = index->snapshot();
  const auto undone = index.lease(kRollout, 1, at(0), "zombie");
  ASSERT_TRUE(index->restore(before).ok());
  const auto fresh = index.lease(kRollout, 1, at(1), "other");
  EXPECT_GT(fresh[0].generation, undone[0].generation);
  EXPECT_EQ(index.complete(kRollout, undone, at(1)).refused.size(), 1U);
  EXPECT_EQ(index.complete(kRollout, fresh, at(1)).done.size(), 1U);
}

// -- contradictory snapshots --------------------------------------------------------

TEST(StreamHistory, RefusesASnapshotThatContradictsItself) {
  StreamOptions options = pipeline(2);
  options.on_failed = OnFailedRow::kShrink;
  IndexUnderTest index(options);
  index.put_groups(2, 2);
  ASSERT_TRUE(index.put(4).ok());
  index.finish(0);
  ASSERT_TRUE(index->apply_verdict({3}, {VerdictKind::kFail, ""}).ok());
  const IndexSnapshot good = index->snapshot();
  ASSERT_TRUE(index->restore(good).ok());

  using Change = std::function<void(IndexSnapshot&)>;
  const std::map<std::string, Change> contradictions{
      {"row out of order", [](auto& s) { std::swap(s.rows[0], s.rows[1]); }},
      {"row twice", [](auto& s) { s.rows[1] = s.rows[0]; }},
      {"row missing", [](auto& s) { s.rows.pop_back(); }},
      {"row beyond the counter", [](auto& s) { s.next_row = 2; }},
      {"group beyond the counter", [](auto& s) { s.next_group = 1; }},
      {"group twice", [](auto& s) { s.groups[1].id = s.groups[0].id; }},
      {"group missing", [](auto& s) { s.groups.pop_back(); }},
      {"group of size 0", [](auto& s) { s.groups[0].size = 0; }},
      {"group too large", [](auto& s) { s.groups[0].size = 4'000'000'000U; }},
      {"group's flags", [](auto& s) { s.groups[0].admitted[0] = 2; }},
      {"group's retired", [](auto& s) { s.groups[0].num_retired = 1; }},
      {"group's trained", [](auto& s) { s.groups[0].trained = 4'000'000'000U; }},
      {"group's accepted", [](auto& s) { s.groups[0].accepted = 2; }},
      {"group left",
       [](auto& s) {
         s.groups[0].admitted = {1, 0};
       }},
      {"row's group", [](auto& s) { s.rows[0].row.group = {1}; }},
      {"row's index", [](auto& s) { s.rows[0].row.index_in_group = 7; }},
      {"row's group size", [](auto& s) { s.rows[0].row.group_size = 1; }},
      {"row's columns", [](auto& s) { s.rows[0].columns |= 1U << 3U; }},
      {"row's state ready", [](auto& s) { s.rows[1].cells[2].state = CellState::kReady; }},
      {"row's state pending", [](auto& s) { s.rows[0].cells[2].state = CellState::kPending; }},
      {"row's state leased", [](auto& s) { s.rows[0].cells[0].state = CellState::kLeased; }},
      {"row's state unknown",
       [](auto& s) { s.rows[0].cells[0].state = static_cast<CellState>(77); }},
      {"row done",
       [](auto& s) {
         for (CellSnapshot& cell : s.rows[0].cells) {
           cell.state = CellState::kAcked;
         }
       }},
      {"row's cells", [](auto& s) { s.rows[0].cells.clear(); }},
      {"row's bytes", [](auto& s) { s.rows[0].bytes = ~std::uint64_t{0}; }},
      {"row's failures", [](auto& s) { s.rows[0].cells[0].failures = 3; }},
      {"row's flag", [](auto& s) { s.rows[0].accepted = 2; }},
      {"row accepted", [](auto& s) { s.rows[1].accepted = 1; }},
      {"totals", [](auto& s) { s.totals.trained = 1; }},
      {"task totals", [](auto& s) { s.task_totals.pop_back(); }},
  };
  for (const auto& [name, change] : contradictions) {
    SCOPED_TRACE(name);
    IndexSnapshot bad = good;
    change(bad);
    EXPECT_EQ(index->restore(bad).code(), Errc::kCorruptData);
    EXPECT_EQ(index->snapshot(), good) << "a refused snapshot changes nothing";
  }
  IndexSnapshot foreign = good;
  foreign.columns[0] = "question";
  EXPECT_EQ(reason_of(index->restore(foreign)), "foreign_snapshot");
  EXPECT_EQ(index->snapshot(), good);
  std::cout << "contradictory snapshots: " << contradictions.size() << " refused\n";
}

TEST(StreamHistory, RefusesCellsThatDoNotMatchTheIndex) {
  auto stream = StreamTable::create(pipeline(0)).value();
  const std::vector<ColumnValue> prompt{{kPrompt, Buffer::adopt<std::uint8_t>({1, 2}, DType::kU8)}};
  ASSERT_TRUE(stream->put({.id = {0}}, prompt, {}).ok());
  const StreamSnapshot good = stream->snapshot();
  const auto code = [&](auto change) {
    StreamSnapshot bad = good;
    change(bad);
    return stream->restore(bad).code();
  };
  EXPECT_EQ(code([](StreamSnapshot& s) { s.rows.clear(); }), Errc::kCorruptData);
  EXPECT_EQ(code([](StreamSnapshot& s) { s.rows[0].columns.clear(); }), Errc::kCorruptData);
  EXPECT_EQ(code([](StreamSnapshot& s) { s.rows[0].row = {1}; }), Errc::kCorruptData);
  EXPECT_EQ(code([](StreamSnapshot& s) { s.rows[0].columns[0].column = {9}; }), Errc::kCorruptData);
  EXPECT_EQ(code([](StreamSnapshot& s) { s.rows[0].columns[0].value = Buffer{}; }),
            Errc::kCorruptData);
  EXPECT_EQ(code([](StreamSnapshot& s) {
              s.rows[0].columns[0].value = Buffer::adopt<std::uint16_t>({1}, DType::kF16);
            }),
            Errc::kCorruptData);
  EXPECT_TRUE(stream->check_invariants().ok());
  EXPECT_EQ(code([](StreamSnapshot&) {}), Errc::kOk);
}

// -- the twin -------------------------------------------------------------------

/// Drives a stream by a random sequence that depends only on the stream's own state, so that equal
/// streams with equal seeds stay equal.
class Driver {
public:
  Driver(StreamTable& stream, std::uint64_t seed, std::uint64_t next)
      : stream_(stream), random_(seed), next_(next) {}

  void step(std::int64_t seconds) {
    const TimePoint now = at(seconds);
    EXPECT_TRUE(stream_.expire(now).ok());
    const std::uint64_t kind = random_.below(10);
    if (kind < 2) {
      admit_group();
    } else if (kind < 9) {
      work(TaskId{static_cast<std::uint32_t>(random_.below(3))}, now);
    } else {
      EXPECT_TRUE(stream_.set_version(stream_.index().version() + 1).ok());
    }
  }

  /// Settles all leases, so that nothing is leased between two steps.
  void release(std::int64_t seconds) {
    for (auto& [task, rows] : held_) {
      std::vector<HeldRow> back;
      for (const HeldRow& row : rows) {
        back.push_back({row.lease});
      }
      EXPECT_TRUE(
          stream_.nack({TaskId{task}, "worker"}, back, {Release::kFailed, "released"}, at(seconds))
              .ok());
    }
    held_.clear();
  }

  std::uint64_t next() const { return next_; }

private:
  void admit_group() {
    for (std::uint32_t i = 0; i < 2; ++i) {
      SampleRow row;
      row.id = {next_};
      row.group = {next_ / 2};
      row.group_size = 2;
      row.index_in_group = i;
      EXPECT_TRUE(stream_.put(row, cells({kPrompt}), {}).ok());
      ++next_;
    }
  }

  void work(TaskId task, TimePoint now) {
    std::vector<HeldRow>& held = held_[task.value];
    if (held.empty()) {
      const auto count = static_cast<std::uint32_t>(1 + random_.below(3));
      const auto batch = stream_.lease({task, "worker", count}, now);
      ASSERT_TRUE(batch.ok());
      for (const LeasedRow& row : batch.value().shares.front().rows) {
        held.push_back({row.lease, {}, {stream_.index().version(), random_.below(9)}});
        for (const std::string& output : stream_.options().tasks[task.value].outputs) {
          held.back().columns = cells({*stream_.options().find_column(output)});
        }
      }
      return;
    }
    if (random_.below(4) == 0) {
      release(std::chrono::duration_cast<std::chrono::seconds>(now.time_since_epoch()).count());
      return;
    }
    EXPECT_TRUE(stream_.complete({task, "worker"}, held, now).ok());
    held.clear();
  }

  std::vector<ColumnValue> cells(const std::vector<ColumnId>& columns) {
    std::vector<ColumnValue> values;
    for (const ColumnId column : columns) {
      values.push_back(
          {column, Buffer::adopt(std::vector<std::uint8_t>(1 + random_.below(5), 1), DType::kU8)});
    }
    return values;
  }

  StreamTable& stream_;
  RandomStream random_;
  std::uint64_t next_;
  std::map<std::uint32_t, std::vector<HeldRow>> held_;
};

bool same_cells(const StreamSnapshot& a, const StreamSnapshot& b) {
  if (a.rows.size() != b.rows.size()) {
    return false;
  }
  for (std::size_t i = 0; i < a.rows.size(); ++i) {
    const auto& left = a.rows[i].columns;
    const auto& right = b.rows[i].columns;
    if (a.rows[i].row != b.rows[i].row || left.size() != right.size()) {
      return false;
    }
    for (std::size_t c = 0; c < left.size(); ++c) {
      if (left[c].column != right[c].column ||
          !std::equal(left[c].value.bytes().begin(), left[c].value.bytes().end(),
                      right[c].value.bytes().begin(), right[c].value.bytes().end())) {
        return false;
      }
    }
  }
  return true;
}

TEST(StreamHistory, ARestoredStreamEqualsItsUndisturbedTwin) {
  std::uint64_t trained = 0;
  constexpr std::uint64_t kNumTwins = 300;
  for (std::uint64_t seed = 0; seed < kNumTwins; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    StreamOptions options = pipeline(2);
    options.tasks[2].max_staleness = 6;
    auto twin = StreamTable::create(options).value();
    Driver past(*twin, seed, 0);
    const std::int64_t stop = 20 + static_cast<std::int64_t>(seed % 60);
    for (std::int64_t second = 0; second < stop; ++second) {
      past.step(second);
    }
    past.release(stop);
    const StreamSnapshot stored = twin->snapshot();

    auto restored = StreamTable::create(options).value();
    ASSERT_TRUE(restored->restore(stored).ok());
    ASSERT_EQ(restored->snapshot().index, stored.index);
    Driver going_on(*twin, seed + 1000, past.next());
    Driver going_again(*restored, seed + 1000, past.next());
    for (std::int64_t second = stop; second < stop + 60; ++second) {
      going_on.step(second);
      going_again.step(second);
      const StreamSnapshot a = twin->snapshot();
      const StreamSnapshot b = restored->snapshot();
      ASSERT_EQ(a.index, b.index) << "second " << second;
      ASSERT_TRUE(same_cells(a, b)) << "second " << second;
      ASSERT_TRUE(restored->check_invariants().ok());
    }
    trained += restored->index().totals().trained;
  }
  std::cout << "twins: " << kNumTwins << " pairs, " << trained << " rows trained\n";
  EXPECT_GT(trained, 1000U);
}

TEST(StreamHistory, WithOpenLeasesEveryRowIsStillTrainedOnce) {
  for (const std::int64_t stop : {1, 2, 3, 5, 8, 13, 21, 34}) {
    IndexUnderTest index(pipeline(2));
    index.put_groups(8, 2);
    std::map<std::uint64_t, int> times_trained;
    const auto work = [&](std::int64_t second) {
      for (const TaskId task : {kRollout, kReward, kTrain}) {
        const auto leases = index.lease(task, 1, at(second));
        if (second != stop) {  // all leases are open when the snapshot is taken
          index.complete(task, leases, at(second));
        }
      }
      for (const RetiredRow& row : index->take_effects().retired) {
        ++times_trained[row.id.value];
      }
    };
    for (std::int64_t second = 0; second <= stop; ++second) {
      work(second);
    }
    const IndexSnapshot committed = index->snapshot();
    const std::map<std::uint64_t, int> then = times_trained;
    for (std::int64_t second = stop + 1; second < stop + 5; ++second) {
      work(second);  // this is undone
    }
    ASSERT_TRUE(index->restore(committed).ok());
    times_trained = then;
    for (std::int64_t second = stop + 5; second < stop + 60; ++second) {
      work(second);
    }
    EXPECT_EQ(times_trained.size(), 16U);
    for (const auto& [id, times] : times_trained) {
      EXPECT_EQ(times, 1) << id;
    }
    EXPECT_EQ(index->totals().trained, 16U);
  }
}

}  // namespace
}  // namespace tidemill::storage
