// SPDX-License-Identifier: Apache-2.0
// Tests which groups of a stream are live, and what requests for whole batches get.
#include "storage/stream/live_groups.hpp"

#include <vector>

#include <gtest/gtest.h>

namespace tidemill::storage {
namespace {

constexpr UnitRequest kTwoGroups{{2, 2}};

RetiredRow left(std::uint64_t group, RowOutcome outcome, const char* reason = "") {
  return {{0}, {group}, outcome, reason};
}

LiveGroups with_groups(std::uint64_t count, std::uint32_t rows = 1) {
  LiveGroups groups;
  for (std::uint64_t group = 0; group < count; ++group) {
    groups.admit({group}, rows);
  }
  return groups;
}

TEST(LiveGroups, AGroupIsLiveUntilItsLastRowLeaves) {
  LiveGroups groups = with_groups(2, 2);
  EXPECT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups.next_group(), GroupId{2});
  groups.retire(left(0, RowOutcome::kTrained));
  EXPECT_EQ(groups.size(), 2U);
  groups.retire(left(0, RowOutcome::kTrained));
  EXPECT_EQ(groups.size(), 1U);
  groups.retire(left(0, RowOutcome::kTrained));  // unknown by now
  EXPECT_EQ(groups.size(), 1U);
}

TEST(LiveGroups, CountsTheGroupsThatLeaveUntrained) {
  LiveGroups groups = with_groups(6, 2);
  const auto both = [&](std::uint64_t group, RetiredRow first, RetiredRow second) {
    first.group = second.group = GroupId{group};
    groups.retire(first);
    groups.retire(second);
  };
  both(0, left(0, RowOutcome::kTrained), left(0, RowOutcome::kTrained));
  both(1, left(1, RowOutcome::kFiltered, "equal"), left(1, RowOutcome::kFiltered, "equal"));
  EXPECT_EQ(groups.num_filtered(), 1U);
  EXPECT_EQ(groups.last_lost_reason(), "");
  both(2, left(2, RowOutcome::kDropped, "stale"), left(2, RowOutcome::kDropped, "stale"));
  EXPECT_EQ(groups.last_lost_reason(), "stale");
  both(3, left(3, RowOutcome::kFailed, "no reward"), left(3, RowOutcome::kDropped, "its group"));
  EXPECT_EQ(groups.last_lost_reason(), "no reward");
  both(4, left(4, RowOutcome::kDropped, "stale"), left(4, RowOutcome::kDropped, "stale"));
  EXPECT_EQ(groups.last_lost_reason(), "no reward");  // a failure says more
  EXPECT_EQ(groups.num_lost(), 3U);
  both(5, left(5, RowOutcome::kFailed, "again"), left(5, RowOutcome::kTrained));
  EXPECT_EQ(groups.num_lost(), 3U);  // one row was trained
  EXPECT_EQ(groups.num_filtered(), 1U);
}

TEST(LiveGroups, ARequestWithoutABoundGetsTheSizeThatItAsksFor) {
  EXPECT_EQ(LiveGroups().lease_size({{7, 3}}), (LeaseSize{7, 3}));
  EXPECT_FALSE(LiveGroups().waiting_for({{7, 3}}).has_value());
}

TEST(LiveGroups, ABatchWaitsForItsGroupsAndGetsThoseThatRemain) {
  const UnitRequest first{.before_group = GroupId{2}};
  LiveGroups groups = with_groups(1);
  EXPECT_EQ(groups.lease_size(first), std::nullopt);
  EXPECT_EQ(groups.waiting_for(first), "group 1 to be admitted");
  groups.admit({1}, 1);
  groups.admit({2}, 1);
  EXPECT_EQ(groups.lease_size(first), (LeaseSize{2, 2}));
  EXPECT_EQ(groups.waiting_for(first), std::nullopt);
  groups.retire(left(0, RowOutcome::kFiltered));
  EXPECT_EQ(groups.lease_size(first), (LeaseSize{1, 1}));
  groups.retire(left(1, RowOutcome::kFiltered));
  EXPECT_EQ(groups.lease_size(first), (LeaseSize{0, 0}));  // an empty batch
  EXPECT_EQ(groups.lease_size({.before_group = GroupId{3}}), (LeaseSize{1, 1}));
}

TEST(LiveGroups, ARequestEndsOnceTooFewGroupsCanCome) {
  LiveGroups groups = with_groups(2);
  EXPECT_FALSE(groups.has_ended(kTwoGroups, DeliveryUnit::kGroup));
  groups.retire(left(0, RowOutcome::kTrained));
  EXPECT_FALSE(groups.has_ended(kTwoGroups, DeliveryUnit::kGroup));  // more may be admitted
  groups.end_admission();
  EXPECT_TRUE(groups.has_ended(kTwoGroups, DeliveryUnit::kGroup));
  EXPECT_FALSE(groups.has_ended({}, DeliveryUnit::kGroup));
  EXPECT_FALSE(groups.has_ended({{100, 100}}, DeliveryUnit::kRow));  // the group has rows
  EXPECT_FALSE(groups.is_over());
  groups.retire(left(1, RowOutcome::kTrained));
  EXPECT_TRUE(groups.has_ended({}, DeliveryUnit::kRow));
  EXPECT_TRUE(groups.is_over());
}

TEST(LiveGroups, ABatchEndsIfItsGroupsWereNotAdmitted) {
  LiveGroups groups = with_groups(3);
  groups.end_admission();
  EXPECT_FALSE(groups.has_ended({.before_group = GroupId{3}}, DeliveryUnit::kGroup));
  EXPECT_TRUE(groups.has_ended({.before_group = GroupId{4}}, DeliveryUnit::kGroup));
}

TEST(LiveGroups, RestoresTheGroupsOfASnapshot) {
  std::vector<RowSnapshot> rows(3);
  rows[0].row.group = rows[1].row.group = GroupId{4};
  rows[2].row.group = GroupId{6};
  LiveGroups groups = with_groups(1);
  groups.restore(rows, {9});
  EXPECT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups.next_group(), GroupId{9});
  groups.retire(left(4, RowOutcome::kTrained));
  groups.retire(left(4, RowOutcome::kTrained));
  EXPECT_EQ(groups.size(), 1U);
}

TEST(LiveGroups, TheRevisionChangesWithEveryGroupButNotWithEveryRow) {
  LiveGroups groups = with_groups(1, 2);
  const std::uint64_t before = groups.revision();
  groups.retire(left(0, RowOutcome::kTrained));
  EXPECT_EQ(groups.revision(), before);
  groups.retire(left(0, RowOutcome::kTrained));
  EXPECT_GT(groups.revision(), before);
  const std::uint64_t empty = groups.revision();
  groups.admit({1}, 1);
  EXPECT_GT(groups.revision(), empty);
  const std::uint64_t admitted = groups.revision();
  groups.end_admission();
  EXPECT_GT(groups.revision(), admitted);
}

TEST(LiveGroups, TheCountBelowAGroupFollowsWhatIsAdmittedAndLeaves) {
  LiveGroups groups;
  const UnitRequest below_three{.before_group = GroupId{3}};
  groups.admit({0}, 1);
  groups.admit({2}, 1);
  EXPECT_EQ(groups.lease_size(below_three), (LeaseSize{2, 2}));
  groups.admit({3}, 1);
  groups.admit({1}, 1);
  EXPECT_EQ(groups.lease_size(below_three), (LeaseSize{3, 3}));
  groups.retire({{0}, {3}, RowOutcome::kTrained, ""});
  EXPECT_EQ(groups.lease_size(below_three), (LeaseSize{3, 3}));
  groups.retire({{1}, {0}, RowOutcome::kTrained, ""});
  EXPECT_EQ(groups.lease_size(below_three), (LeaseSize{2, 2}));
  EXPECT_EQ(groups.lease_size({.before_group = GroupId{2}}), (LeaseSize{1, 1}));
  groups.restore({}, {5});
  EXPECT_EQ(groups.lease_size(below_three), (LeaseSize{0, 0}));
}

}  // namespace
}  // namespace tidemill::storage
