// SPDX-License-Identifier: Apache-2.0
// Decides how much time training gets beside generation that has a latency goal.
#pragma once

#include "base/clock.hpp"
#include "engines/executor/executor_options.hpp"
#include "engines/step.hpp"

namespace tidemill::engines {

/// Plans the time of iterations: a rollout step first, then training for as long as `quota` says.
///
/// The policy has three parts:
/// - During prefill, or while requests wait, training pauses unless it is owed more than
///   `kOwedForPrefill`. A burst of requests then waits for no more than the unit that runs.
/// - During decoding, training adds at most 25% to each iteration unless it is owed time.
/// - Training that got less than `LatencyGoal::train_share` of the time is owed the difference. The
///   more it is owed, the more of the time that the goal leaves it gets, up to all of it.
/// `Executor` also runs one unit per `Executor::kMaxPause`, whatever `quota` says.
/// Threads: one call at a time.
class TimeShares {
public:
  explicit TimeShares(const LatencyGoal& goal) : goal_(goal) {}

  /// Reports that `passed` has passed since the last call, of which training used `trained`, while
  /// there was training to do.
  void add(Duration passed, Duration trained);
  /// Reports that there is no training to do: nothing is owed then.
  void reset() noexcept { owed_ = Duration::zero(); }

  /// Returns how long training may run after a rollout step that took `spent`.
  [[nodiscard]] Duration quota(const StepReport& report, Duration spent) const;

  /// Returns how long a rollout step may take while sequences are being decoded.
  [[nodiscard]] Duration iteration_limit() const noexcept;

  /// The time that training is owed; negative if it is ahead.
  [[nodiscard]] Duration owed() const noexcept { return owed_; }

  /// The bounds of `owed`: time beyond them does not count.
  static constexpr Duration kMaxOwed = std::chrono::seconds(4);
  static constexpr Duration kMaxAhead = std::chrono::seconds(3);
  /// When training is owed this much, decoding leaves it all the time that the goal allows.
  static constexpr Duration kOwedForFullDecode = std::chrono::seconds(1);
  /// Training that is owed more than this also runs while prompts are computed, and gets all the
  /// time that the goal allows once it is owed `kMaxOwed`.
  static constexpr Duration kOwedForPrefill = std::chrono::seconds(2);

private:
  LatencyGoal goal_;
  Duration owed_{0};
};

}  // namespace tidemill::engines
