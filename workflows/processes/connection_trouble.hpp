// SPDX-License-Identifier: Apache-2.0
// What keeps other processes from reaching the process of a run, and says so from time to time.
#pragma once

#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.hpp"
#include "base/status.hpp"

namespace tidemill::workflows {

/// The trouble that a process has with accepting connections. It tries again, so the trouble is
/// over once it has not been noted for `kOver`.
///
/// Threads: safe to call concurrently.
class ConnectionTrouble {
public:
  static constexpr Duration kOver = std::chrono::seconds(3);
  /// The time between two lines.
  static constexpr Duration kPause = std::chrono::minutes(1);

  /// `warn` takes lines for the user, which begin with `fact`, such as "the run cannot accept its
  /// worker processes". `clock` outlives the object.
  ConnectionTrouble(const Clock& clock, std::string fact,
                    std::function<void(const std::string&)> warn)
      : clock_(clock), fact_(std::move(fact)), warn_(std::move(warn)) {}

  /// Notes that a connection could not be accepted because of `why`.
  void note(const Status& why);
  /// Returns the trouble if it has lasted for `at_least`, otherwise success.
  [[nodiscard]] Status lasting(Duration at_least) const;

private:
  const Clock& clock_;
  const std::string fact_;
  const std::function<void(const std::string&)> warn_;
  mutable std::mutex mutex_;  // of all below
  Status why_;
  TimePoint since_;
  TimePoint last_;
  std::optional<TimePoint> told_;
};

}  // namespace tidemill::workflows
