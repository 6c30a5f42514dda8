// SPDX-License-Identifier: Apache-2.0
// Mean and variance, with an exact test for values that do not vary.
#pragma once

#include <span>

namespace tidemill::engines {

/// Mean and variance of a sequence of values.
struct Moments {
  double mean = 0.0;
  double variance = 0.0;
  /// True if no two values differ, which includes fewer than two values. The test compares the
  /// values and not a computed deviation. The computed mean of seven values of 0.1 is one ulp off,
  /// and dividing that error by a deviation of the same size would turn noise into values of order
  /// one.
  bool constant = true;
};

/// Computes `mean = sum x / n` and `variance = sum (x - mean)^2 / (n - ddof)`, both in index order.
/// The mean of constant values is exactly that value, and their variance is 0. `ddof` is 0 or 1.
[[nodiscard]] Moments moments_of(std::span<const double> values, int ddof);

}  // namespace tidemill::engines
