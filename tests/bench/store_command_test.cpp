// SPDX-License-Identifier: Apache-2.0
// Tests the output of `tidemill-bench store`.
#include "tests/bench/bench_command.hpp"

namespace tidemill::bench {
namespace {

using launcher::kDone;
using launcher::kRefused;
using launcher::Outcome;

Outcome run_store(const std::vector<std::string>& arguments) {
  return run_command(make_store_command(), arguments);
}

TEST(StoreCommand, PrintsARateForEachOrder) {
  const Outcome outcome = run_store({"--figure", "store_rows_1k", "--measured-rows", "1000",
                                     "--repetitions", "1", "--rows-per-call", "7", "--json"});
  ASSERT_EQ(outcome.code, kDone) << outcome.err;
  const auto lines = outcome.lines();
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0]["order"], "admission");
  EXPECT_EQ(lines[1]["order"], "random");
  for (const auto& line : lines) {
    EXPECT_EQ(line["figure"], "store_rows_1k");
    EXPECT_EQ(line["live_rows"], 1000);
    const double rate = line["rows_per_s"];
    EXPECT_GT(rate, 0.0);
    EXPECT_DOUBLE_EQ(line["ratio"], rate / 1e6);
    EXPECT_EQ(line["of_1k"], 1.0);
  }
}

TEST(StoreCommand, MeasuresBatchesForThePeer) {
  const Outcome outcome = run_store({"--figure", "store_meta_1k", "--repetitions", "1", "--json"});
  ASSERT_EQ(outcome.code, kDone) << outcome.err;
  const auto lines = outcome.lines();
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0]["live_rows"], 1024);
  EXPECT_GT(lines[0]["row_ns"], 0.0);
  EXPECT_FALSE(lines[0].contains("ratio")) << "its target is relative to a peer";
}

TEST(StoreCommand, MeasuresConsumersThatWait) {
  const Outcome outcome =
      run_store({"--figure", "store_idle", "--idle-rows", "1000", "--idle-seconds", "1", "--json"});
  ASSERT_EQ(outcome.code, kDone) << outcome.err;
  const auto lines = outcome.lines();
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0]["figure"], "store_idle");
  EXPECT_GT(lines[0]["core_share"], 0.0);
  EXPECT_GT(lines[0]["lease_attempts_per_s"], 0.0);
}

TEST(StoreCommand, PassesRowsToAnotherProcess) {
  const Outcome outcome =
      run_store({"--figure", "store_putget", "--figure", "store_wake", "--passed-rows", "16",
                 "--wakes", "10", "--repetitions", "1", "--json"});
  ASSERT_EQ(outcome.code, kDone) << outcome.err;
  const auto lines = outcome.lines();
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0]["figure"], "store_wake");
  EXPECT_GT(lines[0]["p50_us"], 0.0);
  EXPECT_GE(lines[0]["p99_us"], lines[0]["p50_us"]);
  EXPECT_EQ(lines[1]["figure"], "store_putget");
  // Nine columns of 32 KiB, 24 bytes of versions, one of the finish and four of the advantage.
  EXPECT_EQ(lines[1]["bytes"], 16 * (9 * 32'768 + 24 + 1 + 4));
  EXPECT_GT(lines[1]["seconds"], 0.0);
}

TEST(StoreCommand, RefusesUnknownFigures) {
  EXPECT_EQ(run_store({"--figure", "store_rows_2k"}).code, kRefused);
}

}  // namespace
}  // namespace tidemill::bench
