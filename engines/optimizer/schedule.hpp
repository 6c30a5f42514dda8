// SPDX-License-Identifier: Apache-2.0
// How the learning rate moves over a run.
#pragma once

#include <cstdint>

#include "base/status.hpp"

namespace tidemill::engines {

/// The factor of the learning rate after warm-up; p is the share of the steps after warm-up that
/// have been taken.
enum class ScheduleKind : std::uint8_t {
  kConstant,  // 1
  kLinear,    // 1 - p
  kCosine,    // (1 + cos(pi p)) / 2
};

struct ScheduleOptions {
  ScheduleKind kind = ScheduleKind::kConstant;
  double learning_rate = 1e-5;  // the highest one
  std::int64_t warmup_steps = 0;
  /// The share of `learning_rate` that linear and cosine schedules end at, in [0, 1].
  double final_share = 0.0;
};

/// Checks ranges.
/// Errors: `kInvalidArgument` naming the option.
[[nodiscard]] Status validate(const ScheduleOptions& options);

/// Returns the learning rate of one optimizer step of `total_steps`. Steps count from 1.
///
/// Warm-up rises by equal parts and reaches the full rate at its last step. The step after it has
/// the full rate too, and p reaches 1 only behind the last step, so that no step is wasted on a
/// rate of 0. Steps beyond the total keep the final rate.
/// Requires valid options and `step` >= 1.
[[nodiscard]] double learning_rate_at(const ScheduleOptions& options, std::int64_t step,
                                      std::int64_t total_steps);

}  // namespace tidemill::engines
