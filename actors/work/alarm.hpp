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
/// A delayed message cannot be withdrawn, so a timer for each deadline would stay with the clock
/// until the deadline has passed, even if the actor has long replied. The alarm has one timer at a
/// time; a second one only if a deadline comes that is earlier than all others.
/// Threads: called by its actor.
class Alarm {
public:
  /// Sets a timer for `due` unless one is set that is not later. No timer if there is no deadline.
  template <class Self>
  void set(Self self, const std::optional<TimePoint>& due) {
    if (!due.has_value() || (due_.has_value() && *due_ <= *due)) {
      return;
    }
    due_ = due;
    self->delayed_send(self, *due - TimePoint{self->clock().now()}, atom::wake_v);
  }

  /// Returns whether the timer is due at `now`, and forgets it if so. An actor calls it when it
  /// receives `atom::wake`, then settles what is due, then calls `set`.
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
