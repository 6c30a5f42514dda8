// SPDX-License-Identifier: Apache-2.0
// Distributes units of work over ranks so that the token sums of the ranks are close. Only tasks
// that declare ranks need it: those of a trainer over several processes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tidemill::storage {

/// Distributes N units over R ranks, N / R each. The largest unit comes first, and each unit goes
/// to the rank with the smallest sum that is not full. Ties go to the earlier unit and the lower
/// rank.
///
/// Shapes: `tokens` (N), N a multiple of R > 0; the result holds R lists of N / R indices into
/// `tokens`, each ascending.
/// Units: tokens.
/// Source: list scheduling by longest processing time, Graham 1969, with equal counts.
/// Cost: O(N log N).
/// Threads: pure function.
[[nodiscard]] std::vector<std::vector<std::uint32_t>> balance(std::span<const std::uint64_t> tokens,
                                                              std::uint32_t ranks);

}  // namespace tidemill::storage
