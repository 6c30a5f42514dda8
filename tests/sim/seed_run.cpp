// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/seed_run.hpp"

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

#include "base/digest.hpp"
#include "base/random.hpp"
#include "tests/sim/simulated_parts.hpp"

namespace tidemill::test {
namespace {

using actors::GenerationOrder;
using actors::RunEnd;

// Random streams. Options that were added later have their own, so that old seeds keep their
// meaning.
constexpr std::uint64_t kFirstOptions = 77;
constexpr std::uint64_t kFirstFaults = 78;
constexpr std::uint64_t kRewardsAndBest = 79;
constexpr std::uint64_t kStops = 80;
constexpr std::uint64_t kBackPressure = 81;
constexpr std::uint64_t kIrregularData = 82;
constexpr std::uint64_t kCalm = 83;
constexpr std::uint64_t kDevices = 84;
constexpr std::uint64_t kLoads = 85;
constexpr std::uint64_t kWorkerChanges = 86;
constexpr std::uint64_t kLateDevices = 87;
constexpr std::uint64_t kProcesses = 88;
constexpr std::uint64_t kRemoteServers = 89;
constexpr std::uint64_t kRolloutProcesses = 90;
constexpr std::uint64_t kStopEvents = 1'500;  // stops fall within this many

// Returns weights that are exact in binary, so that sums do not depend on their order.
std::vector<double> choose_reward_weights(RandomStream& random) {
  if (random.below(3) != 0) {
    return {};
  }
  return random.below(2) == 0 ? std::vector{1.0, 0.5} : std::vector{0.25, -0.5, 2.0};
}

actors::BestOptions choose_best_options(RandomStream& random) {
  actors::BestOptions best;
  best.keep = random.below(3) != 0;
  best.patience = static_cast<std::uint32_t>(random.below(2) == 0 ? 0 : 1 + random.below(3));
  best.min_improvement = random.below(3) == 0 ? 0.25 : 0.0;
  return best;
}

std::string describe(const SimulationOptions& options) {
  std::string text =
      "steps=" + std::to_string(options.steps) +
      " groups=" + std::to_string(options.groups_per_step) +
      " group_size=" + std::to_string(options.group_size) +
      " max=" + std::to_string(options.max_staleness) +
      (options.generation_order == GenerationOrder::kFixed ? " fixed" : " free") +
      " commit_every=" + std::to_string(options.commit_every) +
      " fail_one_in=" + std::to_string(options.fail_one_in) +
      (options.on_failed == storage::OnFailedRow::kShrink ? " shrink" : " drop_group") +
      (options.filter ? " filter" : "") + (options.never_signal ? " never_signal" : "") +
      " eval_every=" + std::to_string(options.eval_every) +
      " data_groups=" + std::to_string(options.data_groups) +
      " stream_groups=" + std::to_string(options.stream_groups) + " source_delay_ms=" +
      std::to_string(
          std::chrono::duration_cast<std::chrono::milliseconds>(options.source_delay).count()) +
      " rewards=" + std::to_string(std::max<std::size_t>(options.reward_weights.size(), 1));
  text += " skip_one_in=" + std::to_string(options.skip_one_in) +
          " fail_first_one_in=" + std::to_string(options.fail_first_one_in) +
          (options.mix_versions ? " mix_versions" : "") +
          " servers=" + std::to_string(options.servers) +
          " remote_servers=" + std::to_string(options.remote_servers) +
          " rollout_processes=" + std::to_string(options.rollout_processes) +
          " reward_processes=" + std::to_string(options.reward_processes) +
          (options.on_device_failure == actors::FailurePolicy::kDrop ? " drop_device" : "");
  if (options.best.enabled()) {
    text += (options.best.keep ? " keep_best" : "") +
            (" patience=" + std::to_string(options.best.patience));
  }
  return text;
}

// Lets the data skip draws, samples fail between successes, and responses mix versions.
void choose_irregular_data(RandomStream& random, SimulationOptions& options) {
  if (random.below(4) == 0) {
    options.skip_one_in = 2 + random.below(4);
  }
  if (random.below(4) == 0) {
    options.fail_first_one_in = 2 + random.below(4);
  }
  options.mix_versions = random.below(3) == 0 && options.max_staleness > 0 &&
                         options.generation_order == GenerationOrder::kFree;
}

// Lets worker processes die, and the network between them and the run disturb their messages.
void choose_process_faults(std::uint64_t seed, FaultOptions& faults) {
  RandomStream random(seed, kProcesses + 1000);
  faults.process_kills = static_cast<std::uint32_t>(random.below(4));
  const auto sometimes = [&random](double most) {
    return random.below(3) == 0 ? most * random.uniform() : 0.0;
  };
  faults.network.lost = sometimes(0.05);
  faults.network.repeated = sometimes(0.3);
  faults.network.damaged = sometimes(0.05);
  faults.network.broken = sometimes(0.05);
  faults.network.reordered = sometimes(0.05);
  if (random.below(3) == 0) {
    faults.network.max_delay = std::chrono::milliseconds(1 + random.below(300));
  }
}

// Whether a seed injects no fault. Its device and its rewards are so slow that leases must be
// renewed.
bool is_calm(std::uint64_t seed) {
  return RandomStream(seed, kCalm).below(8) == 0;
}

// Returns whether the final weights must equal those of the plain loop: they must in synchronous
// runs and with a fixed generation order (I4, I6).
bool is_reproducible(const SimulationOptions& options) {
  const bool one_order =
      options.max_staleness == 0 || options.generation_order == GenerationOrder::kFixed;
  return one_order && !(options.never_signal && options.generation_order == GenerationOrder::kFree);
}

class SeedRun {
public:
  explicit SeedRun(std::uint64_t seed)
      : options_(options_of_seed(seed)), faults_(faults_of_seed(seed)), seed_(seed) {}

  SeedOutcome run() {
    const SimulationReport report = run_to_end();
    outcome_.digest = digest_.digest();
    outcome_.counts["seeds"] = 1;
    outcome_.counts["steps"] = report.steps;
    for (const std::string& violation : report.violations) {
      fail(violation);
    }
    if (!report.violations.empty()) {
      return std::move(outcome_);  // later failures would only follow from these
    }
    check_end(report);
    require(report.all_evaluated,
            "an evaluation that was due is missing from the committed history");
    if (is_reproducible(options_)) {
      compare(report);
    }
    return std::move(outcome_);
  }

private:
  void fail(const std::string& what) {
    outcome_.failures.push_back(what + "; seed " + std::to_string(seed_) + ": " +
                                describe(options_) + "; replay with TIDEMILL_SIM_FIRST=" +
                                std::to_string(seed_) + " TIDEMILL_SIM_SEEDS=1 sim_test");
  }
  void require(bool condition, const std::string& what) {
    if (!condition) {
      fail(what);
    }
  }

  SimulationReport run_once(const std::shared_ptr<SimulatedDisk>& disk) {
    SimulationReport report = simulate(options_, faults_, disk);
    SimulationCounts& counts = outcome_.counts;
    counts["events"] += report.events;
    counts["restarts"] += report.restarts;
    counts["worker_deaths"] += report.worker_deaths;
    counts["rows_redelivered"] += report.rows_redelivered;
    counts["rows_left"] += report.rows_left;
    counts["stream_checks"] += report.stream_checks;
    counts["tokens_checked"] += report.tokens_checked;
    counts["rewards_checked"] += report.rewards_checked;
    counts["commits_checked"] += report.commits_checked;
    counts["bests_checked"] += report.bests_checked;
    counts["commits_refused"] += report.commits_refused;
    counts["appends_refused"] += report.appends_refused;
    counts["loads_refused"] += report.loads_refused;
    counts["quarantines"] += report.quarantines;
    counts["runs_with_processes"] += report.processes > 0 ? 1 : 0;
    counts["processes"] += report.processes;
    counts["process_kills"] += report.process_kills;
    counts["remote_servers"] += options_.remote_servers;
    counts["runs_with_late_devices"] += faults_.late_devices > 0 ? 1 : 0;
    counts["devices_joined"] += report.devices_joined;
    counts["devices_left"] += report.devices_left;
    counts["late_requests"] += report.late_requests;
    counts["workers_added"] += report.workers_added;
    counts["workers_drained"] += report.workers_drained;
    counts["workers_removed"] += report.workers_removed;
    counts["evaluations"] += report.evaluations;
    counts["rewards_refused"] += report.rewards_refused;
    counts["mixed_samples"] += report.mixed_samples;
    counts["calm_long_steps"] += report.calm ? report.long_steps : 0;
    count_end(report);
    add_to_digest(report, *disk);
    return report;
  }

  void add_to_digest(const SimulationReport& report, const SimulatedDisk& disk) {
    const std::string summary =
        std::to_string(report.events) + " events, " + std::to_string(report.restarts) +
        " restarts, " + std::to_string(report.worker_deaths) + " deaths, " +
        std::to_string(report.rows_redelivered) + " redelivered, " + std::to_string(report.steps) +
        " steps, end " + std::to_string(static_cast<int>(report.end)) + report.end_reason +
        report.end_error + ", weights " + report.weights_digest + "\n";
    for (const std::string& text : {summary, disk.text.metrics, disk.text.samples}) {
      digest_.update(std::as_bytes(std::span(text)));
    }
  }

  void count_end(const SimulationReport& report) {
    const char* end = "end_failure";
    if (report.end_error.empty()) {
      switch (report.end) {
        case RunEnd::kSteps: end = "end_steps"; break;
        case RunEnd::kData: end = "end_data"; break;
        case RunEnd::kStopped: end = "end_stopped"; break;
        case RunEnd::kNoSignal: end = "end_no_signal"; break;
        case RunEnd::kPlateau: end = "end_plateau"; break;
      }
    }
    ++outcome_.counts[end];
  }

  // Runs until the end. A full disk ends the run at once and leaves the last commit unchanged; the
  // run is then resumed with space on the disk. A run that was asked to stop is resumed too, and
  // one that has given a process up, without what ended the process.
  SimulationReport run_to_end() {
    const auto disk = make_simulated_disk();
    SimulationReport report = run_once(disk);
    while (report.violations.empty()) {
      if (report.end_error.find("has failed to start 3 times in a row") != std::string::npos &&
          !outcome_.counts.contains("given_up")) {
        require(!report.calm, "without a fault, the run ended with \"" + report.end_error + "\"");
        faults_.kills = faults_.process_kills = faults_.failed_loads = 0;
        faults_.network = {};
        faults_.max_hurry = Duration::zero();
        ++outcome_.counts["given_up"];
      } else if (faults_.full_from != 0 && !report.end_error.empty()) {
        check_full_disk(report.end_error);
        faults_.full_from = 0;
      } else if (faults_.stop_at != 0 && report.end == RunEnd::kStopped) {
        faults_.stop_at = 0;
      } else {
        break;
      }
      ++outcome_.counts["resumed"];
      report = run_once(disk);
    }
    return report;
  }

  void check_full_disk(const std::string& error) {
    require(error.find("resource_exhausted: trainer: commit of step") != std::string::npos &&
                error.find("no space left") != std::string::npos,
            "a full disk ended the run with \"" + error + "\"");
  }

  // Checks how and where a run ended.
  void check_end(const SimulationReport& report) {
    require(report.end_error.empty(), "the run ended with \"" + report.end_error + "\"");
    const std::string where = "the run ended after step " + std::to_string(report.steps);
    require(report.end != RunEnd::kStopped, where + ": stopped, but was not asked to");
    if (options_.never_signal && options_.generation_order == GenerationOrder::kFree) {
      require(report.steps == 0 && report.end != RunEnd::kSteps, where + " without a signal");
      require(report.end != RunEnd::kNoSignal ||
                  report.end_reason.find("groups left untrained since step 0") != std::string::npos,
              where + " with the reason \"" + report.end_reason + "\"");
      return;
    }
    if (report.end == RunEnd::kData) {
      require(options_.data_groups != 0 && report.steps < options_.steps,
              where + " because the data ended");
    } else if (report.end == RunEnd::kPlateau) {
      require(options_.best.patience != 0, where + " at a plateau, but no patience was set");
    } else {
      require(report.end == RunEnd::kSteps && report.steps == options_.steps,
              where + " of " + std::to_string(options_.steps));
    }
  }

  void compare(const SimulationReport& report) {
    ++outcome_.counts["compared_with_plain_loop"];
    const PlainLoopEnd plain = run_plain_loop(options_);
    require(report.steps == plain.steps && (report.end == RunEnd::kPlateau) == plain.plateau,
            "the run ended after step " + std::to_string(report.steps) +
                ", the plain loop after step " + std::to_string(plain.steps) +
                (plain.plateau ? " at a plateau" : ""));
    require(report.weights_digest == plain.weights_digest,
            "the run ended with other weights than the plain loop");
  }

  SimulationOptions options_;
  FaultOptions faults_;
  std::uint64_t seed_;
  SeedOutcome outcome_;
  DigestHasher digest_;
};

}  // namespace

void add_counts(const SimulationCounts& more, SimulationCounts& counts) {
  for (const auto& [name, count] : more) {
    counts[name] += count;
  }
}

std::string counts_text(const SimulationCounts& counts) {
  std::string text;
  for (const auto& [name, count] : counts) {
    text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + name;
  }
  return text;
}

SimulationOptions options_of_seed(std::uint64_t seed) {
  RandomStream random(seed, kFirstOptions);
  SimulationOptions options;
  options.data_seed = 1 + random.below(4);
  options.steps = 3 + random.below(4);
  options.groups_per_step = static_cast<std::uint32_t>(1 + random.below(3));
  options.group_size = static_cast<std::uint32_t>(1 + random.below(4));
  options.max_staleness = random.below(3);
  options.generation_order =
      random.below(2) == 0 ? GenerationOrder::kFree : GenerationOrder::kFixed;
  options.rollout_workers = static_cast<std::uint32_t>(1 + random.below(3));
  options.commit_every = random.below(4);
  options.fail_one_in = random.below(3) == 0 ? 7 : 0;
  options.on_failed =
      random.below(2) == 0 ? storage::OnFailedRow::kDropGroup : storage::OnFailedRow::kShrink;
  options.filter = random.below(4) == 0 && options.group_size > 1;
  options.eval_every = random.below(3) == 0 ? 1 + random.below(2) : 0;
  if (random.below(5) == 0) {  // the data ends before the last step, within or after a batch
    options.data_groups =
        options.groups_per_step + random.below(options.groups_per_step * (options.steps - 1));
  }
  options.never_signal = random.below(10) == 0;
  if (options.never_signal) {
    options.fail_one_in = 0;  // or most groups might be lost, which is a failure
  }
  RandomStream later(seed, kRewardsAndBest);
  options.reward_weights = choose_reward_weights(later);
  options.reward_workers = static_cast<std::uint32_t>(1 + later.below(2));
  if (later.below(3) == 0) {
    options.eval_every = std::max<std::uint64_t>(options.eval_every, 1);
    options.best = choose_best_options(later);
  }
  RandomStream pressure(seed, kBackPressure);
  if (pressure.below(3) == 0) {
    const bool fixed = options.generation_order == GenerationOrder::kFixed;
    options.stream_groups = options.groups_per_step * (fixed ? options.max_staleness + 1 : 1) +
                            pressure.below(options.groups_per_step);
  }
  if (pressure.below(3) == 0) {
    options.source_delay = std::chrono::milliseconds(1 + pressure.below(5000));
  }
  RandomStream irregular(seed, kIrregularData);
  choose_irregular_data(irregular, options);
  RandomStream devices(seed, kDevices);
  if (devices.below(3) == 0) {
    options.servers = static_cast<std::uint32_t>(1 + devices.below(2));
    options.on_device_failure =
        devices.below(2) == 0 ? actors::FailurePolicy::kFailRun : actors::FailurePolicy::kDrop;
  }
  RandomStream remote(seed, kRemoteServers);
  if (options.servers > 0 && remote.below(2) == 0) {
    options.remote_servers = static_cast<std::uint32_t>(1 + remote.below(options.servers));
  }
  RandomStream processes(seed, kProcesses);
  if (processes.below(3) == 0) {
    options.reward_processes = static_cast<std::uint32_t>(1 + processes.below(2));
    options.reward_workers =
        options.reward_processes + static_cast<std::uint32_t>(processes.below(2));
  }
  RandomStream rollouts(seed, kRolloutProcesses);
  if (rollouts.below(4) == 0) {
    options.rollout_processes =
        static_cast<std::uint32_t>(1 + rollouts.below(options.rollout_workers));
  }
  if (is_calm(seed)) {
    options.device_delay = std::chrono::milliseconds(2000);
    options.reward_delay = std::chrono::seconds(5);
  }
  return options;
}

FaultOptions faults_of_seed(std::uint64_t seed) {
  RandomStream random(seed, kFirstFaults);
  FaultOptions faults;
  faults.seed = seed;
  RandomStream late(seed, kLateDevices);
  if (late.below(4) == 0) {
    faults.late_devices = static_cast<std::uint32_t>(1 + late.below(3));
    faults.device_leaves = static_cast<std::uint32_t>(late.below(4));
  }
  if (is_calm(seed)) {
    faults.max_hurry = std::chrono::milliseconds(250);
    return faults;
  }
  faults.kills = static_cast<std::uint32_t>(random.below(6));
  choose_process_faults(seed, faults);
  faults.failed_commits = static_cast<std::uint32_t>(random.below(8) == 0 ? 1 : 0);
  faults.failed_records = static_cast<std::uint32_t>(random.below(8) == 0 ? 1 : 0);
  faults.full_from = static_cast<std::uint32_t>(random.below(8) == 0 ? 1 + random.below(2) : 0);
  RandomStream stops(seed, kStops);
  faults.stop_at = stops.below(8) == 0 ? 1 + stops.below(kStopEvents) : 0;
  RandomStream loads(seed, kLoads);
  faults.failed_loads = static_cast<std::uint32_t>(loads.below(4) == 0 ? 1 + loads.below(2) : 0);
  RandomStream changes(seed, kWorkerChanges);
  faults.worker_changes =
      static_cast<std::uint32_t>(changes.below(3) == 0 ? 1 + changes.below(8) : 0);
  return faults;
}

SeedOutcome run_seed(std::uint64_t seed) {
  return SeedRun(seed).run();
}

}  // namespace tidemill::test
