// SPDX-License-Identifier: Apache-2.0
#include "median_advantages.hpp"

#include <algorithm>
#include <vector>

namespace closeness {

tidemill::Status median_advantages(const tidemill::engines::GroupRewards<double>& samples,
                                   std::span<double> advantages) {
  std::vector<double> sorted(samples.rewards.begin(), samples.rewards.end());
  std::sort(sorted.begin(), sorted.end());
  const std::size_t half = sorted.size() / 2;
  const double median =
      sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
  for (std::size_t i = 0; i < advantages.size(); ++i) {
    advantages[i] = samples.rewards[i] - median;
  }
  return {};
}

}  // namespace closeness
