// SPDX-License-Identifier: Apache-2.0
// Warns if the rewards of a run carry no signal.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "actors/recorder/messages.hpp"
#include "actors/recorder/spawn.hpp"

namespace tidemill::workflows {

/// The number of steps in a row without a signal after which the user is warned.
inline constexpr std::uint32_t kStepsWithoutSignal = 5;

/// Returns an observer that passes every record to `next`, which may be empty. If every group had
/// equal rewards in `kStepsWithoutSignal` trained steps in a row, it calls `log`, once, with a line
/// that says so and names likely causes.
[[nodiscard]] actors::RecordObserver warn_without_signal(
    actors::RecordObserver next, std::function<void(const std::string&)> log);

}  // namespace tidemill::workflows
