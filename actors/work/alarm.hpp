// SPDX-License-Identifier: Apache-2.0
// One timer for all deadlines of an actor.
#pragma once

#include <optional>

#include <caf/all.hpp>

#include "actors/atoms.hpp"
#include "base/clock.hpp"

namespace tidemill::actors {

/// Sends its actor `atom::wake` when the earliest of the actor's deadlines is due.
///
/// CAF cannot cancel a delayed message. A timer for each deadline would therefore stay with the
/// clock until the deadline passes, even if the actor replied long before. The alarm sets one timer
/// at a time, and another only for a deadline that is earlier than all others.
/// Threads: called by its actor.
class Alarm {
public:
  /// Sets a timer for `due`, unless `due` is empty or an earlier timer is set.
  template <class Self>
  void set(Self self, const std::optional<TimePoint>& due) {
    if (!due.has_value() || (due_.has_value() && *due_ <= *due)) {
      return;
    }
    due_ = due;
    self->delayed_send(self, *due - TimePoint{self->clock().now()}, atom::wake_v);
  }

  /// Returns whether the timer is due at `now`, and clears it if so. When an actor receives
  /// `atom::wake`, it calls `take`, settles what is due, and calls `set`.
  [[nodiscard]] bool take(TimePoint now) {
    if (!due_.has_value() || *due_ > now) {
      return false;
    }
    due_.reset();
    return true;
  }

private:
  std::optional<TimePoint> due_;
};

/// Returns the earlier of two deadlines, either of which may be absent.
[[nodiscard]] inline std::optional<TimePoint> earlier(const std::optional<TimePoint>& a,
                                                      const std::optional<TimePoint>& b) {
  return !a.has_value() || (b.has_value() && *b < *a) ? b : a;
}

}  // namespace tidemill::actors
