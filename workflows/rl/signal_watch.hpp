// SPDX-License-Identifier: Apache-2.0
// Warns if the rewards of a run teach nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "actors/recorder/messages.hpp"
#include "actors/recorder/spawn.hpp"

namespace tidemill::workflows {

/// The number of steps in a row without a signal after which the user is warned.
inline constexpr std::uint32_t kStepsWithoutSignal = 5;

/// Returns an observer that passes every record to `next`, which may be empty. If in
/// `kStepsWithoutSignal` trained steps in a row every group had equal rewards, it calls `log` with
/// one line that says so and names likely causes. It does so once.
[[nodiscard]] actors::RecordObserver watch_signal(actors::RecordObserver next,
                                                  std::function<void(const std::string&)> log);

}  // namespace tidemill::workflows
