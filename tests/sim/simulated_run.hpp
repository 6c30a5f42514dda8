// SPDX-License-Identifier: Apache-2.0
// A whole reinforcement-learning run in simulation: the real actors, replayed engines, virtual
// time, faults from a seed, and the invariants checked after every event.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/keeper/spawn.hpp"
#include "actors/trainer/best_weights.hpp"
#include "actors/trainer/messages.hpp"
#include "storage/stream/stream_options.hpp"

namespace tidemill::test {

/// What is run. Two runs with equal options but other fault seeds train the same data.
struct SimulationOptions {
  std::uint64_t data_seed = 1;
  std::uint64_t steps = 5;
  std::uint32_t groups_per_step = 3;
  std::uint32_t group_size = 3;
  std::uint64_t max_staleness = 0;
  actors::ScheduleKind schedule = actors::ScheduleKind::kFree;
  std::uint32_t rollout_workers = 2;
  std::uint32_t reward_workers = 1;
  std::vector<double> reward_weights;  // of the parts of a sum; empty: one reward
  std::uint64_t commit_every = 2;
  std::uint64_t eval_every = 0;
  actors::BestOptions best;        // of the evaluations
  std::uint64_t prompts = 7;       // rows of the data; passes repeat
  std::uint64_t data_groups = 0;   // draws before the data ends; 0: it never does
  std::uint64_t one_in_fails = 0;  // rewards that can never be computed
  bool filter = false;             // groups without signal leave untrained
  bool never_signal = false;       // and no group ever has one
  storage::OnFailedRow on_failed = storage::OnFailedRow::kDropGroup;
};

/// What goes wrong.
struct FaultOptions {
  std::uint64_t seed = 0;            // also of the scheduler's choices
  std::uint32_t kills = 0;           // actors killed, at random moments
  std::uint32_t failed_commits = 0;  // commits that the disk refuses, at random
  std::uint32_t failed_records = 0;  // appends to the record files that stop half-way, at random
  std::uint32_t full_from = 0;       // from this commit on the disk is full; 0: never
  std::uint64_t stop_at = 0;         // before this event somebody asks the run to stop; 0: nobody
};

/// What a run leaves behind: a run started with the disk of an earlier one resumes it.
struct SimulatedDisk;
[[nodiscard]] std::shared_ptr<SimulatedDisk> make_simulated_disk();

/// What came of it.
struct SimulationReport {
  std::vector<std::string> violations;  // of invariants; empty: all held
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
  std::uint64_t stream_checks = 0;
  std::uint64_t commits_refused = 0;
  std::uint64_t appends_refused = 0;
  std::uint64_t evaluations = 0;     // recorded
  bool all_evaluated = true;         // every step that was due, in the committed history
  std::uint64_t tokens_checked = 0;  // against the weights that their version names
  std::uint64_t rewards_checked = 0;
  std::uint64_t commits_checked = 0;
  std::uint64_t bests_checked = 0;  // commits that held a best evaluation
};

/// Runs to the end, or until too many events have passed (a violation: something waits for ever).
[[nodiscard]] SimulationReport simulate(
    const SimulationOptions& options, const FaultOptions& faults,
    const std::shared_ptr<SimulatedDisk>& disk = make_simulated_disk());

/// Where the plain loop ends.
struct PlainLoopEnd {
  std::uint64_t steps = 0;
  bool plateau = false;  // evaluations stopped getting better
  std::string weights_digest;
};

/// Runs the plain synchronous loop: no actors, no stream, one step after the other, until the steps
/// are done, the data ends or evaluations get no better. `max_staleness` batches are generated
/// ahead, as `ScheduleKind::kFixed` says.
[[nodiscard]] PlainLoopEnd run_plain_loop(const SimulationOptions& options);

/// Returns what an evaluation of the weights named by `base_digest` must give; nothing where no
/// answer can be scored.
[[nodiscard]] std::optional<double> simulated_evaluation(const SimulationOptions& options,
                                                         const std::string& base_digest);

}  // namespace tidemill::test
