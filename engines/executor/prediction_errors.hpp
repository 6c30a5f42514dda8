// SPDX-License-Identifier: Apache-2.0
// The recent errors of predicted times.
#pragma once

#include <array>
#include <cstddef>

#include "base/clock.hpp"

namespace tidemill::engines {

/// Keeps the absolute errors of the last `kKept` predictions, relative to the measured times.
///
/// Threads: one call at a time.
class PredictionErrors {
public:
  /// Adds one prediction. Ignores measured times of 0.
  void add(Duration predicted, Duration measured);

  /// Returns the error that a share of `quantile` of the kept ones does not exceed; 0 if there are
  /// none. `quantile` is in [0, 1].
  [[nodiscard]] double quantile(double quantile) const;

  static constexpr std::size_t kKept = 512;

private:
  std::array<float, kKept> errors_{};
  std::size_t num_errors_ = 0;  // that are kept
  std::size_t next_ = 0;
};

}  // namespace tidemill::engines
