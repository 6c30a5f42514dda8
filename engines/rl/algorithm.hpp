// SPDX-License-Identifier: Apache-2.0
// Turns rewards into advantages with a given algorithm.
#pragma once

#include <span>

#include "engines/rl/algorithm_options.hpp"

namespace tidemill::engines {

/// Computes one advantage per sample with `algorithm.advantage`.
/// Shapes: `advantages` (N).
/// Errors: those of `grpo_advantages` and `rloo_advantages`.
template <class Real>
[[nodiscard]] Status algorithm_advantages(const Algorithm& algorithm,
                                          const GroupRewards<Real>& samples,
                                          std::span<Real> advantages);

}  // namespace tidemill::engines
