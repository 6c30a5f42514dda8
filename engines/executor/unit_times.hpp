// SPDX-License-Identifier: Apache-2.0
// Predicts how long the units of training jobs take, from the times of earlier units of their kind.
#pragma once

#include <cstdint>
#include <map>

#include "base/clock.hpp"
#include "engines/step.hpp"

namespace tidemill::engines {

/// The predicted time of a unit.
struct UnitTime {
  Duration expected{0};  // the mean of earlier ones
  Duration bound{0};     // the mean plus two mean deviations, which few units exceed
};

/// Learns the times of units by kind. Kinds whose spans round up to the same power of two count as
/// one.
///
/// Threads: one call at a time.
class UnitTimes {
public:
  /// Adds the time that a unit took. The weight of earlier times decays by an eighth.
  void add(const UnitKind& kind, Duration spent);

  /// Returns the time of a unit. For a kind that was not seen, returns the largest times of the
  /// kinds with the same stage and part, each scaled by the ratio of the rows. If there is none,
  /// returns the longest times of all kinds; 0 before the first `add`.
  [[nodiscard]] UnitTime predict(const UnitKind& kind) const;

private:
  struct Times {
    double mean = 0.0;       // seconds
    double deviation = 0.0;  // mean absolute deviation, seconds
  };

  // Bounds memory if kinds keep changing, as with batches of ever new lengths. When it is reached,
  // all times are forgotten.
  static constexpr std::size_t kMaxKinds = 4096;

  std::map<UnitKind, Times> times_;
};

}  // namespace tidemill::engines
