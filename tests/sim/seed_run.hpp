// SPDX-License-Identifier: Apache-2.0
// Runs one seed of the simulation. A seed determines the run and its faults. The run's end is
// checked.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/sim/simulated_run.hpp"

namespace tidemill::test {

/// Counts of events and checks in runs, by name. They add up over seeds.
using SimulationCounts = std::map<std::string, std::uint64_t>;

/// Adds `more` to `counts`, name by name.
void add_counts(const SimulationCounts& more, SimulationCounts& counts);

/// Returns the counts as one line, "3 restarts, 17 steps, ...".
[[nodiscard]] std::string counts_text(const SimulationCounts& counts);

/// Returns the options of the run that a seed determines. Over many seeds, every feature is
/// combined with every fault.
[[nodiscard]] SimulationOptions options_of_seed(std::uint64_t seed);

/// Returns the faults that a seed determines.
[[nodiscard]] FaultOptions faults_of_seed(std::uint64_t seed);

/// The result of a seed.
struct SeedOutcome {
  std::vector<std::string> failures;  // each names the seed and how to replay it; empty: none
  SimulationCounts counts;
  /// Digest of what happened: events, ends, weights and record files. It changes if an actor sends
  /// other messages, or sends them in another order.
  std::string digest;
};

/// Runs a seed until its run has ended for good: a run that ended because of a full disk or a stop
/// is resumed. Reproducible runs are compared with the plain loop.
[[nodiscard]] SeedOutcome run_seed(std::uint64_t seed);

}  // namespace tidemill::test
