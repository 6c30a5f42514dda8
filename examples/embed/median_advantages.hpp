// SPDX-License-Identifier: Apache-2.0
// An algorithm of the program's own: its part that is not in Tidemill's table, a pure function.
#pragma once

#include <span>
#include <tidemill/engines/rl/algorithm_options.hpp>

namespace closeness {

/// Computes `A[i] = r[i] - median(r)` over one group: one sample far off moves nobody else.
///
/// Shapes: `samples` (G), `advantages` (G).
[[nodiscard]] tidemill::Status median_advantages(
    const tidemill::engines::GroupRewards<double>& samples, std::span<double> advantages);

}  // namespace closeness
