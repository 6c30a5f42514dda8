// SPDX-License-Identifier: Apache-2.0
// Policies for which activations a backward pass recomputes.
#pragma once

#include <array>
#include <cstdint>

namespace tidemill::engines {

/// Says which products a backward pass recomputes. Every policy gives gradients with the same bits.
enum class Recompute : std::uint8_t {
  kNone,   // none
  kCheap,  // gate and up, from the residual after attention
  kLayer,  // those of the whole layer, from its input
};

/// All policies; each takes less memory and more time than the one before.
inline constexpr std::array kRecomputes{Recompute::kNone, Recompute::kCheap, Recompute::kLayer};

/// Returns "none", "cheap" or "layer".
[[nodiscard]] const char* recompute_name(Recompute recompute) noexcept;

}  // namespace tidemill::engines
