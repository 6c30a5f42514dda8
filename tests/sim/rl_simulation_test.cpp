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

using actors::RunEnd;
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
  options.eval_every = random.below(3) == 0 ? 1 + random.below(2) : 0;
  if (random.below(5) == 0) {  // the data ends before the steps do, inside a batch or with one
    options.data_groups =
        options.groups_per_step + random.below(options.groups_per_step * (options.steps - 1));
  }
  options.never_signal = random.below(10) == 0;
  if (options.never_signal) {
    options.one_in_fails = 0;  // else most groups may be lost instead, which is a failure
  }
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
  faults.failed_records = static_cast<std::uint32_t>(random.below(8) == 0 ? 1 : 0);
  faults.full_from = static_cast<std::uint32_t>(random.below(8) == 0 ? 1 + random.below(2) : 0);
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
         (options.filter ? " filter" : "") + (options.never_signal ? " never_signal" : "") +
         " eval_every=" + std::to_string(options.eval_every) +
         " data_groups=" + std::to_string(options.data_groups);
}

struct Totals {
  std::uint64_t events = 0;
  std::uint64_t restarts = 0;
  std::uint64_t worker_deaths = 0;
  std::uint64_t redelivered = 0;
  std::uint64_t compared = 0;
  std::uint64_t checks = 0;
  std::uint64_t tokens = 0;
  std::uint64_t commits_refused = 0;
  std::uint64_t appends_refused = 0;
  std::uint64_t resumed = 0;
  std::uint64_t evaluations = 0;
  std::uint64_t data_ends = 0;
  std::uint64_t signal_ends = 0;
};

void add(const SimulationReport& report, Totals& totals) {
  totals.events += report.events;
  totals.restarts += report.restarts;
  totals.worker_deaths += report.worker_deaths;
  totals.redelivered += report.rows_redelivered;
  totals.checks += report.stream_checks;
  totals.tokens += report.tokens_checked;
  totals.commits_refused += report.commits_refused;
  totals.appends_refused += report.appends_refused;
  totals.evaluations += report.evaluations;
  totals.data_ends += report.end == RunEnd::kData ? 1 : 0;
  totals.signal_ends += report.end == RunEnd::kNoSignal ? 1 : 0;
}

// A full disk ends the run at once, with the last commit as it was; with room again it is resumed.
SimulationReport run_to_end(const SimulationOptions& options, FaultOptions faults, Totals& totals) {
  const auto disk = make_simulated_disk();
  SimulationReport report = simulate(options, faults, disk);
  add(report, totals);
  if (faults.full_from == 0 || report.end_error.empty() || !report.violations.empty()) {
    return report;
  }
  EXPECT_NE(report.end_error.find("resource_exhausted: trainer: commit of step"), std::string::npos)
      << report.end_error;
  EXPECT_NE(report.end_error.find("no space left"), std::string::npos) << report.end_error;
  ++totals.resumed;
  faults.full_from = 0;
  report = simulate(options, faults, disk);
  add(report, totals);
  return report;
}

// Checks how and where a run ended.
void expect_end(const SimulationOptions& options, const SimulationReport& report,
                const std::string& replay) {
  EXPECT_EQ(report.end_error, "") << replay;
  const bool fixed = options.schedule == ScheduleKind::kFixed;
  if (options.never_signal && !fixed) {
    EXPECT_EQ(report.steps, 0U) << replay;
    EXPECT_NE(report.end, RunEnd::kSteps) << replay;
    if (report.end == RunEnd::kNoSignal) {
      EXPECT_NE(report.end_reason.find("groups left untrained since step 0"), std::string::npos)
          << report.end_reason << replay;
    }
    return;
  }
  if (report.end == RunEnd::kData) {
    EXPECT_NE(options.data_groups, 0U) << replay;
    EXPECT_LT(report.steps, options.steps) << replay;
  } else {
    EXPECT_EQ(report.end, RunEnd::kSteps) << replay;
    EXPECT_EQ(report.steps, options.steps) << replay;
  }
}

void run_seed(std::uint64_t seed, Totals& totals) {
  const SimulationOptions options = options_of(seed);
  const SimulationReport report = run_to_end(options, faults_of(seed), totals);
  const std::string replay = "; seed " + std::to_string(seed) + ": " + describe(options) +
                             "; replay with TIDEMILL_SIM_FIRST=" + std::to_string(seed) +
                             " TIDEMILL_SIM_SEEDS=1";
  for (const std::string& violation : report.violations) {
    ADD_FAILURE() << violation << replay;
  }
  expect_end(options, report, replay);
  if (is_reproducible(options) &&
      !(options.never_signal && options.schedule == ScheduleKind::kFree)) {
    ++totals.compared;
    const PlainLoopEnd plain = run_plain_loop(options);
    EXPECT_EQ(report.steps, plain.steps) << replay;
    EXPECT_EQ(report.weights_digest, plain.weights_digest) << replay;
  }
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
            << totals.redelivered << " rows delivered again, " << totals.tokens
            << " tokens held against their weights, " << totals.commits_refused << " commits and "
            << totals.appends_refused << " appends refused, " << totals.resumed
            << " runs resumed after a full disk, " << totals.evaluations << " evaluations, "
            << totals.data_ends << " ends of the data, " << totals.signal_ends
            << " for want of a signal, " << totals.compared
            << " runs bit-equal to the plain loop\n";
  if (count >= 200) {  // the faults must really have happened
    EXPECT_GT(totals.tokens, 0U);
    EXPECT_GT(totals.commits_refused, count / 50);
    EXPECT_GT(totals.appends_refused, count / 50);
    EXPECT_GT(totals.resumed, count / 50);
    EXPECT_GT(totals.evaluations, count / 10);
    EXPECT_GT(totals.data_ends, count / 20);
    EXPECT_GT(totals.signal_ends, count / 100);
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

// A run that fails for ever must end with the reason, however often it is started again.
TEST(RlSimulation, ACommitThatAlwaysFailsEndsTheRunAndTheLastCommitStands) {
  SimulationOptions options;
  options.commit_every = 1;
  FaultOptions faults;
  faults.full_from = 2;
  const auto disk = make_simulated_disk();
  for (int i = 0; i < 3; ++i) {  // a disk that stays full gives up one commit a start
    const SimulationReport report = simulate(options, faults, disk);
    EXPECT_EQ(report.violations, std::vector<std::string>{});
    EXPECT_EQ(report.end_error, "resource_exhausted: trainer: commit of step " +
                                    std::to_string(i + 2) + ": simulated: no space left");
    EXPECT_EQ(report.restarts, 0U);
  }
  faults.full_from = 0;
  const SimulationReport report = simulate(options, faults, disk);
  EXPECT_EQ(report.end_error, "");
  EXPECT_EQ(report.weights_digest, run_plain_loop(options).weights_digest);
}

TEST(RlSimulation, GroupsFilteredForEverEndTheRunWithOneClearLine) {
  SimulationOptions options;
  options.never_signal = true;
  const SimulationReport report = simulate(options, {});
  EXPECT_EQ(report.end_error, "");
  EXPECT_EQ(report.end, RunEnd::kNoSignal);
  EXPECT_EQ(report.steps, 0U);
  EXPECT_NE(report.end_reason.find("groups left untrained since step 0"), std::string::npos);
  EXPECT_NE(report.end_reason.find("rollout.temperature"), std::string::npos);
}

TEST(RlSimulation, DataThatEndsEarlyEndsTheRunWithTheStepsItHeld) {
  SimulationOptions options;
  options.data_groups = 2 * options.groups_per_step + 1;
  options.eval_every = 1;
  const SimulationReport report = simulate(options, {});
  EXPECT_EQ(report.end_error, "");
  EXPECT_EQ(report.end, RunEnd::kData);
  EXPECT_EQ(report.steps, 2U);
  EXPECT_GE(report.evaluations, 1U);
  EXPECT_EQ(report.weights_digest, run_plain_loop(options).weights_digest);
}

}  // namespace
}  // namespace tidemill::test
