// SPDX-License-Identifier: Apache-2.0
// One seed of the simulation: the run and the faults that it stands for, and what must be true of
// how it ends.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/sim/simulated_run.hpp"

namespace tidemill::test {

/// What runs did and what happened to them, by name; sums add up over seeds.
using SimulationCounts = std::map<std::string, std::uint64_t>;

/// Adds `more` to `counts`, name by name.
void add_counts(const SimulationCounts& more, SimulationCounts& counts);

/// Returns the counts as one line, "3 restarts, 17 steps, ...".
[[nodiscard]] std::string counts_text(const SimulationCounts& counts);

/// The run that a seed stands for. Every feature meets every fault as seeds go by.
[[nodiscard]] SimulationOptions options_of_seed(std::uint64_t seed);

/// What goes wrong in it.
[[nodiscard]] FaultOptions faults_of_seed(std::uint64_t seed);

/// What came of a seed.
struct SeedOutcome {
  std::vector<std::string> failures;  // each naming the seed and how to replay it; empty: all held
  SimulationCounts counts;
};

/// Runs a seed until its run has really ended: one that a full disk or a request stopped is
/// resumed. Reproducible runs are held against the plain loop.
[[nodiscard]] SeedOutcome run_seed(std::uint64_t seed);

}  // namespace tidemill::test
