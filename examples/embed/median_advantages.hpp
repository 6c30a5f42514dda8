// SPDX-License-Identifier: Apache-2.0
// The program's own algorithm: a pure function that computes its advantages.
#pragma once

#include <span>
#include <tidemill/engines/rl/algorithm_options.hpp>

namespace closeness {

/// Computes `A[i] = r[i] - median(r)` over one group, so that a single outlier does not affect the
/// other samples.
///
/// Shapes: `samples` (G), `advantages` (G).
[[nodiscard]] tidemill::Status median_advantages(
    const tidemill::engines::GroupRewards<double>& samples, std::span<double> advantages);

}  // namespace closeness
