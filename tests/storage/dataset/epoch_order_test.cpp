// SPDX-License-Identifier: Apache-2.0
#include "storage/dataset/epoch_order.hpp"

#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace tidemill::storage {
namespace {

std::vector<std::uint64_t> epoch_of(EpochOrder& order, std::uint64_t rows, std::uint64_t epoch) {
  std::vector<std::uint64_t> visited;
  for (std::uint64_t index = 0; index < rows; ++index) {
    visited.push_back(order.row_of(epoch * rows + index));
  }
  return visited;
}

TEST(EpochOrder, VisitsEveryRowOnceInEachEpoch) {
  for (const std::uint64_t rows : {1U, 2U, 3U, 7U, 64U, 1000U}) {
    EpochOrder order(rows, RowOrder::kShuffled, 5);
    for (std::uint64_t epoch = 0; epoch < 4; ++epoch) {
      const auto visited = epoch_of(order, rows, epoch);
      EXPECT_EQ(std::set<std::uint64_t>(visited.begin(), visited.end()).size(), rows);
    }
  }
}

TEST(EpochOrder, EpochsAndSeedsDiffer) {
  EpochOrder order(100, RowOrder::kShuffled, 5);
  EpochOrder other(100, RowOrder::kShuffled, 6);
  EXPECT_NE(epoch_of(order, 100, 0), epoch_of(order, 100, 1));
  EXPECT_NE(epoch_of(order, 100, 0), epoch_of(other, 100, 0));
}

TEST(EpochOrder, DependsOnlyOnThePosition) {
  constexpr std::uint64_t kRows = 13;
  EpochOrder forward(kRows, RowOrder::kShuffled, 9);
  std::vector<std::uint64_t> expected;
  for (std::uint64_t position = 0; position < 10 * kRows; ++position) {
    expected.push_back(forward.row_of(position));
  }
  for (std::uint64_t start = 0; start < 10 * kRows; ++start) {
    EpochOrder resumed(kRows, RowOrder::kShuffled, 9);
    for (std::uint64_t position = start; position < 10 * kRows; ++position) {
      ASSERT_EQ(resumed.row_of(position), expected[position]) << start;
    }
  }
  for (std::uint64_t position = 10 * kRows; position-- > 0;) {
    ASSERT_EQ(forward.row_of(position), expected[position]) << "backwards";
  }
}

// A stored run must find the same rows with every later version of the program.
TEST(EpochOrder, NeverChanges) {
  EpochOrder order(8, RowOrder::kShuffled, 42);
  EXPECT_EQ(epoch_of(order, 8, 0), (std::vector<std::uint64_t>{6, 5, 0, 4, 7, 2, 3, 1}));
  EXPECT_EQ(epoch_of(order, 8, 1), (std::vector<std::uint64_t>{6, 3, 7, 4, 5, 2, 0, 1}));
}

TEST(EpochOrder, FileOrderIsTheOrderOfTheFile) {
  EpochOrder order(3, RowOrder::kFileOrder, 1);
  EXPECT_EQ(epoch_of(order, 3, 0), (std::vector<std::uint64_t>{0, 1, 2}));
  EXPECT_EQ(epoch_of(order, 3, 7), (std::vector<std::uint64_t>{0, 1, 2}));
}

}  // namespace
}  // namespace tidemill::storage
