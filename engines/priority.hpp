// SPDX-License-Identifier: Apache-2.0
// The priorities of requests.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tidemill::engines {

/// How urgent a request is. A request waits for all that are more urgent, and gives its pages up
/// for them.
enum class Priority : std::uint8_t {
  kBackground,  // below every client: the rollouts of jobs that share a server's device
  kLow,
  kNormal,
  kHigh,
};

/// The number of priorities.
inline constexpr std::size_t kNumPriorities = 4;

/// Returns the index of a priority, from 0 for `kBackground`.
[[nodiscard]] constexpr std::size_t index_of(Priority priority) noexcept {
  return static_cast<std::size_t>(priority);
}

}  // namespace tidemill::engines
