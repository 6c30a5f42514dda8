// SPDX-License-Identifier: Apache-2.0
// A reward engine that asks an actor.
#pragma once

#include <memory>

#include <caf/fwd.hpp>

#include "actors/reward/handles.hpp"
#include "base/clock.hpp"
#include "engines/reward_engine.hpp"

namespace tidemill::actors {

/// Makes an engine that has `judge` score its samples, all that it holds at once, each within
/// `deadline`. A sample that the judge does not answer for has no reward; its error says why. The
/// judge ends with the engine.
///
/// For systems with threads: `step` waits for answers that come on others.
[[nodiscard]] std::unique_ptr<engines::RewardEngine> make_judge_engine(
    caf::actor_system& system, JudgeActor judge, Duration deadline = std::chrono::seconds(30));

}  // namespace tidemill::actors
