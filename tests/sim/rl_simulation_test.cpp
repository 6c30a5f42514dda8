// SPDX-License-Identifier: Apache-2.0
// Runs many seeds of the simulated run under faults. TIDEMILL_SIM_FIRST and TIDEMILL_SIM_SEEDS
// choose them. A failing seed is printed with the command that replays it. `sim_soak` runs seeds
// without end.
#include <cstdlib>
#include <iostream>
#include <string>

#include <gtest/gtest.h>

#include "tests/sim/seed_run.hpp"
#include "tests/sim/simulated_parts.hpp"

namespace tidemill::test {
namespace {

using actors::RunEnd;

std::uint64_t from_environment(const char* name, std::uint64_t fallback) {
  const char* text = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): before any thread
  return text == nullptr ? fallback : std::stoull(text);
}

TEST(RlSimulation, InvariantsHoldUnderFaultsForEverySeed) {
  const std::uint64_t first = from_environment("TIDEMILL_SIM_FIRST", 1);
  const std::uint64_t count = from_environment("TIDEMILL_SIM_SEEDS", 200);
  SimulationCounts counts;
  for (std::uint64_t seed = first; seed < first + count && !HasFailure(); ++seed) {
    const SeedOutcome outcome = run_seed(seed);
    add_counts(outcome.counts, counts);
    for (const std::string& failure : outcome.failures) {
      ADD_FAILURE() << failure;
    }
  }
  std::cout << "seeds " << first << ".." << first + count - 1 << ": " << counts_text(counts)
            << "\n";
  if (count >= 200 && !HasFailure()) {  // the faults must have happened
    EXPECT_GT(counts["tokens_checked"], 0U);
    EXPECT_GT(counts["rewards_checked"], 0U);
    EXPECT_GT(counts["commits_refused"], count / 50);
    EXPECT_GT(counts["appends_refused"], count / 50);
    EXPECT_GT(counts["loads_refused"], count / 10);
    EXPECT_GT(counts["quarantines"], count / 40);
    EXPECT_GT(counts["devices_joined"], count / 10);
    EXPECT_GT(counts["devices_left"], count / 50);
    EXPECT_GT(counts["late_requests"], count);
    EXPECT_GT(counts["remote_servers"], count / 10);
    EXPECT_GT(counts["runs_with_processes"], count / 5);
    EXPECT_GT(counts["process_kills"], count / 10);
    EXPECT_GT(counts["processes"], count / 2);
    EXPECT_GT(counts["workers_added"], count / 10);
    EXPECT_GT(counts["workers_drained"], count / 100);
    EXPECT_GT(counts["workers_removed"], count / 100);
    EXPECT_GT(counts["resumed"], count / 20);
    EXPECT_GT(counts["evaluations"], count / 10);
    EXPECT_GT(counts["bests_checked"], count / 10);
    EXPECT_GT(counts["end_data"], count / 20);
    EXPECT_GT(counts["end_no_signal"], count / 100);
    EXPECT_GT(counts["end_stopped"], count / 50);
    EXPECT_GT(counts["end_plateau"], count / 50);
    EXPECT_GT(counts["restarts"], count / 10);
    EXPECT_GT(counts["worker_deaths"], count / 20);
    EXPECT_GT(counts["rows_redelivered"], count / 20);
    EXPECT_GT(counts["compared_with_plain_loop"], count / 4);
    EXPECT_GT(counts["rewards_refused"], count / 4);
    EXPECT_GT(counts["mixed_samples"], count / 50);
    EXPECT_GT(counts["calm_long_steps"], count / 40);
  }
}

// A device that cannot load a version costs its own work, but neither a restart nor a bit.
TEST(RlSimulation, ADeviceThatRefusesAVersionIsQuarantinedAndTheRunGoesOn) {
  for (const auto order : {actors::GenerationOrder::kFree, actors::GenerationOrder::kFixed}) {
    SimulationOptions options;
    options.generation_order = order;
    options.max_staleness = order == actors::GenerationOrder::kFixed ? 1 : 0;
    options.servers = 2;
    options.eval_every = 1;
    options.best.keep = true;
    FaultOptions faults;
    faults.max_hurry = std::chrono::milliseconds(250);
    faults.failed_loads = 2;
    const SimulationReport report = simulate(options, faults);
    EXPECT_EQ(report.violations, std::vector<std::string>{});
    EXPECT_EQ(report.end_error, "");
    EXPECT_EQ(report.loads_refused, 2U);
    EXPECT_EQ(report.quarantines, 2U);
    EXPECT_EQ(report.restarts, 0U);
    EXPECT_EQ(report.weights_digest, run_plain_loop(options).weights_digest);
  }
}

// Devices come and go. Those that come have other weights at first, which generate nothing.
TEST(RlSimulation, DevicesThatJoinAndLeaveChangeNoBit) {
  std::uint64_t joined = 0;
  std::uint64_t left = 0;
  std::uint64_t late_requests = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SimulationOptions options;
    options.steps = 8;
    options.generation_order =
        seed % 2 == 0 ? actors::GenerationOrder::kFree : actors::GenerationOrder::kFixed;
    options.max_staleness = seed % 2 == 0 ? 0 : seed % 3;
    options.eval_every = 2;
    options.best.keep = true;
    FaultOptions faults;
    faults.seed = seed;
    faults.max_hurry = std::chrono::milliseconds(250);
    faults.late_devices = 3;
    faults.device_leaves = 8;
    const SimulationReport report = simulate(options, faults);
    EXPECT_EQ(report.violations, std::vector<std::string>{}) << "seed " << seed;
    EXPECT_EQ(report.end_error, "");
    EXPECT_TRUE(report.calm);
    EXPECT_EQ(report.rows_redelivered, 0U) << "a device that leaves ends its requests";
    EXPECT_EQ(report.quarantines, 0U);
    EXPECT_EQ(report.weights_digest, run_plain_loop(options).weights_digest) << "seed " << seed;
    joined += report.devices_joined;
    left += report.devices_left;
    late_requests += report.late_requests;
  }
  EXPECT_GT(joined, 40U);
  EXPECT_GT(left, 10U);
  EXPECT_GT(late_requests, 400U);
}

// Responses are generated and scored in other processes, which die, over a network that loses,
// repeats, damages, reorders and delays frames and breaks connections. No bit changes.
TEST(RlSimulation, ProcessesBehindABadNetworkChangeNoBit) {
  std::uint64_t kills = 0;
  std::uint64_t processes = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SimulationOptions options;
    options.steps = 6;
    options.generation_order =
        seed % 2 == 0 ? actors::GenerationOrder::kFree : actors::GenerationOrder::kFixed;
    options.max_staleness = seed % 2 == 0 ? 0 : seed % 3;
    options.reward_processes = 2;
    options.reward_workers = 3;
    options.rollout_processes = seed % 3 == 0 ? 0 : 2;
    options.rollout_workers = 3;
    FaultOptions faults;
    faults.seed = seed;
    faults.process_kills = 3;
    faults.network = {.lost = 0.01,
                      .repeated = 0.1,
                      .damaged = 0.01,
                      .broken = 0.01,
                      .reordered = 0.01,
                      .max_delay = std::chrono::milliseconds(20)};
    const SimulationReport report = simulate(options, faults);
    EXPECT_EQ(report.violations, std::vector<std::string>{}) << "seed " << seed;
    EXPECT_EQ(report.end_error, "");
    EXPECT_EQ(report.weights_digest, run_plain_loop(options).weights_digest) << "seed " << seed;
    kills += report.process_kills;
    processes += report.processes;
  }
  EXPECT_GT(kills, 20U);
  EXPECT_GT(processes, 60U);
}

// Devices serve in other processes, which die, over the same network. No bit changes.
TEST(RlSimulation, ServersBehindABadNetworkChangeNoBit) {
  std::uint64_t kills = 0;
  std::uint64_t quarantines = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SimulationOptions options;
    options.steps = 6;
    options.generation_order =
        seed % 2 == 0 ? actors::GenerationOrder::kFree : actors::GenerationOrder::kFixed;
    options.max_staleness = seed % 2 == 0 ? 0 : seed % 3;
    options.servers = 3;
    options.remote_servers = 2;
    options.on_device_failure =
        seed % 4 < 2 ? actors::FailurePolicy::kDrop : actors::FailurePolicy::kFailRun;
    FaultOptions faults;
    faults.seed = seed;
    faults.process_kills = 2;
    faults.network = {.lost = 0.01,
                      .repeated = 0.1,
                      .damaged = 0.01,
                      .broken = 0.01,
                      .max_delay = std::chrono::milliseconds(20)};
    const SimulationReport report = simulate(options, faults);
    EXPECT_EQ(report.violations, std::vector<std::string>{}) << "seed " << seed;
    EXPECT_EQ(report.end_error, "");
    EXPECT_EQ(report.weights_digest, run_plain_loop(options).weights_digest) << "seed " << seed;
    kills += report.process_kills;
    quarantines += report.quarantines;
  }
  EXPECT_GT(kills, 15U);
  EXPECT_GT(quarantines, 5U);
}

// Carries out calm runs over a good network, which `place` distributes. Nothing may end, and no row
// be delivered twice.
template <class Place, class Check>
void expect_nothing_lost(Place place, Check check) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    SimulationOptions options;
    options.max_staleness = seed % 3;
    options.generation_order =
        seed % 2 == 0 ? actors::GenerationOrder::kFree : actors::GenerationOrder::kFixed;
    options.eval_every = 2;
    place(options);
    FaultOptions faults;
    faults.seed = seed;
    faults.max_hurry = std::chrono::milliseconds(250);
    const SimulationReport report = simulate(options, faults);
    EXPECT_EQ(report.violations, std::vector<std::string>{}) << "seed " << seed;
    EXPECT_EQ(report.end_error, "");
    EXPECT_TRUE(report.calm);
    EXPECT_EQ(report.rows_redelivered, 0U);
    EXPECT_EQ(report.quarantines, 0U);
    check(report);
  }
}

// A process that generates is as good as the process of the run.
TEST(RlSimulation, RolloutProcessesBehindAGoodNetworkLoseNothing) {
  expect_nothing_lost(
      [](SimulationOptions& options) {
        options.rollout_processes = 2;
        options.reward_processes = 1;
      },
      [](const SimulationReport& report) {
        EXPECT_EQ(report.processes, 3U);
        EXPECT_GT(report.late_requests, 0U) << "the processes have generated";
      });
}

// A remote device is as good as a local one.
TEST(RlSimulation, RemoteServersBehindAGoodNetworkLoseNothing) {
  expect_nothing_lost(
      [](SimulationOptions& options) {
        options.servers = 2;
        options.remote_servers = 2;
      },
      [](const SimulationReport& report) { EXPECT_EQ(report.processes, 2U); });
}

// Workers come and go, but a synchronous run trains the same rows.
TEST(RlSimulation, AddingDrainingAndRemovingWorkersChangesNoBit) {
  SimulationOptions options;
  options.steps = 8;
  FaultOptions faults;
  faults.max_hurry = std::chrono::milliseconds(250);
  faults.worker_changes = 40;
  std::uint64_t added = 0;
  std::uint64_t drained = 0;
  std::uint64_t removed = 0;
  std::uint64_t left = 0;
  for (faults.seed = 1; faults.seed <= 10; ++faults.seed) {
    const SimulationReport report = simulate(options, faults);
    EXPECT_EQ(report.violations, std::vector<std::string>{});
    EXPECT_EQ(report.end_error, "");
    EXPECT_EQ(report.restarts, 0U);
    EXPECT_EQ(report.worker_deaths, 0U);
    EXPECT_EQ(report.weights_digest, run_plain_loop(options).weights_digest);
    left += report.rows_left;
    added += report.workers_added;
    drained += report.workers_drained;
    removed += report.workers_removed;
  }
  EXPECT_GT(added, 50U);
  EXPECT_GT(drained, 10U);
  EXPECT_GT(removed, 10U);
  EXPECT_GT(left, 0U) << "no drained worker has left a row";
}

TEST(RlSimulation, ASeedReplaysExactly) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    const SimulationReport a = simulate(options_of_seed(seed), faults_of_seed(seed));
    const SimulationReport b = simulate(options_of_seed(seed), faults_of_seed(seed));
    EXPECT_EQ(a.events, b.events);
    EXPECT_EQ(a.restarts, b.restarts);
    EXPECT_EQ(a.rows_redelivered, b.rows_redelivered);
    EXPECT_EQ(a.weights_digest, b.weights_digest);
  }
}

// Leases that are renewed too late expire while the device or the rewards work.
TEST(RlSimulation, WithoutFaultsNoRowIsDeliveredTwiceHoweverSlowTheWorkIs) {
  SimulationOptions options;
  options.max_staleness = 1;
  options.device_delay = std::chrono::milliseconds(1500);
  options.reward_delay = std::chrono::seconds(5);
  FaultOptions faults;
  faults.max_hurry = std::chrono::milliseconds(250);
  const SimulationReport report = simulate(options, faults);
  EXPECT_EQ(report.violations, std::vector<std::string>{});
  EXPECT_EQ(report.steps, options.steps);
  EXPECT_TRUE(report.calm);
  EXPECT_GT(report.long_steps, 0U) << "no lease had to be renewed";
  EXPECT_EQ(report.rows_redelivered, 0U);
}

// A sample that has no reward at first is delivered once more. Nothing else changes.
TEST(RlSimulation, SamplesThatFailBetweenSuccessesAreTrainedAllTheSame) {
  SimulationOptions options;
  FaultOptions faults;
  faults.max_hurry = std::chrono::milliseconds(250);
  const SimulationReport smooth = simulate(options, faults);
  options.fail_first_one_in = 2;
  const SimulationReport flaky = simulate(options, faults);
  EXPECT_EQ(flaky.violations, std::vector<std::string>{});
  EXPECT_GT(flaky.rewards_refused, 0U);
  EXPECT_EQ(flaky.rows_redelivered, flaky.rewards_refused);
  EXPECT_EQ(flaky.weights_digest, smooth.weights_digest);
}

// Draws that are skipped belong to no group, and a resumed run goes on after them.
TEST(RlSimulation, SkippedDrawsAreNeitherRepeatedNorTrained) {
  SimulationOptions options;
  options.skip_one_in = 2;
  options.prompts = 1000;  // so that every draw has its own prompt
  options.commit_every = 1;
  FaultOptions faults;
  faults.stop_at = 200;
  const auto disk = make_simulated_disk();
  const SimulationReport stopped = simulate(options, faults, disk);
  EXPECT_EQ(stopped.end, RunEnd::kStopped);
  EXPECT_GT(stopped.steps, 0U);
  faults.stop_at = 0;
  const SimulationReport resumed = simulate(options, faults, disk);
  EXPECT_EQ(resumed.violations, std::vector<std::string>{});
  EXPECT_EQ(resumed.steps, options.steps);
  EXPECT_EQ(resumed.weights_digest, run_plain_loop(options).weights_digest);
  options.skip_one_in = 0;
  EXPECT_NE(resumed.weights_digest, run_plain_loop(options).weights_digest);
}

// A run whose commits always fail must end with the reason every time it is started.
TEST(RlSimulation, ACommitThatAlwaysFailsEndsTheRunAndKeepsTheLastCommit) {
  SimulationOptions options;
  options.commit_every = 1;
  FaultOptions faults;
  faults.full_from = 2;
  const auto disk = make_simulated_disk();
  for (int i = 0; i < 3; ++i) {  // each start commits once before the disk is full again
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

// The port that loads the commit decodes its stream too, before any actor of the run is spawned.
TEST(RlSimulation, ACommitWithAnUnreadableStreamEndsTheRunBeforeItsActorsAreSpawned) {
  SimulationOptions options;
  options.commit_every = 1;
  FaultOptions faults;
  faults.stop_at = 400;
  const auto disk = make_simulated_disk();
  ASSERT_EQ(simulate(options, faults, disk).end, RunEnd::kStopped);
  ASSERT_TRUE(disk->last.has_value());
  disk->last->stream.bytes = disk->last->stream.bytes.slice(0, 40, DType::kU8);
  faults.stop_at = 0;
  const SimulationReport report = simulate(options, faults, disk);
  EXPECT_EQ(report.end_error.find("corrupt_data: stream image: "), 0U) << report.end_error;
  EXPECT_LE(report.events, 3U);  // the start, and the message of the port when it is due
}

TEST(RlSimulation, ARunWhoseGroupsAreAllFilteredEndsWithAReason) {
  SimulationOptions options;
  options.never_signal = true;
  const SimulationReport report = simulate(options, {});
  EXPECT_EQ(report.end_error, "");
  EXPECT_EQ(report.end, RunEnd::kNoSignal);
  EXPECT_EQ(report.steps, 0U);
  EXPECT_NE(report.end_reason.find("groups left untrained since step 0"), std::string::npos);
  EXPECT_NE(report.end_reason.find("rollout.temperature"), std::string::npos);
}

TEST(RlSimulation, DataThatEndsEarlyEndsTheRunAfterItsSteps) {
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
