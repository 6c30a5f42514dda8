// SPDX-License-Identifier: Apache-2.0
// The inversion of a cumulative weight, by which every path of sampling chooses.
#pragma once

#include <cstddef>

namespace tidemill::engines {

/// Returns the index of the first of `count` weights at which the cumulative weight exceeds `left`,
/// and subtracts the weights before it from `left`. Weights of 0 are never chosen: if rounding
/// carries `left` past the end, returns the last index with a weight above 0. Returns 0 if there is
/// none. `weight_at(i)` returns the weight of index i.
template <class WeightAt>
[[nodiscard]] std::size_t choose_by_weight(std::size_t count, WeightAt weight_at, double& left) {
  std::size_t chosen = 0;
  double before_chosen = left;
  for (std::size_t i = 0; i < count; ++i) {
    const double weight = weight_at(i);
    if (weight > 0.0) {
      chosen = i;
      before_chosen = left;
      if (left < weight) {
        break;
      }
      left -= weight;
    }
  }
  left = before_chosen;
  return chosen;
}

}  // namespace tidemill::engines
