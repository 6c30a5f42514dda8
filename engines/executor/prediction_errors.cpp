// SPDX-License-Identifier: Apache-2.0
#include "engines/executor/prediction_errors.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

namespace tidemill::engines {

void PredictionErrors::add(Duration predicted, Duration measured) {
  if (measured <= Duration::zero()) {
    return;
  }
  const double seconds = std::chrono::duration<double>(measured).count();
  const double difference = std::chrono::duration<double>(predicted - measured).count();
  errors_[next_] = {std::abs(difference) / seconds, seconds};
  next_ = (next_ + 1) % kKept;
  num_errors_ = std::min(num_errors_ + 1, kKept);
}

double PredictionErrors::quantile(double quantile) const {
  std::vector<Error> sorted(errors_.begin(),
                            errors_.begin() + static_cast<std::ptrdiff_t>(num_errors_));
  std::ranges::sort(sorted, {}, &Error::relative);
  double total = 0.0;
  for (const Error& error : sorted) {
    total += error.seconds;
  }
  double passed = 0.0;
  for (const Error& error : sorted) {
    passed += error.seconds;
    if (passed >= quantile * total) {
      return error.relative;
    }
  }
  return sorted.empty() ? 0.0 : sorted.back().relative;
}

}  // namespace tidemill::engines
