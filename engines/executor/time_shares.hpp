// SPDX-License-Identifier: Apache-2.0
// Decides how much time training gets while rollout has a latency goal.
#pragma once

#include "base/clock.hpp"
#include "engines/executor/executor_options.hpp"
#include "engines/step.hpp"

namespace tidemill::engines {

/// Plans the time of iterations: a rollout step first, then training for as long as `quota` says.
///
/// The policy has three parts:
/// - While prompts are computed or requests wait, training pauses unless it is owed more than
///   `kOwedForPrefill`. So a burst of requests usually waits only for the unit in progress.
/// - During decoding, training adds at most 25% to each iteration unless it is owed time.
/// - Training that got less than `LatencyGoal::train_share` of the time is owed the difference. As
///   this debt grows, training gets a larger part of the time that the goal leaves, and finally all
///   of it.
/// `Executor` also trains at least once per `Executor::kMaxPause`, whatever `quota` says.
/// Threads: one call at a time.
class TimeShares {
public:
  explicit TimeShares(const LatencyGoal& goal) : goal_(goal) {}

  /// Records the time since the last call, and how much of it training used. Call it only for time
  /// in which training had work.
  void record(Duration passed, Duration trained);
  /// Sets `owed` to 0. Call it after a period longer than `Executor::kMaxGap` without training
  /// work.
  void reset() noexcept { owed_ = Duration::zero(); }

  /// Returns how long training may run after the rollout step that `report` describes and that took
  /// `spent`; 0 if training must pause. `limit` is the planned time of the iteration.
  [[nodiscard]] Duration quota(const StepReport& report, Duration spent, Duration limit) const;

  /// Returns the planned time of an iteration, rollout and training together. If the
  /// iteration decodes, this is 90% of `LatencyGoal::per_token`; the rest covers the time outside
  /// the device. Otherwise, it is an eighth of `LatencyGoal::first_token`.
  [[nodiscard]] Duration iteration_limit(bool decodes) const noexcept;

  /// Returns how much of `limit` a rollout step may plan for prompts: all of it, unless training is
  /// owed more than `kOwedForPrefill`. At `kMaxOwed`, 40% are left to training, and `quota` is at
  /// least a tenth of the time that the step took.
  [[nodiscard]] Duration prefill_limit(Duration limit) const noexcept;

  /// The time that training is owed; negative if it is ahead.
  [[nodiscard]] Duration owed() const noexcept { return owed_; }

  /// The bounds of `owed`: time beyond them does not count.
  static constexpr Duration kMaxOwed = std::chrono::seconds(4);
  static constexpr Duration kMaxAhead = std::chrono::seconds(3);
  /// From this debt on, training gets all the time that the goal leaves during decoding.
  static constexpr Duration kOwedForFullDecode = std::chrono::seconds(1);
  /// Above this debt, training also runs during prefill. Its part of the time that the goal leaves
  /// grows linearly and reaches all of it at `kMaxOwed`.
  static constexpr Duration kOwedForPrefill = std::chrono::seconds(2);

private:
  // What training is owed beyond `kOwedForPrefill`, from 0 to 1 at `kMaxOwed`.
  [[nodiscard]] double prefill_debt() const noexcept;

  LatencyGoal goal_;
  Duration owed_{0};
};

}  // namespace tidemill::engines
