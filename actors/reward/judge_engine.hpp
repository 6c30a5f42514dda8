// SPDX-License-Identifier: Apache-2.0
// A reward engine that asks an actor.
#pragma once

#include <memory>

#include <caf/fwd.hpp>

#include "actors/reward/handles.hpp"
#include "base/clock.hpp"
#include "engines/reward_engine.hpp"

namespace tidemill::actors {

/// Makes an engine that has `judge` score its samples, a few dozen of them at a time. Each has
/// `deadline` from when it is sent, and anew from every answer to one that was sent before it; what
/// waits in the engine has no deadline. A sample that the judge does not answer for has no reward;
/// its error says why. The judge ends with the engine.
///
/// Errors, of `step`: `kUnavailable` once the judge has ended: everything unanswered has been given
/// back, and nothing will be scored any more.
///
/// For systems with threads: `step` waits for answers that come on others.
[[nodiscard]] std::unique_ptr<engines::RewardEngine> make_judge_engine(
    caf::actor_system& system, JudgeActor judge, Duration deadline = std::chrono::seconds(30));

}  // namespace tidemill::actors
