// SPDX-License-Identifier: Apache-2.0
// Which evaluation was the best, and when to stop looking for a better one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "actors/commit/run_commit.hpp"
#include "engines/snapshot.hpp"

namespace tidemill::actors {

/// Which of two evaluations is the better one.
enum class Better : std::uint8_t { kHigher, kLower };

/// What a trainer makes of evaluations.
struct BestOptions {
  bool keep = false;             // keeps the weights of the best one; the run ends with them
  std::uint32_t patience = 0;    // evaluations without a better one that end the run; 0: none does
  double min_improvement = 0.0;  // that makes one better, >= 0
  Better better = Better::kHigher;

  /// Whether the trainer waits for evaluations, so that each is of one set of weights.
  [[nodiscard]] bool watches() const noexcept { return keep || patience > 0; }
};

/// Takes in an evaluation of `weights` that gave `value`. Equal ones are not better: the earliest
/// of them stays.
void take_evaluation(const BestOptions& options, double value, const engines::Snapshot& weights,
                     std::optional<BestSoFar>& best);

/// Returns why the run should end now, or nothing.
[[nodiscard]] std::optional<std::string> plateau(const BestOptions& options,
                                                 const std::optional<BestSoFar>& best);

}  // namespace tidemill::actors
