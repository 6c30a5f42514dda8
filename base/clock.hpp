// SPDX-License-Identifier: Apache-2.0
// Time as a dependency: code that waits or records times takes a `Clock`, so that a test can
// control time.
#pragma once

#include <chrono>

namespace tidemill {

/// A point on a clock that never goes back. Its origin has no meaning.
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, std::chrono::nanoseconds>;
using Duration = std::chrono::nanoseconds;

/// The source of time of a run. In a simulation, the clock of the test scheduler is the only one.
class Clock {
public:
  Clock() = default;
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;
  virtual ~Clock() = default;

  /// Returns the current time, which is never smaller than an earlier result.
  /// Threads: safe to call concurrently.
  [[nodiscard]] virtual TimePoint now() const = 0;
};

/// The machine's monotonic clock.
class SystemClock final : public Clock {
public:
  [[nodiscard]] TimePoint now() const override {
    return std::chrono::time_point_cast<Duration>(std::chrono::steady_clock::now());
  }
};

/// A clock that moves only when `advance` is called.
class ManualClock final : public Clock {
public:
  [[nodiscard]] TimePoint now() const override { return now_; }
  void advance(Duration by) { now_ += by; }

private:
  TimePoint now_{};
};

}  // namespace tidemill
