// SPDX-License-Identifier: Apache-2.0
#include "engines/rl/moments.hpp"

#include <algorithm>

namespace tidemill::engines {

Moments moments_of(std::span<const double> values, int ddof) {
  Moments moments;
  if (values.empty()) {
    return moments;
  }
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  if (*low == *high) {
    moments.mean = *low;
    return moments;
  }
  moments.constant = false;
  const auto count = static_cast<double>(values.size());
  double sum = 0.0;
  for (const double value : values) {
    sum += value;
  }
  moments.mean = sum / count;
  double squares = 0.0;
  for (const double value : values) {
    squares += (value - moments.mean) * (value - moments.mean);
  }
  moments.variance = squares / (count - ddof);
  return moments;
}

}  // namespace tidemill::engines
