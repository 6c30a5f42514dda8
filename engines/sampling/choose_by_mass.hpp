// SPDX-License-Identifier: Apache-2.0
// The inversion of a cumulative mass, by which every path of sampling chooses.
#pragma once

#include <cstddef>

namespace tidemill::engines {

/// Returns the index of the first of `count` masses at which the cumulative mass exceeds `left`,
/// and subtracts the masses before it from `left`. Masses of 0 are never chosen: if rounding
/// carries `left` past the end, returns the last index with a mass above 0. Returns 0 if there is
/// none. `mass_at(i)` returns the mass of index i.
template <class MassAt>
[[nodiscard]] std::size_t choose_by_mass(std::size_t count, MassAt mass_at, double& left) {
  std::size_t chosen = 0;
  double before_chosen = left;
  for (std::size_t i = 0; i < count; ++i) {
    const double mass = mass_at(i);
    if (mass > 0.0) {
      chosen = i;
      before_chosen = left;
      if (left < mass) {
        break;
      }
      left -= mass;
    }
  }
  left = before_chosen;
  return chosen;
}

}  // namespace tidemill::engines
