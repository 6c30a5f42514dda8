// SPDX-License-Identifier: Apache-2.0
// The protocol of an actor that scores responses, for programs that provide their own.
#pragma once

#include <caf/replies_to.hpp>
#include <caf/typed_actor.hpp>

#include "actors/atoms.hpp"
#include "actors/type_ids.hpp"

namespace tidemill::actors {

/// SCORER: scores responses. It may keep state, send requests to other actors, and reply out of
/// order.
using ScorerActor = caf::typed_actor<
    // Scores one response. A result with an error, or a failure, leaves the sample without a
    // reward, and the stream delivers it again.
    caf::replies_to<atom::score, engines::RewardRequest>::with<engines::RewardResult>>;

}  // namespace tidemill::actors
