// SPDX-License-Identifier: Apache-2.0
// What an algorithm makes of rewards.
#pragma once

#include <span>

#include "engines/rl/algorithm_options.hpp"

namespace tidemill::engines {

/// Computes one advantage per sample as `algorithm` says.
/// Shapes: `advantages` (N).
/// Errors: as `grpo_advantages` and `rloo_advantages`.
template <class Real>
[[nodiscard]] Status algorithm_advantages(const Algorithm& algorithm,
                                          const GroupRewards<Real>& samples,
                                          std::span<Real> advantages);

}  // namespace tidemill::engines
