// SPDX-License-Identifier: Apache-2.0
// Tests the output of `tidemill-bench actors`.
#include "tests/bench/bench_command.hpp"

namespace tidemill::bench {
namespace {

using launcher::kDone;
using launcher::kRefused;
using launcher::Outcome;

Outcome run_actors(const std::vector<std::string>& arguments) {
  return run_command(make_actors_command(), arguments);
}

TEST(ActorsCommand, TrainsSamplesOfRolloutProcesses) {
  const Outcome outcome = run_actors({"--processes", "1", "--processes", "2", "--samples", "256",
                                      "--repetitions", "1", "--response-tokens", "4", "--json"});
  ASSERT_EQ(outcome.code, kDone) << outcome.err;
  const auto lines = outcome.lines();
  ASSERT_EQ(lines.size(), 3U);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i]["figure"], "actor_scale");
    EXPECT_EQ(lines[i]["processes"], i);
    const double rate = lines[i]["samples_per_s"];
    EXPECT_GT(rate, 0.0);
    EXPECT_DOUBLE_EQ(lines[i]["ratio"], rate / 5e4);
    EXPECT_EQ(lines[i]["peer_samples_per_s"], lines[0]["samples_per_s"]);
    EXPECT_GT(lines[i]["actors_us"], 0.0);
    EXPECT_GE(lines[i]["owner_us"], lines[i]["actors_us"]);
  }
  EXPECT_EQ(lines[0]["rollout_us"], 0.0) << "the worker is in the process of the run";
  EXPECT_GT(lines[1]["rollout_us"], 0.0);
}

TEST(ActorsCommand, RefusesARunWithoutProcesses) {
  EXPECT_EQ(run_actors({"--processes", "0"}).code, kRefused);
}

}  // namespace
}  // namespace tidemill::bench
