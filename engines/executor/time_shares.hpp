// SPDX-License-Identifier: Apache-2.0
// Decides how much time training gets beside generation that has a latency goal.
#pragma once

#include "base/clock.hpp"
#include "engines/executor/executor_options.hpp"
#include "engines/step.hpp"

namespace tidemill::engines {

/// Plans the time of iterations: generation first, then training for as long as `quota` says.
///
/// The policy has three parts:
/// - While prompts are waiting or being computed, training pauses, so that a burst of requests
///   waits for no more than the unit that runs.
/// - While responses are being decoded, training extends each iteration by at most half of its
///   time. That keeps the time per token within 1.5 times that without training.
/// - Training that got less than `LatencyGoal::train_share` of the time is owed the difference. The
///   more it is owed, the more of the time that the goal leaves it gets, up to all of it.
/// Threads: one call at a time.
class TimeShares {
public:
  explicit TimeShares(const LatencyGoal& goal) : goal_(goal) {}

  /// Reports that `passed` has passed since the last call, of which training used `trained`, while
  /// there was training to do.
  void add(Duration passed, Duration trained);
  /// Reports that there is no training to do: nothing is owed then.
  void reset() noexcept { owed_ = Duration::zero(); }

  /// Returns how long training may run after an iteration of generation that took `spent`.
  [[nodiscard]] Duration quota(const StepReport& report, Duration spent) const;

  /// Returns how long an iteration of generation may take while sequences are being decoded.
  [[nodiscard]] Duration iteration_limit() const noexcept;

  /// The time that training is owed; negative if it is ahead.
  [[nodiscard]] Duration owed() const noexcept { return owed_; }

  /// The bounds of `owed`. What exceeds them is forgotten.
  static constexpr Duration kMostOwed = std::chrono::seconds(6);
  static constexpr Duration kMostAhead = std::chrono::seconds(1);
  /// When training is owed this much, decoding leaves it all the time that the goal allows.
  static constexpr Duration kFillsDecoding = std::chrono::seconds(1);
  /// Training that is owed more than this also runs while prompts are computed, and gets all the
  /// time that the goal allows once it is owed `kMostOwed`.
  static constexpr Duration kDelaysPrompts = std::chrono::seconds(3);

private:
  LatencyGoal goal_;
  Duration owed_{0};
};

}  // namespace tidemill::engines
