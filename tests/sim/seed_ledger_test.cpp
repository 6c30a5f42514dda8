// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/seed_ledger.hpp"

#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temporary_directory.hpp"

namespace tidemill::test {
namespace {

using ::testing::HasSubstr;

class SeedLedgerTest : public ::testing::Test {
protected:
  static SeedRange range(std::uint64_t first, std::uint64_t end) {
    return {"aa", first, end, 1.5, {{"seeds", end - first}, {"steps", 7}}, {}};
  }
  void append(const std::string& text) const { std::ofstream(path_, std::ios::app) << text; }

  TemporaryDirectory directory_;
  std::filesystem::path path_ = directory_.path() / "ledger.jsonl";
};

TEST_F(SeedLedgerTest, AFileThatDoesNotExistIsAnEmptyLedger) {
  const auto ledger = read_seed_ledger(path_);
  ASSERT_TRUE(ledger.ok()) << ledger.status().to_string();
  EXPECT_EQ(ledger.value().next_seed(5), 5U);
}

TEST_F(SeedLedgerTest, NextSeedFollowsTheLastRangeAndCountsAddUp) {
  ASSERT_TRUE(append_to_ledger(path_, range(1, 101)).ok());
  SeedRange failed = range(101, 121);
  failed.failures.emplace_back(110, "rows are \"lost\"\nfor ever");
  ASSERT_TRUE(append_to_ledger(path_, failed).ok());
  const SeedLedger ledger = read_seed_ledger(path_).value();
  EXPECT_EQ(ledger.next_seed(1), 121U);
  EXPECT_EQ(ledger.ranges.back().failures, failed.failures);
  EXPECT_THAT(ledger.to_text(), HasSubstr("2 ranges by 1 programs in 3 s: 120 seeds, 14 steps"));
  EXPECT_THAT(ledger.to_text(), HasSubstr("seed 110: rows are \"lost\""));
}

TEST_F(SeedLedgerTest, AnIncompleteLineOfAKilledWriterIsSkipped) {
  ASSERT_TRUE(append_to_ledger(path_, range(1, 11)).ok());
  append(R"({"program":"aa","first":11,"en)");
  EXPECT_TRUE(read_seed_ledger(path_).value().torn);
  ASSERT_TRUE(append_to_ledger(path_, range(11, 21)).ok());
  const SeedLedger ledger = read_seed_ledger(path_).value();
  EXPECT_FALSE(ledger.torn);
  EXPECT_EQ(ledger.ranges.size(), 2U);
  EXPECT_EQ(ledger.next_seed(1), 21U);
}

TEST_F(SeedLedgerTest, ADamagedLineIsNamed) {
  ASSERT_TRUE(append_to_ledger(path_, range(1, 11)).ok());
  append("what is this\n");
  EXPECT_THAT(read_seed_ledger(path_).status().message(), HasSubstr("ledger.jsonl:2: "));
  EXPECT_FALSE(append_to_ledger(path_, range(11, 21)).ok());
}

}  // namespace
}  // namespace tidemill::test
