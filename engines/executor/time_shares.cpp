// SPDX-License-Identifier: Apache-2.0
#include "engines/executor/time_shares.hpp"

#include <algorithm>
#include <chrono>

namespace tidemill::engines {
namespace {

// The share of the goal that iterations use. The rest is for the time outside the device.
constexpr double kUsedGoal = 0.9;
// How much training extends a rollout step that decodes if it is owed nothing.
constexpr double kLightShare = 0.25;
// The part of an iteration that prompts leave to training if it is owed the most.
constexpr double kMaxPrefillShare = 0.4;
// The part of the time of a prefill that training then gets in any case: the smallest chunk of a
// prompt may take longer than an iteration should.
constexpr double kMinPrefillShare = 0.1;
// While nothing decodes, an iteration is planned to take at most the goal for first tokens, divided
// by this, so that the first of many prompts need not wait for the last.
constexpr int kChunksInGoal = 8;

Duration scaled(Duration time, double factor) {
  return std::chrono::duration_cast<Duration>(time * factor);
}

double share_of(Duration part, Duration whole) {
  const double share =
      std::chrono::duration<double>(part).count() / std::chrono::duration<double>(whole).count();
  return std::clamp(share, 0.0, 1.0);
}

}  // namespace

void TimeShares::record(Duration passed, Duration trained) {
  owed_ = std::clamp(owed_ + scaled(passed, goal_.train_share) - trained, -kMaxAhead, kMaxOwed);
}

Duration TimeShares::iteration_limit(bool decodes) const noexcept {
  return decodes ? scaled(goal_.per_token, kUsedGoal) : goal_.first_token / kChunksInGoal;
}

double TimeShares::prefill_debt() const noexcept {
  return share_of(owed_ - kOwedForPrefill, kMaxOwed - kOwedForPrefill);
}

Duration TimeShares::prefill_limit(Duration limit) const noexcept {
  return scaled(limit, 1.0 - kMaxPrefillShare * prefill_debt());
}

Duration TimeShares::quota(const StepReport& report, Duration spent, Duration limit) const {
  const Duration most = std::max(Duration::zero(), limit - spent);
  if (report.prefill_tokens > 0 || report.waiting > 0) {
    return scaled(std::max(most, scaled(spent, kMinPrefillShare)), prefill_debt());
  }
  const Duration light = std::min(most, scaled(spent, kLightShare));
  return light + scaled(most - light, share_of(owed_, kOwedForFullDecode));
}

}  // namespace tidemill::engines
