// SPDX-License-Identifier: Apache-2.0
// What one iteration of an engine may do, and what it did.
#pragma once

#include <cstdint>

#include "base/clock.hpp"

namespace tidemill::engines {

/// The most work one call of `step` may do.
struct StepBudget {
  std::int64_t tokens = 2048;
};

/// What a call of `step` did.
struct StepReport {
  std::int64_t prefill_tokens = 0;
  std::int64_t decode_tokens = 0;
  std::int64_t train_tokens = 0;
  /// Zero for engines that compute. The `replay` engine returns the virtual time the step takes;
  /// its results count as produced when that time has passed.
  Duration virtual_duration{0};
  /// Whether anything is left to do.
  bool more = false;
};

}  // namespace tidemill::engines
