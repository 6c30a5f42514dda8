// SPDX-License-Identifier: Apache-2.0
// The learning-rate schedule of a run.
#pragma once

#include <cstdint>

#include "base/status.hpp"

namespace tidemill::engines {

/// The factor of the peak rate after warm-up. p is the share of the steps after warm-up that are
/// complete. If `final_share` is above 0, the factor falls to that share instead of 0.
enum class LearningRateScheduleKind : std::uint8_t {
  kConstant,  // 1
  kLinear,    // 1 - p
  kCosine,    // (1 + cos(pi p)) / 2
};

/// Describes a learning-rate schedule.
struct LearningRateOptions {
  LearningRateScheduleKind kind = LearningRateScheduleKind::kConstant;
  double learning_rate = 1e-5;  // the peak
  std::int64_t warmup_steps = 0;
  /// The share of `learning_rate` at which linear and cosine schedules end, in [0, 1].
  double final_share = 0.0;
};

/// Checks that the options are in range.
/// Errors: `kInvalidArgument` naming the option.
[[nodiscard]] Status validate(const LearningRateOptions& options);

/// Returns the learning rate of optimizer step `step` of `total_steps`. Steps count from 1.
///
/// During warm-up the rate rises in equal increments and reaches the peak at the last warm-up step.
/// The next step has the peak rate too, and p would reach 1 only after the last step, so that no
/// step has a rate of 0. Steps beyond the total use the final rate.
/// Requires valid options and `step` >= 1.
[[nodiscard]] double learning_rate_at(const LearningRateOptions& options, std::int64_t step,
                                      std::int64_t total_steps);

}  // namespace tidemill::engines
