// SPDX-License-Identifier: Apache-2.0
// What one iteration of an engine may do, and what it did.
#pragma once

#include <cstdint>
#include <limits>

#include "base/clock.hpp"

namespace tidemill::engines {

/// The most work one call of `step` may do.
struct StepBudget {
  std::int64_t tokens = 2048;
  /// Of those, the most in prefill chunks: what bounds how long a long prompt holds up the tokens
  /// of others. At least one is computed.
  std::int64_t prefill_tokens = std::numeric_limits<std::int64_t>::max();
};

/// What a call of `step` did.
struct StepReport {
  std::int64_t prefill_tokens = 0;  // computed: of prompts, and again of preempted sequences
  std::int64_t decode_tokens = 0;   // computed, one of each sequence
  std::int64_t cached_tokens = 0;   // of sequences that started: found computed, so not prefilled
  std::int64_t preemptions = 0;     // sequences that had to give their pages back, since the last
  double kv_use = 0.0;              // share of the cache's pages that sequences hold, 0 to 1
  std::int64_t train_tokens = 0;
  /// Zero for engines that compute. The `replay` engine returns the virtual time the step takes;
  /// its results count as produced when that time has passed.
  Duration virtual_duration{0};
  /// Whether anything is left to do.
  bool more = false;
};

}  // namespace tidemill::engines
