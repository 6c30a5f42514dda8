// SPDX-License-Identifier: Apache-2.0
#include "engines/optimizer/learning_rate.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.hpp"

namespace tidemill::engines {

Status validate(const LearningRateOptions& options) {
  if (!std::isfinite(options.learning_rate) || options.learning_rate < 0.0) {
    return invalid_argument("learning_rate must be finite and at least 0");
  }
  if (options.warmup_steps < 0) {
    return invalid_argument("warmup_steps must be at least 0");
  }
  if (!(options.final_share >= 0.0 && options.final_share <= 1.0)) {
    return invalid_argument("final_share must be in [0, 1]");
  }
  return {};
}

double learning_rate_at(const LearningRateOptions& options, std::int64_t step,
                        std::int64_t total_steps) {
  TIDEMILL_CHECK(step >= 1) << step;
  if (step <= options.warmup_steps) {
    return options.learning_rate *
           (static_cast<double>(step) / static_cast<double>(options.warmup_steps));
  }
  const std::int64_t taken = step - 1 - options.warmup_steps;
  const std::int64_t left = total_steps - options.warmup_steps;
  const double progress =
      left > 0 ? std::min(1.0, static_cast<double>(taken) / static_cast<double>(left)) : 1.0;
  double factor = 1.0;
  switch (options.kind) {
    case LearningRateScheduleKind::kConstant: return options.learning_rate;
    case LearningRateScheduleKind::kLinear: factor = 1.0 - progress; break;
    case LearningRateScheduleKind::kCosine:
      factor = 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
      break;
  }
  return options.learning_rate * (options.final_share + (1.0 - options.final_share) * factor);
}

}  // namespace tidemill::engines
