// SPDX-License-Identifier: Apache-2.0
#include "engines/executor/prediction_errors.hpp"

#include <algorithm>
#include <cmath>

namespace tidemill::engines {

void PredictionErrors::add(Duration predicted, Duration measured) {
  if (measured <= Duration::zero()) {
    return;
  }
  const auto difference = static_cast<double>((predicted - measured).count());
  errors_[next_] = static_cast<float>(std::abs(difference) / static_cast<double>(measured.count()));
  next_ = (next_ + 1) % kKept;
  num_errors_ = std::min(num_errors_ + 1, kKept);
}

double PredictionErrors::quantile(double quantile) const {
  if (num_errors_ == 0) {
    return 0.0;
  }
  std::array<float, kKept> sorted = errors_;
  const auto end = sorted.begin() + static_cast<std::ptrdiff_t>(num_errors_);
  const auto rank = static_cast<std::ptrdiff_t>(quantile * static_cast<double>(num_errors_ - 1));
  std::nth_element(sorted.begin(), sorted.begin() + rank, end);
  return sorted[static_cast<std::size_t>(rank)];
}

}  // namespace tidemill::engines
