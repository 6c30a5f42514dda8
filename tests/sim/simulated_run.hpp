// SPDX-License-Identifier: Apache-2.0
// Simulates a whole reinforcement-learning run: the real actors, replayed engines, virtual time,
// and faults from a seed. The invariants are checked after every event.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/keeper/spawn.hpp"
#include "actors/supervisor/messages.hpp"
#include "actors/trainer/best_weights.hpp"
#include "actors/trainer/messages.hpp"
#include "base/clock.hpp"
#include "storage/stream/stream_options.hpp"
#include "transport/loopback/loopback_network.hpp"

namespace tidemill::test {

/// The options of a run. Runs with equal options train on the same data, whatever their fault
/// seeds.
struct SimulationOptions {
  std::uint64_t data_seed = 1;
  std::uint64_t steps = 5;
  std::uint32_t groups_per_step = 3;
  std::uint32_t group_size = 3;
  std::uint64_t max_staleness = 0;
  actors::GenerationOrder generation_order = actors::GenerationOrder::kFree;
  std::uint32_t rollout_workers = 2;
  std::uint32_t reward_workers = 1;
  /// Processes of the rollout workers, each with a device, at most one for each worker; 0: the
  /// workers are in the process of the run.
  std::uint32_t rollout_processes = 0;
  std::uint32_t reward_processes = 0;  // likewise, without devices
  std::uint32_t servers = 0;         // devices that serve, in addition to the one that also trains
  std::uint32_t remote_servers = 0;  // of `servers`, those in processes of their own
  /// Of a device that only serves.
  actors::FailurePolicy on_device_failure = actors::FailurePolicy::kFailRun;
  std::vector<double> reward_weights;  // of the parts of a sum; empty: a single reward
  std::uint64_t commit_every = 2;
  std::uint64_t eval_every = 0;
  actors::BestOptions best;   // how evaluations are used
  std::uint64_t prompts = 7;  // rows of the data, which repeat in every pass
  /// Groups that the byte limit of the stream holds: at least a batch or, in a fixed order, the
  /// batches in flight. 0: no limit.
  std::uint64_t stream_groups = 0;
  Duration source_delay{0};       // longest time that reading prompts takes
  std::uint64_t data_groups = 0;  // draws before the data ends; 0: never
  std::uint64_t skip_one_in = 0;  // the data skips one in so many draws; 0: none
  std::uint64_t fail_one_in = 0;  // one in so many rewards cannot be computed; 0: none
  /// One in so many samples has no reward the first time that it is scored; 0: none.
  std::uint64_t fail_first_one_in = 0;
  /// The engine generates with new weights at once, so responses mix versions.
  bool mix_versions = false;
  /// Longest time that one piece of work takes: an iteration of the device, or scoring.
  Duration device_delay = std::chrono::milliseconds(2);
  Duration reward_delay = std::chrono::milliseconds(2);
  bool filter = false;        // filter groups without a signal
  bool never_signal = false;  // no group ever has a signal
  storage::OnFailedRow on_failed = storage::OnFailedRow::kDropGroup;

  /// Returns whether the weights of a step are to be evaluated.
  [[nodiscard]] bool evaluates(std::uint64_t step) const {
    return eval_every != 0 && (step % eval_every == 0 || step == steps);
  }
};

/// The faults of a run.
struct FaultOptions {
  std::uint64_t seed = 0;                  // also for the scheduler's choices
  std::uint32_t kills = 0;                 // actors to kill, at random events
  std::uint32_t process_kills = 0;         // processes to kill, at random events
  transport::LoopbackFaults network = {};  // between the run and its processes
  std::uint32_t worker_changes = 0;        // workers to add, drain or remove, at random events
  std::uint32_t late_devices = 0;          // devices that join, at random events
  std::uint32_t device_leaves = 0;         // devices that are asked to leave, at random events
  std::uint32_t failed_commits = 0;        // commits that fail, at random
  std::uint32_t failed_records = 0;        // appends that stop half-way, at random
  std::uint32_t failed_loads = 0;          // new weights that a device refuses, at random
  std::uint32_t full_from = 0;             // the disk is full from this commit on; 0: never
  std::uint64_t stop_at = 0;               // ask the run to stop before this event; 0: never
  /// Sometimes a timeout comes before pending messages, if it is due within this time.
  Duration max_hurry = Duration::max();
};

/// What a run leaves on disk. A run that starts with the disk of an earlier run resumes that run.
struct SimulatedDisk;
[[nodiscard]] std::shared_ptr<SimulatedDisk> make_simulated_disk();

/// The result of a simulated run.
struct SimulationReport {
  std::vector<std::string> violations;  // of invariants; empty: none
  std::string end_error;                // empty: the run ended well
  actors::RunEnd end = actors::RunEnd::kSteps;
  std::string end_reason;
  std::uint64_t steps = 0;
  std::string weights_digest;
  std::uint64_t events = 0;
  std::uint32_t restarts = 0;
  std::uint32_t worker_deaths = 0;
  std::uint64_t rows_trained = 0;
  std::uint64_t rows_redelivered = 0;
  std::uint64_t rows_left = 0;  // given back by workers that were drained
  std::uint64_t kills = 0;
  std::uint64_t process_kills = 0;
  std::uint64_t processes = 0;        // that were started
  std::uint64_t rewards_refused = 0;  // samples that had no reward
  bool calm = false;                  // no fault was injected but for rewards
  std::uint64_t long_steps = 0;       // whose batch was leased for longer than a lease lasts
  std::uint64_t mixed_samples = 0;    // trained, with tokens of several versions
  std::uint64_t stream_checks = 0;
  std::uint64_t commits_refused = 0;
  std::uint64_t appends_refused = 0;
  std::uint64_t loads_refused = 0;
  std::uint64_t workers_added = 0;
  std::uint64_t workers_drained = 0;
  std::uint64_t workers_removed = 0;
  std::uint64_t devices_joined = 0;
  std::uint64_t devices_left = 0;
  std::uint64_t late_requests = 0;   // that devices which joined were sent
  std::uint64_t quarantines = 0;     // of devices, while others were left
  std::uint64_t evaluations = 0;     // recorded
  bool all_evaluated = true;         // every evaluation that was due is committed
  std::uint64_t tokens_checked = 0;  // against the weights that their version names
  std::uint64_t rewards_checked = 0;
  std::uint64_t commits_checked = 0;
  std::uint64_t bests_checked = 0;  // commits with a best evaluation
};

/// Runs to the end. Reports a violation and stops if the run does not end within many events,
/// because then something waits forever.
[[nodiscard]] SimulationReport simulate(
    const SimulationOptions& options, const FaultOptions& faults,
    const std::shared_ptr<SimulatedDisk>& disk = make_simulated_disk());

/// The result of the plain loop.
struct PlainLoopEnd {
  std::uint64_t steps = 0;
  bool plateau = false;  // evaluations stopped getting better
  std::string weights_digest;
};

/// Runs the plain synchronous loop, with no actors and no stream, one step after another, until the
/// steps are done, the data ends or evaluations stop improving. `max_staleness` batches are
/// generated ahead, as `GenerationOrder::kFixed` defines.
[[nodiscard]] PlainLoopEnd run_plain_loop(const SimulationOptions& options);

/// Returns the value that an evaluation of the weights named by `base_digest` must have, or nothing
/// if no response can be scored.
[[nodiscard]] std::optional<double> simulated_evaluation(const SimulationOptions& options,
                                                         const std::string& base_digest);

}  // namespace tidemill::test
