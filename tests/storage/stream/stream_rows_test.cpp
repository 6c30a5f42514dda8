// SPDX-License-Identifier: Apache-2.0
// What a lease proves, how rows come back, and which cells a stream takes: rules of cells, optional
// columns and progress.
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "storage/stream/stream_table.hpp"
#include "tests/storage/stream/stream_fixture.hpp"

namespace tidemill::storage {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// -- leases -------------------------------------------------------------------

TEST(Leases, ALeaseOfAnotherIncarnationIsRefusedAndChangesNothing) {
  StreamOptions options = pipeline(0);
  options.incarnation = 3;
  IndexUnderTest index(options);
  ASSERT_TRUE(index.put(0).ok());
  const auto leases = index.lease(kRollout, 1, at(0));
  EXPECT_EQ(leases[0].incarnation, 3U);
  Lease earlier = leases[0];
  earlier.incarnation = 2;
  for (const auto& refused :
       {index.complete(kRollout, {earlier}, at(1)).refused,
        index.nack(kRollout, {earlier}, at(1)).refused,
        index->renew({kRollout, "worker"}, held({earlier}), at(1)).value().refused}) {
    EXPECT_THAT(refused, ElementsAre(RefusedRow{earlier, Refusal::kOtherIncarnation}));
  }
  EXPECT_EQ(index->refused(Refusal::kOtherIncarnation), 3U);
  EXPECT_EQ(index->next_deadline(), at(10));
  EXPECT_EQ(index.complete(kRollout, leases, at(1)).done.size(), 1U);
}

TEST(Leases, OnlyTheConsumerThatHoldsALeaseMayUseIt) {
  IndexUnderTest index(pipeline(0));
  ASSERT_TRUE(index.put(0).ok());
  const Grant grant = index->lease({kRollout, "worker", 1, 1, 7}, at(0)).value();
  const Lease lease = grant.shares[0].rows[0].lease;
  const std::vector<HeldRowInfo> rows{{lease, {{kResponse, 1}}}};
  const RefusedRow refused{lease, Refusal::kOtherConsumer};
  for (const LeaseHolder& other :
       {LeaseHolder{kRollout, "other", 7}, LeaseHolder{kRollout, "worker", 8}}) {
    EXPECT_THAT(index->complete(other, rows, at(1)).value().refused, ElementsAre(refused));
    EXPECT_THAT(index->nack(other, held({lease}), {}, at(1)).value().refused, ElementsAre(refused));
    EXPECT_THAT(index->renew(other, held({lease}), at(1)).value().refused, ElementsAre(refused));
  }
  EXPECT_EQ(index->num_leased(kRollout), 1U);
  EXPECT_EQ(index->next_deadline(), at(10));
  EXPECT_THAT(index->complete({kRollout, "worker", 7}, rows, at(1)).value().done, SizeIs(1));
}

TEST(Leases, OnlyFailedDeliveriesCountTowardTheLimit) {
  IndexUnderTest index(pipeline(0));
  ASSERT_TRUE(index.put(0).ok());
  for (int delivery = 0; delivery < 5; ++delivery) {
    const auto leases = index.lease(kRollout, 1, at(0));
    const Release release = delivery % 2 == 0 ? Release::kLeft : Release::kLost;
    ASSERT_TRUE(index->nack({kRollout, "worker"}, held(leases), {release, "later"}, at(0)).ok());
  }
  index.nack(kRollout, index.lease(kRollout, 1, at(0)), at(0));
  EXPECT_EQ(index->num_live(), 1U);
  EXPECT_EQ(index->returned(kRollout), (ReturnedDeliveries{3, 2, 1}));
  EXPECT_EQ(index->task_totals(kRollout).redelivered, 6U);
}

// -- rules of cells -------------------------------------------------------------

constexpr ColumnId kIds{1};
constexpr ColumnId kLogprobs{3};
constexpr ColumnId kVersions{4};
constexpr ColumnId kMask{5};
constexpr ColumnId kPartial{6};
constexpr ColumnId kPartialLogprobs{7};

CellRule rule(CellValues values, std::string as_long_as = {}) {
  CellRule made;
  made.values = values;
  made.as_long_as = std::move(as_long_as);
  return made;
}

/// The pipeline with typed columns and rules, an optional mask, and progress of the rollout.
StreamOptions ruled(std::uint32_t max_group_size = 0) {
  StreamOptions options = pipeline(max_group_size);
  CellRule rewards = rule(CellValues::kFinite);
  rewards.min_elements = 1;
  rewards.max_elements = 2;
  CellRule versions;
  versions.min_elements = 3;
  versions.multiple_of = 3;
  versions.counts = "response";
  options.columns = {
      {"prompt", ColumnType::kString},
      {"response", ColumnType::kInt32, rule(CellValues::kNotNegative)},
      {"reward", ColumnType::kDouble, rewards},
      {"logprobs", ColumnType::kFloat, rule(CellValues::kFinite, "response")},
      {"versions", ColumnType::kUInt64, versions},
      {"mask", ColumnType::kU8, rule(CellValues::kFlags, "response")},
      {"partial", ColumnType::kInt32, rule(CellValues::kNotNegative)},
      {"partial_logprobs", ColumnType::kFloat, rule(CellValues::kFinite, "partial")}};
  options.tasks[0].outputs = {"response", "logprobs", "versions"};
  options.tasks[0].optional_outputs = {"mask"};
  options.tasks[0].progress = {"partial", "partial_logprobs"};
  options.tasks[2].optional_inputs = {"mask"};
  return options;
}

Buffer ints(std::vector<std::int32_t> values) {
  return Buffer::adopt(std::move(values), DType::kI32);
}
Buffer floats(std::vector<float> values) {
  return Buffer::adopt(std::move(values), DType::kF32);
}
template <class T>
Buffer raw(std::vector<T> values) {
  return Buffer::adopt(std::move(values), DType::kU8);
}

/// The outputs of a rollout of two tokens. `changed` replaces the cell of its column, or adds it.
std::vector<ColumnValue> rollout(const std::vector<ColumnValue>& changed = {}) {
  std::vector<ColumnValue> cells{{kIds, ints({4, 2})},
                                 {kLogprobs, floats({-1.0F, -2.0F})},
                                 {kVersions, raw<std::uint64_t>({0, 5, 1, 0, 6, 1})}};
  for (const ColumnValue& cell : changed) {
    bool replaced = false;
    for (ColumnValue& known : cells) {
      if (known.column == cell.column) {
        known = cell;
        replaced = true;
      }
    }
    if (!replaced) {
      cells.push_back(cell);
    }
  }
  return cells;
}

class RuledStream : public ::testing::Test {
protected:
  void start(const StreamOptions& options) { stream_ = StreamTable::create(options).value(); }
  void put(std::uint64_t id, std::uint32_t group_size = 0) {
    SampleRow row{.id = {id}};
    row.group = {group_size == 0 ? 0 : id / group_size};
    row.group_size = group_size;
    row.index_in_group = static_cast<std::uint32_t>(group_size == 0 ? 0 : id % group_size);
    ASSERT_TRUE(stream_->put(row, std::vector<ColumnValue>{{kPrompt, raw<char>({'?'})}}, {}).ok());
  }
  std::vector<LeasedRow> lease(TaskId task, std::uint32_t count = 1) {
    return stream_->lease({task, "w", count}, at(0)).value().shares.at(0).rows;
  }
  Settlement complete(TaskId task, const std::vector<HeldRow>& rows) {
    Settlement settlement = stream_->complete({task, "w"}, rows, at(0)).value();
    const Status sound = stream_->check_invariants();
    EXPECT_TRUE(sound.ok()) << sound.to_string();
    return settlement;
  }
  /// Writes `cells` as the outputs of a new row's rollout. Returns what is wrong, or "".
  std::string fault_of(const std::vector<ColumnValue>& cells) {
    start(ruled());
    put(0);
    const Settlement settlement = complete(kRollout, {{lease(kRollout).at(0).lease, cells}});
    return settlement.refused.empty() ? "" : settlement.refused.at(0).detail;
  }
  void complete_rollout(std::uint32_t count) {
    std::vector<HeldRow> rows;
    for (const LeasedRow& row : lease(kRollout, count)) {
      rows.push_back({row.lease, rollout()});
    }
    ASSERT_THAT(complete(kRollout, rows).done, SizeIs(count));
  }

  std::unique_ptr<StreamTable> stream_;
};

TEST_F(RuledStream, TheDetailOfARefusalNamesRowColumnAndFault) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(fault_of(rollout()), "");
  EXPECT_EQ(fault_of(rollout({{kMask, raw<std::uint8_t>({1, 0})}})), "");
  EXPECT_EQ(fault_of(rollout({{kLogprobs, floats({-1.0F})}})),
            "sample 0, column logprobs: 1 elements, but response has 2");
  EXPECT_EQ(fault_of(rollout({{kLogprobs, floats({-1.0F, kNan})}})),
            "sample 0, column logprobs: element 1 is nan, must be finite");
  EXPECT_EQ(fault_of(rollout({{kLogprobs, ints({1, 2})}})),
            "sample 0, column logprobs: 8 bytes of I32 do not fit its type");
  EXPECT_EQ(fault_of(rollout({{kIds, ints({4, -2})}})),
            "sample 0, column response: element 1 is -2, must not be negative");
  EXPECT_EQ(fault_of(rollout({{kVersions, raw<std::uint64_t>({0, 5, 1})}})),
            "sample 0, column versions: the counts do not add up to the elements of response, "
            "which has 2");
  EXPECT_EQ(
      fault_of(rollout({{kVersions, raw<std::uint64_t>({0, 5, ~std::uint64_t{0}, 0, 5, 3})}})),
      "sample 0, column versions: the counts do not add up to the elements of response, "
      "which has 2");
  EXPECT_EQ(fault_of(rollout({{kVersions, raw<std::uint64_t>({0, 5, 1, 2})}})),
            "sample 0, column versions: 4 elements, must be a multiple of 3");
  EXPECT_EQ(fault_of(rollout({{kVersions, Buffer()}})),
            "sample 0, column versions: 0 elements, must be at least 3");
  EXPECT_EQ(fault_of(rollout({{kMask, raw<std::uint8_t>({1, 2})}})),
            "sample 0, column mask: element 1 is 2, must be 0 or 1");
  EXPECT_EQ(fault_of(rollout({{kRewardColumn, raw<double>({1.0})}})),
            "sample 0, column reward: is no output of task rollout");
  std::vector<ColumnValue> incomplete = rollout();
  incomplete.pop_back();
  EXPECT_EQ(fault_of(incomplete), "sample 0, column versions: not written");
}

// A handle from another process names its bytes but does not hold them.
TEST_F(RuledStream, ACellWithoutItsBytesIsRefused) {
  struct Received {
    using result_type = void;
    void operator()(BufferIdentity& x) const { x = {2, 5, 0, 0, 8, DType::kI32}; }
  } received;
  Buffer ids;
  inspect(received, ids);
  EXPECT_EQ(fault_of(rollout({{kIds, ids}})),
            "sample 0, column response: its 8 bytes are not in this process");
}

TEST_F(RuledStream, ARuleMayReferToAColumnThatIsStored) {
  StreamOptions options = ruled();
  options.tasks[0].optional_outputs.clear();
  options.tasks[1].optional_outputs = {"mask"};
  start(options);
  put(0);
  complete_rollout(1);
  const Lease first = lease(kReward).at(0).lease;
  const auto outputs = [](std::vector<std::uint8_t> mask) {
    return std::vector<ColumnValue>{{kRewardColumn, raw<double>({1.0})},
                                    {kMask, raw(std::move(mask))}};
  };
  EXPECT_EQ(complete(kReward, {{first, outputs({1})}}).refused.at(0).detail,
            "sample 0, column mask: 1 elements, but response has 2");
  EXPECT_THAT(complete(kReward, {{lease(kReward).at(0).lease, outputs({1, 1})}}).done, SizeIs(1));
  // A rule that refers to a column which the row lacks cannot be followed.
  const Status early =
      stream_->put({.id = {1}}, std::vector<ColumnValue>{{kMask, raw<std::uint8_t>({1})}}, {});
  EXPECT_EQ(early.message(),
            "bad_column: stream samples: sample 1, column mask: 1 elements, but "
            "response has no cell");
  EXPECT_EQ(stream_->index().num_live(), 1U);
}

TEST_F(RuledStream, OneBadRowIsRefusedAndTheOthersAreDone) {
  start(ruled());
  put(0);
  put(1);
  put(2);
  const auto rows = lease(kRollout, 3);
  const Settlement settlement =
      complete(kRollout, {{rows[0].lease, rollout()},
                          {rows[1].lease, rollout({{kIds, ints({-1, 1})}})},
                          {rows[2].lease, rollout()}});
  EXPECT_THAT(settlement.done, ElementsAre(SampleId{0}, SampleId{2}));
  ASSERT_THAT(settlement.refused, SizeIs(1));
  EXPECT_EQ(settlement.refused[0].lease, rows[1].lease);
  EXPECT_EQ(settlement.refused[0].reason, Refusal::kBadColumn);
  EXPECT_EQ(stream_->index().returned(kRollout), (ReturnedDeliveries{0, 0, 1}));
  EXPECT_THAT(lease(kRollout, 3), SizeIs(1)) << "the row is ready again";
}

TEST_F(RuledStream, AConsumerThatAlwaysWritesGarbageFailsTheRow) {
  start(ruled());
  put(0);
  for (int delivery = 0; delivery < 3; ++delivery) {
    const auto rows = lease(kRollout);
    ASSERT_THAT(rows, SizeIs(1)) << "delivery " << delivery;
    complete(kRollout, {{rows[0].lease, rollout({{kLogprobs, floats({})}})}});
  }
  EXPECT_EQ(stream_->index().totals().failed, 1U);
  const StreamEffects effects = stream_->take_effects();
  ASSERT_THAT(effects.retired, SizeIs(1));
  EXPECT_EQ(effects.retired[0].reason,
            "task rollout: failed 3 times, last: bad_column: sample 0, column logprobs: 0 "
            "elements, but response has 2");
}

TEST_F(RuledStream, InvalidCellsUnderALostLeaseFailNoDelivery) {
  start(ruled());
  put(0);
  const auto lost = lease(kRollout);
  stream_->drop_consumer("w");
  const auto again = lease(kRollout);
  const Settlement settlement = complete(kRollout, {{lost.at(0).lease, {}}});
  EXPECT_THAT(settlement.refused, ElementsAre(RefusedRow{lost.at(0).lease, Refusal::kOldLease}));
  EXPECT_EQ(stream_->index().returned(kRollout).failed, 0U);
  EXPECT_THAT(complete(kRollout, {{again.at(0).lease, rollout()}}).done, SizeIs(1));
}

TEST_F(RuledStream, AGroupWithABadRowIsRefusedAndComesBackWhole) {
  StreamOptions options = ruled(2);
  options.columns.push_back({"advantage", ColumnType::kFloat, rule(CellValues::kFinite)});
  options.tasks.insert(options.tasks.begin() + 2, {"advantage", {"reward"}, {"advantage"}});
  options.tasks[2].unit = DeliveryUnit::kGroup;
  options.tasks[3].inputs = {"advantage"};
  options.on_failed = OnFailedRow::kShrink;
  constexpr TaskId kAdvantage{2};
  constexpr ColumnId kAdvantageColumn{8};
  start(options);
  for (std::uint64_t id = 0; id < 4; ++id) {
    put(id, 2);
  }
  complete_rollout(4);
  std::vector<HeldRow> scored;
  for (const LeasedRow& row : lease(kReward, 4)) {
    scored.push_back({row.lease, {{kRewardColumn, raw<double>({1.0})}}});
  }
  ASSERT_THAT(complete(kReward, scored).done, SizeIs(4));
  const auto write = [&](float of_row_0) {
    std::vector<HeldRow> rows;
    for (const LeasedRow& row : lease(kAdvantage, 2)) {
      const float value = row.row.id.value == 0 ? of_row_0 : 0.5F;
      rows.push_back({row.lease, {{kAdvantageColumn, floats({value})}}});
    }
    return complete(kAdvantage, rows);
  };
  const Settlement first = write(std::numeric_limits<float>::infinity());
  EXPECT_THAT(first.done, ElementsAre(SampleId{2}, SampleId{3}));
  ASSERT_THAT(first.refused, SizeIs(2));
  EXPECT_EQ(first.refused[0].reason, Refusal::kBadColumn);
  EXPECT_EQ(first.refused[1].reason, Refusal::kGroupRefused);
  EXPECT_EQ(stream_->index().returned(kAdvantage), (ReturnedDeliveries{1, 0, 1}));
  EXPECT_EQ(stream_->index().num_leased(), 0U);
  write(std::numeric_limits<float>::infinity());
  write(std::numeric_limits<float>::infinity());
  EXPECT_EQ(stream_->index().totals().failed, 1U) << "only the row with the bad cell";
  EXPECT_THAT(write(0.0F).done, ElementsAre(SampleId{1}));
}

// -- optional columns -------------------------------------------------------------

TEST_F(RuledStream, AnOptionalColumnIsDeliveredIfPresent) {
  start(ruled());
  put(0);
  put(1);
  const auto rows = lease(kRollout, 2);
  ASSERT_THAT(complete(kRollout, {{rows[0].lease, rollout()},
                                  {rows[1].lease, rollout({{kMask, raw<std::uint8_t>({0, 1})}})}})
                  .done,
              SizeIs(2));
  std::vector<HeldRow> scored;
  for (const LeasedRow& row : lease(kReward, 2)) {
    scored.push_back({row.lease, {{kRewardColumn, raw<double>({1.0})}}});
  }
  ASSERT_THAT(complete(kReward, scored).done, SizeIs(2));
  const auto trained = lease(kTrain, 2);
  ASSERT_THAT(trained, SizeIs(2)) << "the task does not wait for its optional inputs";
  EXPECT_THAT(trained[0].columns, SizeIs(2));
  ASSERT_THAT(trained[1].columns, SizeIs(3));
  EXPECT_EQ(trained[1].columns[2].column, kMask);
  EXPECT_THAT(trained[1].columns[2].value.as<std::uint8_t>(), ElementsAre(0, 1));
}

// -- progress -----------------------------------------------------------------

std::vector<ColumnValue> progress(std::vector<std::int32_t> ids) {
  std::vector<float> logprobs(ids.size(), -0.5F);
  return {{kPartial, ints(std::move(ids))}, {kPartialLogprobs, floats(std::move(logprobs))}};
}

TEST_F(RuledStream, ProgressIsReplacedDeliveredAndErasedByTheAck) {
  start(ruled());
  put(0);
  const auto first = lease(kRollout);
  const std::uint64_t bytes = stream_->columns().bytes();
  const auto renew = [&](std::vector<std::int32_t> ids) {
    const std::vector<HeldRow> rows{{first[0].lease, progress(std::move(ids))}};
    return stream_->renew({kRollout, "w"}, rows, at(0)).value();
  };
  ASSERT_THAT(renew({1, 2, 3}).done, SizeIs(1));
  EXPECT_EQ(stream_->columns().bytes(), bytes + 24);
  ASSERT_THAT(renew({1}).done, SizeIs(1));
  EXPECT_EQ(stream_->columns().bytes(), bytes + 8);
  // A renewal without progress keeps it.
  const std::vector<HeldRow> without{{first[0].lease}};
  ASSERT_TRUE(stream_->renew({kRollout, "w"}, without, at(0)).ok());
  const std::vector<HeldRow> left{{first[0].lease, progress({1, 2})}};
  ASSERT_THAT(
      stream_->nack({kRollout, "w"}, left, {Release::kLeft, "draining"}, at(0)).value().done,
      SizeIs(1));
  EXPECT_EQ(stream_->index().num_ready(kReward), 0U) << "progress makes no row ready";
  EXPECT_TRUE(stream_->check_invariants().ok());

  const auto second = lease(kRollout);
  ASSERT_THAT(second.at(0).columns, SizeIs(3));
  EXPECT_THAT(second[0].columns[1].value.as<std::int32_t>(), ElementsAre(1, 2));
  ASSERT_THAT(complete(kRollout, {{second[0].lease, rollout()}}).done, SizeIs(1));
  EXPECT_EQ(stream_->columns().find({0}, kPartial), nullptr);
  EXPECT_EQ(stream_->columns().bytes(), bytes + 8 + 8 + 48);
}

TEST_F(RuledStream, InvalidProgressIsAFailedDelivery) {
  start(ruled());
  put(0);
  const auto renew = [&](std::vector<ColumnValue> cells) {
    const std::vector<HeldRow> rows{{lease(kRollout).at(0).lease, std::move(cells)}};
    const Settlement settlement = stream_->renew({kRollout, "w"}, rows, at(0)).value();
    EXPECT_TRUE(stream_->check_invariants().ok());
    return settlement.refused.at(0).detail;
  };
  EXPECT_THAT(renew(rollout()), HasSubstr("other columns than the progress of task rollout"));
  std::vector<ColumnValue> unequal = progress({1, 2});
  unequal[1].value = floats({-0.5F});
  EXPECT_EQ(renew(unequal), "sample 0, column partial_logprobs: 1 elements, but partial has 2");
  EXPECT_EQ(stream_->index().returned(kRollout).failed, 2U);
  const std::vector<HeldRow> failed{{lease(kRollout).at(0).lease, progress({1})}};
  const Settlement settlement =
      stream_->nack({kRollout, "w"}, failed, {Release::kLost, "no reply"}, at(0)).value();
  EXPECT_THAT(settlement.refused.at(0).detail,
              HasSubstr("written with a release that does not leave the row"));
  EXPECT_EQ(stream_->index().num_live(), 0U) << "three failures";
}

TEST_F(RuledStream, ProgressSurvivesARestart) {
  start(ruled());
  put(0);
  const std::vector<HeldRow> rows{{lease(kRollout).at(0).lease, progress({9})}};
  ASSERT_TRUE(stream_->renew({kRollout, "w"}, rows, at(0)).ok());
  const StreamSnapshot stored = stream_->snapshot();
  start(ruled());
  ASSERT_TRUE(stream_->restore(stored).ok());
  const auto again = lease(kRollout);
  ASSERT_THAT(again.at(0).columns, SizeIs(3));
  EXPECT_THAT(again[0].columns[1].value.as<std::int32_t>(), ElementsAre(9));
  EXPECT_THAT(complete(kRollout, {{again[0].lease, rollout()}}).done, SizeIs(1));
}

// -- declarations -----------------------------------------------------------------

TEST_F(RuledStream, ASnapshotMayLackTheLastColumns) {
  StreamOptions earlier = ruled();
  earlier.columns.resize(5);
  earlier.tasks[0].optional_outputs.clear();
  earlier.tasks[0].progress.clear();
  earlier.tasks[2].optional_inputs.clear();
  start(earlier);
  put(0);
  put(1);
  complete_rollout(1);
  const StreamSnapshot stored = stream_->snapshot();
  start(ruled());
  ASSERT_TRUE(stream_->restore(stored).ok());
  EXPECT_EQ(stream_->index().num_ready(kReward), 1U);
  EXPECT_EQ(stream_->index().num_ready(kRollout), 1U);
  const StreamSnapshot later = stream_->snapshot();
  start(earlier);
  EXPECT_EQ(reason_of(stream_->restore(later)), "foreign_snapshot");
}

TEST_F(RuledStream, RefusesDeclarationsThatNoRowCanFollow) {
  const auto message = [](auto change) {
    StreamOptions options = ruled();
    change(options);
    return StreamTable::create(options).status().message();
  };
  EXPECT_EQ(message([](StreamOptions&) {}), "");
  EXPECT_THAT(message([](StreamOptions& o) { o.columns[3].rule.as_long_as = "respnse"; }),
              HasSubstr("column logprobs: rule: column 'respnse'"));
  EXPECT_THAT(message([](StreamOptions& o) { o.columns[3].rule.as_long_as = "logprobs"; }),
              HasSubstr("is not another declared column"));
  EXPECT_THAT(message([](StreamOptions& o) { o.columns[3].rule.counts = "response"; }),
              HasSubstr("does not apply to the column's type"));
  EXPECT_THAT(message([](StreamOptions& o) { o.columns[3].rule.values = CellValues::kFlags; }),
              HasSubstr("does not apply to the column's type"));
  EXPECT_THAT(message([](StreamOptions& o) { o.columns[3].rule.multiple_of = 0; }),
              HasSubstr("no number of elements"));
  EXPECT_THAT(message([](StreamOptions& o) { o.columns[2].rule.min_elements = 3; }),
              HasSubstr("no number of elements"));
  EXPECT_THAT(message([](StreamOptions& o) { o.tasks[2].optional_inputs = {"msk"}; }),
              HasSubstr("optional_inputs: column 'msk'"));
  EXPECT_THAT(message([](StreamOptions& o) { o.tasks[2].optional_inputs = {"reward"}; }),
              HasSubstr("optional_inputs: column 'reward'"));
  EXPECT_THAT(message([](StreamOptions& o) { o.tasks[1].optional_outputs = {"mask"}; }),
              HasSubstr("optional_outputs: column 'mask' is written twice"));
  EXPECT_THAT(message([](StreamOptions& o) { o.tasks[1].progress = {"partial"}; }),
              HasSubstr("progress: column 'partial' is written twice"));
  EXPECT_THAT(message([](StreamOptions& o) { o.tasks[2].optional_inputs = {"partial"}; }),
              HasSubstr("inputs: column 'partial' is progress"));
  EXPECT_THAT(message([](StreamOptions& o) { o.accept_column = "partial"; }),
              HasSubstr("accept_column: 'partial' is progress"));
}

}  // namespace
}  // namespace tidemill::storage
