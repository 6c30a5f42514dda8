// SPDX-License-Identifier: Apache-2.0
// Deals units of work to ranks so that their token sums come out close.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tidemill::storage {

/// Deals N units to R ranks, N / R each: the largest first, each to the rank with the smallest sum
/// that still takes one; ties go to the earlier unit and to the lower rank.
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
