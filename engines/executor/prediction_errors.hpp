// SPDX-License-Identifier: Apache-2.0
// The recent errors of predicted times.
#pragma once

#include <array>
#include <cstddef>

#include "base/clock.hpp"

namespace tidemill::engines {

/// Keeps the absolute errors of the last `kKept` predictions, relative to the measured times. An
/// error counts in proportion to the measured time, because that of a short unit delays nothing.
///
/// Threads: one call at a time.
class PredictionErrors {
public:
  /// Adds one prediction. Ignores measured times of 0.
  void add(Duration predicted, Duration measured);

  /// Returns the smallest error such that a share of `quantile` of the measured time was predicted
  /// with at most that error; 0 if there are no predictions. `quantile` is in [0, 1].
  [[nodiscard]] double quantile(double quantile) const;

  static constexpr std::size_t kKept = 512;

private:
  struct Error {
    double relative = 0.0;
    double seconds = 0.0;  // measured
  };

  std::array<Error, kKept> errors_{};
  std::size_t num_errors_ = 0;  // that are kept
  std::size_t next_ = 0;
};

}  // namespace tidemill::engines
