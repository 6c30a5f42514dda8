// SPDX-License-Identifier: Apache-2.0
// Many seeds of a simulated run under faults. TIDEMILL_SIM_FIRST and TIDEMILL_SIM_SEEDS choose
// them; a failing seed is printed with the command that replays it.
#include <cstdlib>
#include <iostream>
#include <string>

#include <gtest/gtest.h>

#include "base/random.hpp"
#include "tests/sim/simulated_run.hpp"

namespace tidemill::test {
namespace {

using actors::ScheduleKind;

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): before any thread
  return text == nullptr ? otherwise : std::stoull(text);
}

// The run that a seed stands for. Every feature meets every fault as seeds go by.
SimulationOptions options_of(std::uint64_t seed) {
  RandomStream random(seed, 77);
  SimulationOptions options;
  options.data_seed = 1 + random.below(4);
  options.steps = 3 + random.below(4);
  options.groups_per_step = static_cast<std::uint32_t>(1 + random.below(3));
  options.group_size = static_cast<std::uint32_t>(1 + random.below(4));
  options.max_staleness = random.below(3);
  options.schedule = random.below(2) == 0 ? ScheduleKind::kFree : ScheduleKind::kFixed;
  options.rollout_workers = static_cast<std::uint32_t>(1 + random.below(3));
  options.commit_every = random.below(4);
  options.one_in_fails = random.below(3) == 0 ? 7 : 0;
  options.on_failed =
      random.below(2) == 0 ? storage::OnFailedRow::kDropGroup : storage::OnFailedRow::kShrink;
  options.filter = random.below(4) == 0 && options.group_size > 1;
  return options;
}

// Whether the final weights are the plain loop's: synchronous runs and fixed schedules (I4, I6).
bool is_reproducible(const SimulationOptions& options) {
  return options.max_staleness == 0 || options.schedule == ScheduleKind::kFixed;
}

FaultOptions faults_of(std::uint64_t seed) {
  RandomStream random(seed, 78);
  FaultOptions faults;
  faults.seed = seed;
  faults.kills = static_cast<std::uint32_t>(random.below(6));
  faults.failed_commits = static_cast<std::uint32_t>(random.below(8) == 0 ? 1 : 0);
  return faults;
}

std::string describe(const SimulationOptions& options) {
  return "steps=" + std::to_string(options.steps) +
         " groups=" + std::to_string(options.groups_per_step) +
         " group_size=" + std::to_string(options.group_size) +
         " max=" + std::to_string(options.max_staleness) +
         (options.schedule == ScheduleKind::kFixed ? " fixed" : " free") +
         " commit_every=" + std::to_string(options.commit_every) +
         " one_in_fails=" + std::to_string(options.one_in_fails) +
         (options.on_failed == storage::OnFailedRow::kShrink ? " shrink" : " drop_group") +
         (options.filter ? " filter" : "");
}

struct Totals {
  std::uint64_t events = 0;
  std::uint64_t restarts = 0;
  std::uint64_t worker_deaths = 0;
  std::uint64_t redelivered = 0;
  std::uint64_t compared = 0;
  std::uint64_t checks = 0;
};

void run_seed(std::uint64_t seed, Totals& totals) {
  const SimulationOptions options = options_of(seed);
  const SimulationReport report = simulate(options, faults_of(seed));
  const std::string replay = describe(options) +
                             "; replay with TIDEMILL_SIM_FIRST=" + std::to_string(seed) +
                             " TIDEMILL_SIM_SEEDS=1";
  for (const std::string& violation : report.violations) {
    ADD_FAILURE() << "seed " << seed << ": " << violation << "; " << replay;
  }
  EXPECT_EQ(report.end_error, "") << "seed " << seed << "; " << replay;
  EXPECT_EQ(report.steps, options.steps) << "seed " << seed << "; " << replay;
  if (is_reproducible(options)) {
    ++totals.compared;
    EXPECT_EQ(report.weights_digest, plain_loop_digest(options))
        << "seed " << seed << "; " << replay;
  }
  totals.events += report.events;
  totals.restarts += report.restarts;
  totals.worker_deaths += report.worker_deaths;
  totals.redelivered += report.rows_redelivered;
  totals.checks += report.stream_checks;
}

TEST(RlSimulation, InvariantsHoldUnderFaultsForEverySeed) {
  const std::uint64_t first = from_environment("TIDEMILL_SIM_FIRST", 1);
  const std::uint64_t count = from_environment("TIDEMILL_SIM_SEEDS", 200);
  Totals totals;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    run_seed(seed, totals);
    if (HasFatalFailure() || HasNonfatalFailure()) {
      break;  // one failing seed says enough
    }
  }
  std::cout << "seeds " << first << ".." << first + count - 1 << ": " << totals.events
            << " events, " << totals.checks << " checks of the stream, " << totals.restarts
            << " restarts of the run, " << totals.worker_deaths << " of workers, "
            << totals.redelivered << " rows delivered again, " << totals.compared
            << " runs bit-equal to the plain loop\n";
  if (count >= 200) {  // the faults must really have happened
    EXPECT_GT(totals.restarts, count / 10);
    EXPECT_GT(totals.worker_deaths, count / 20);
    EXPECT_GT(totals.redelivered, 0U);
    EXPECT_GT(totals.compared, count / 4);
  }
}

TEST(RlSimulation, ASeedReplaysExactly) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    const SimulationReport a = simulate(options_of(seed), faults_of(seed));
    const SimulationReport b = simulate(options_of(seed), faults_of(seed));
    EXPECT_EQ(a.events, b.events);
    EXPECT_EQ(a.restarts, b.restarts);
    EXPECT_EQ(a.rows_redelivered, b.rows_redelivered);
    EXPECT_EQ(a.weights_digest, b.weights_digest);
  }
}

}  // namespace
}  // namespace tidemill::test
