// SPDX-License-Identifier: Apache-2.0
#include "actors/trainer/best_weights.hpp"

#include <cstdio>

namespace tidemill::actors {

void take_evaluation(const BestOptions& options, double value, const engines::Snapshot& weights,
                     std::optional<BestSoFar>& best) {
  if (best.has_value()) {
    const bool better = options.better == Better::kHigher
                            ? value > best->value + options.min_improvement
                            : value < best->value - options.min_improvement;
    if (!better) {
      ++best->num_worse;
      return;
    }
  }
  best = BestSoFar{value, weights.version.step, 0, {}};
  if (options.keep) {
    best->weights = weights;
  }
}

std::optional<std::string> plateau(const BestOptions& options,
                                   const std::optional<BestSoFar>& best) {
  if (options.patience == 0 || !best.has_value() || best->num_worse < options.patience) {
    return std::nullopt;
  }
  char value[32];
  std::snprintf(value, sizeof value, "%.6g", best->value);
  return "no evaluation since step " + std::to_string(best->step) + " was better than " + value +
         " (" + std::to_string(best->num_worse) + " in a row)";
}

}  // namespace tidemill::actors
