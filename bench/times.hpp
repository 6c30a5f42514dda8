// SPDX-License-Identifier: Apache-2.0
// Times of the figures.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

namespace tidemill::bench {

[[nodiscard]] inline double elapsed_seconds(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Returns the value below which a share in [0, 1] of the values lies. Requires a value.
[[nodiscard]] inline double quantile_of_unsorted(std::vector<double> values, double share) {
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
}

/// Returns the middle value, or the upper one of two. Requires a value.
[[nodiscard]] inline double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace tidemill::bench
