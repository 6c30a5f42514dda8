// SPDX-License-Identifier: Apache-2.0
// The protocol of an actor that judges answers, for programs that bring their own.
#pragma once

#include <caf/replies_to.hpp>
#include <caf/typed_actor.hpp>

#include "actors/atoms.hpp"
#include "actors/type_ids.hpp"

namespace tidemill::actors {

/// JUDGE: rewards answers. It may keep state, ask other actors and answer out of order.
using JudgeActor = caf::typed_actor<
    // Scores one answer. A result with an error, or a failure, leaves the sample without a reward:
    // it is delivered again.
    caf::replies_to<atom::score, engines::RewardRequest>::with<engines::RewardResult>>;

}  // namespace tidemill::actors
