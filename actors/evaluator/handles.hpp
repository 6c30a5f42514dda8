// SPDX-License-Identifier: Apache-2.0
// The protocol of the evaluator.
#pragma once

#include <cstdint>

#include <caf/replies_to.hpp>
#include <caf/typed_actor.hpp>

#include "actors/atoms.hpp"
#include "actors/evaluator/messages.hpp"
#include "actors/type_ids.hpp"

namespace tidemill::actors {

/// EVALUATOR: answers held-out prompts and scores them, beside training.
using EvaluatorActor = caf::typed_actor<
    // Evaluates weights of this step or newer. One evaluation at a time: a second one fails with
    // `kUnavailable`.
    caf::replies_to<atom::start, std::uint64_t>::with<EvalReport>,
    // The reward engine has run for a while.
    caf::reacts_to<atom::worked>>;

}  // namespace tidemill::actors
