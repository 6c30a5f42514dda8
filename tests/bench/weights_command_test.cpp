// SPDX-License-Identifier: Apache-2.0
// Tests the output of `tidemill-bench weights`.
#include "tests/bench/bench_command.hpp"

namespace tidemill::bench {
namespace {

using launcher::kDone;
using launcher::kRefused;
using launcher::Outcome;

Outcome run_weights(const std::vector<std::string>& arguments) {
  return run_command(make_weights_command(), arguments);
}

TEST(WeightsCommand, SendsAnAdapterToEngines) {
  const Outcome outcome = run_weights({"--figure", "adapter_update", "--preset", "0.1m",
                                       "--readers", "2", "--repetitions", "1", "--json"});
  ASSERT_EQ(outcome.code, kDone) << outcome.err;
  const auto lines = outcome.lines();
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0]["figure"], "adapter_update");
  EXPECT_EQ(lines[0]["engines"], 2);
  // A and B of rank 16, in f32: four products of 64 features, and three of 64 and 192.
  EXPECT_EQ(lines[0]["bytes"], 4 * 16 * (4 * 2 * 64 + 3 * (64 + 192)));
  EXPECT_EQ(lines[0]["target_seconds"], 0.02);
  const double seconds = lines[0]["seconds"];
  const double save = lines[0]["save_seconds"];
  const double load = lines[0]["load_seconds"];
  EXPECT_GT(save, 0.0);
  EXPECT_GT(load, 0.0);
  EXPECT_DOUBLE_EQ(seconds, save + load) << "one repetition";
  EXPECT_GT(lines[0]["ratio"], 1.0) << "engines do more than the peer";
}

TEST(WeightsCommand, MapsASnapshot) {
  const Outcome outcome =
      run_weights({"--figure", "snapshot_4_engines", "--mib", "1", "--repetitions", "1", "--json"});
  ASSERT_EQ(outcome.code, kDone) << outcome.err;
  const auto lines = outcome.lines();
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0]["figure"], "snapshot_4_engines");
  EXPECT_EQ(lines[0]["bytes"], 1 << 20);
  EXPECT_EQ(lines[0]["bytes_of_one_more_reader"], 0);
}

TEST(WeightsCommand, RefusesUnknownFigures) {
  EXPECT_EQ(run_weights({"--figure", "adapter_updates"}).code, kRefused);
}

}  // namespace
}  // namespace tidemill::bench
