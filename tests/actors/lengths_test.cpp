// SPDX-License-Identifier: Apache-2.0
#include "actors/data/lengths.hpp"

#include <gtest/gtest.h>

namespace tidemill::actors {
namespace {

TEST(Lengths, AreZeroWithoutRows) {
  const Lengths none;
  EXPECT_EQ(none.count(), 0);
  EXPECT_EQ(none.longest(), 0);
  EXPECT_EQ(none.mean(), 0.0);
  EXPECT_EQ(none.expected_max(10, 10), 0);
}

TEST(Lengths, TheFirstOfTheLongestRowsIsKnown) {
  Lengths lengths;
  EXPECT_EQ(lengths.longest_location(), "");
  lengths.add(0, {"a.jsonl", 1});
  EXPECT_EQ(lengths.longest_location(), "a.jsonl:1");
  lengths.add(5, {"a.jsonl", 2});
  lengths.add(5, {"b.jsonl", 1});
  lengths.add(4, {"b.jsonl", 2});
  EXPECT_EQ(lengths.longest(), 5);
  EXPECT_EQ(lengths.longest_location(), "a.jsonl:2");
}

TEST(Lengths, RowsOfEqualLengthHaveAFixedTotal) {
  Lengths lengths;
  for (int i = 0; i < 5; ++i) {
    lengths.add(7);
  }
  EXPECT_EQ(lengths.expected_max(16, 1), 16 * 7);
  EXPECT_EQ(lengths.expected_max(16, 1'000'000), 16 * 7);
}

TEST(Lengths, TheExpectedMaximumGrowsWithTheNumberOfDraws) {
  Lengths lengths;  // mean 10, standard deviation 2
  lengths.add(8);
  lengths.add(12);
  EXPECT_EQ(lengths.expected_max(100, 1), 1000);
  // The total of 100 rows has a standard deviation of 20. The largest of e^8 draws exceeds the mean
  // by sqrt(2 * 8) = 4 times that.
  EXPECT_EQ(lengths.expected_max(100, 2980), 1080);
  EXPECT_EQ(lengths.expected_max(1, 2980), 12) << "no row is longer than the longest";
}

TEST(Lengths, SelectionsOfAllRowsContainTheLongestRow) {
  Lengths lengths;
  for (int i = 0; i < 9; ++i) {
    lengths.add(10);
  }
  lengths.add(1000);
  // The mean total plus sqrt(2 ln 5) standard deviations is 642 for 1 row and 972 for 2.
  EXPECT_EQ(lengths.expected_max(1, 5), 642) << "five of ten rows need not contain the longest";
  EXPECT_EQ(lengths.expected_max(2, 5), 1010);
  EXPECT_EQ(lengths.expected_max(1, 10), 1000);
  EXPECT_EQ(lengths.expected_max(10, 1), 1090);
}

}  // namespace
}  // namespace tidemill::actors
