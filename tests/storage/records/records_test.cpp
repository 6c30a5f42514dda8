// SPDX-License-Identifier: Apache-2.0
// Records survive a message: the serializer that messages use reads back what it wrote.
#include <algorithm>
#include <string>
#include <vector>

#include <caf/binary_deserializer.hpp>
#include <caf/binary_serializer.hpp>
#include <gtest/gtest.h>

#include "storage/records/lease.hpp"
#include "storage/records/refusal.hpp"
#include "storage/records/sample.hpp"
#include "storage/records/verdict.hpp"
#include "storage/stream/index_snapshot.hpp"
#include "storage/versions/admission.hpp"

namespace tidemill::storage {
namespace {

template <class T>
void expect_round_trip(T value) {
  std::vector<char> bytes;
  caf::binary_serializer writer(nullptr, bytes);
  ASSERT_FALSE(writer(value));
  ASSERT_FALSE(bytes.empty());
  T read;
  caf::binary_deserializer reader(nullptr, bytes);
  ASSERT_FALSE(reader(read));
  EXPECT_EQ(read, value);
  EXPECT_NE(read, T{}) << "the test value must differ from the default";
}

TEST(Records, RoundTrip) {
  const SampleRow row{{1}, {2}, 3, 4, 5, 6, 7};
  expect_round_trip(ColumnId{3});
  expect_round_trip(TaskId{3});
  expect_round_trip(row);
  expect_round_trip(RowFacts{8, 9});
  expect_round_trip(Lease{{1}, 3, 10});
  expect_round_trip(RefusedRow{{{1}, 3, 4}, Refusal::kBadColumn, "why"});
  expect_round_trip(Settlement{{{1}, {2}}, {{{3}, Refusal::kPartialGroup}}});
  expect_round_trip(Verdict{VerdictKind::kFilter, "no signal"});
  expect_round_trip(RetiredRow{{1}, {2}, RowOutcome::kFailed, "poisoned"});
  expect_round_trip(SlotChanges{1, 2, 3, 4});
  expect_round_trip(AdmissionState{1, 2, 3, 4, 5});
  IndexSnapshot snapshot;
  snapshot.columns = {"prompt"};
  snapshot.tasks = {"rollout"};
  snapshot.version = 3;
  snapshot.next_row = 4;
  snapshot.next_group = 5;
  snapshot.generation = 6;
  snapshot.totals = {1, 2, 3, 4, 5};
  snapshot.task_totals = {{1, 2, 3, 4}};
  snapshot.groups = {{{1}, 2, {3}, 4, 5, 6, {1, 0}}};
  snapshot.rows = {{row, 1, 2, {3, 4}, 1, {{CellState::kAcked, 2}}}};
  expect_round_trip(snapshot);
}

TEST(Records, EveryReasonHasItsOwnName) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < kNumRefusals; ++i) {
    const std::string name(refusal_name(static_cast<Refusal>(i)));
    EXPECT_NE(name, "unknown") << i;
    EXPECT_EQ(std::count(names.begin(), names.end(), name), 0) << name;
    names.push_back(name);
  }
}

}  // namespace
}  // namespace tidemill::storage
