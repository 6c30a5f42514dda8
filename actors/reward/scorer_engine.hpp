// SPDX-License-Identifier: Apache-2.0
// A reward engine that has an actor score its samples.
#pragma once

#include <memory>

#include <caf/fwd.hpp>

#include "actors/reward/handles.hpp"
#include "base/clock.hpp"
#include "engines/reward_engine.hpp"

namespace tidemill::actors {

/// Creates an engine that has `scorer` score its samples. At most 64 samples are with the scorer at
/// a time. A sample must be scored within `deadline`, which starts when the sample is sent and
/// starts again with every reply to a sample sent before it. Samples that wait in the engine have
/// no deadline. If the scorer does not score a sample, the result has an error that says why. The
/// engine's destructor terminates the scorer.
///
/// Errors of `step`: `kUnavailable` once the scorer has terminated. By then, every sample without a
/// reply has received an error, and no more samples will be scored.
///
/// Meant for actor systems with threads, since `step` blocks until replies arrive on other threads.
[[nodiscard]] std::unique_ptr<engines::RewardEngine> make_scorer_engine(
    caf::actor_system& system, ScorerActor scorer, Duration deadline = std::chrono::seconds(30));

}  // namespace tidemill::actors
