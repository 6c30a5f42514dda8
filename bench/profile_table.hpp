// SPDX-License-Identifier: Apache-2.0
// The profile of a figure's steps as a table.
#pragma once

#include <string>

#include "bench/engine_bench.hpp"

namespace tidemill::bench {

/// Returns a table with a line for each operation: name, calls, ms, share of the time, GFLOP/s,
/// GB/s, and share of the peak. The most expensive operation comes first. The last line says which
/// share of the steps the operations cover.
[[nodiscard]] std::string profile_table(const StepProfile& profile);

}  // namespace tidemill::bench
