// SPDX-License-Identifier: Apache-2.0
// Keeps track of the best evaluation, and decides when a run has stopped improving.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "actors/commit/run_commit.hpp"
#include "engines/snapshot.hpp"

namespace tidemill::actors {

/// Which value makes an evaluation better.
enum class Better : std::uint8_t { kHigher, kLower };

/// How a trainer uses evaluations.
struct BestOptions {
  bool keep = false;             // keep the weights of the best one: the run ends with them
  std::uint32_t patience = 0;    // evaluations without improvement that end the run; 0: off
  double min_improvement = 0.0;  // by which a better one must differ, >= 0
  Better better = Better::kHigher;

  /// Returns whether the trainer looks for the best evaluation. It then waits for each evaluation,
  /// so that each is of one set of weights.
  [[nodiscard]] bool enabled() const noexcept { return keep || patience > 0; }
};

/// Updates `best` with an evaluation of `weights` that gave `value`. An equal evaluation is not
/// better: the earliest one stays the best.
void take_evaluation(const BestOptions& options, double value, const engines::Snapshot& weights,
                     std::optional<BestSoFar>& best);

/// Returns why the run should end now, or nothing.
[[nodiscard]] std::optional<std::string> plateau(const BestOptions& options,
                                                 const std::optional<BestSoFar>& best);

}  // namespace tidemill::actors
