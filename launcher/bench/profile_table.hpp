// SPDX-License-Identifier: Apache-2.0
// The profile of a figure's steps as a table.
#pragma once

#include <string>

#include "launcher/bench/engine_bench.hpp"

namespace tidemill::launcher {

/// Returns lines "operation, calls, ms, share, GFLOP/s, GB/s, of the peaks", the dearest first, and
/// what share of the steps they cover.
[[nodiscard]] std::string profile_table(const StepProfile& profile);

}  // namespace tidemill::launcher
