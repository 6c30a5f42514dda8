// SPDX-License-Identifier: Apache-2.0
// What a backward pass computes again instead of keeping it.
#pragma once

#include <array>
#include <cstdint>

namespace tidemill::engines {

/// Gradients have the same bits under every policy.
enum class Recompute : std::uint8_t {
  kNone,   // no product
  kCheap,  // gate and up, from the residual after attention
  kLayer,  // all of a layer, from its input
};

/// All policies; each takes less memory and more time than the one before.
inline constexpr std::array kRecomputes{Recompute::kNone, Recompute::kCheap, Recompute::kLayer};

/// Returns "none", "cheap" or "layer".
[[nodiscard]] const char* recompute_name(Recompute recompute) noexcept;

}  // namespace tidemill::engines
