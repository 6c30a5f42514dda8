// SPDX-License-Identifier: Apache-2.0
// How rollout and training share a device.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>

#include "base/clock.hpp"

namespace tidemill::engines {

/// Whether rollout or training gets the next iteration if both have work.
enum class Precedence : std::uint8_t {
  kShares,   // the one that is behind its share of tokens
  kRollout,  // rollout, until it has no work
  kTrain,    // training, until it has no work
};

/// How long requests may take, and how much of the time training should get.
struct LatencyGoal {
  /// From the submission of the request to its first token.
  Duration first_token = std::chrono::seconds(2);
  Duration per_token = std::chrono::milliseconds(100);  // between two tokens of a response
  /// The share of the device's time that training gets if the goal leaves it that much, in [0, 1).
  double train_share = 0.8;
};

/// How rollout and training divide the time of a device.
struct ExecutorOptions {
  /// The maximum number of tokens of one rollout iteration and of one training iteration.
  std::int64_t rollout_tokens = 2048;
  std::int64_t train_tokens = 4096;
  /// The maximum number of `rollout_tokens` in prefill chunks.
  std::int64_t prefill_tokens = std::numeric_limits<std::int64_t>::max();
  Precedence precedence = Precedence::kShares;
  /// The shares: `train_weight` tokens of training for every `rollout_weight` tokens of rollout.
  /// Both must be greater than 0.
  double rollout_weight = 1.0;
  double train_weight = 1.0;
  /// If set, generation comes first and training gets the time that the goal leaves, unit by unit.
  /// Shares of tokens and `precedence` do not apply then.
  std::optional<LatencyGoal> goal;
};

}  // namespace tidemill::engines
