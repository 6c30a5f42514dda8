// SPDX-License-Identifier: Apache-2.0
// Mean and standard deviation with an honest answer for values that do not vary.
#pragma once

#include <span>

namespace tidemill::engines {

/// Mean and spread of some values.
struct Moments {
  double mean = 0.0;
  double variance = 0.0;
  /// No two values differ (or there are fewer than two). Decided on the values, not on a computed
  /// deviation: seven times 0.1 has a mean that is one ulp off, and dividing that by a deviation
  /// of the same size would make numbers of order one out of noise.
  bool constant = true;
};

/// Computes `mean = sum x / n` and `variance = sum (x - mean)^2 / (n - ddof)`, both in index order.
/// Constant values give their own value as mean and variance 0. `ddof` is 0 or 1.
[[nodiscard]] Moments moments_of(std::span<const double> values, int ddof);

}  // namespace tidemill::engines
