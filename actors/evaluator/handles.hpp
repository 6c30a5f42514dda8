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

/// EVALUATOR: generates and scores responses to held-out prompts while the run trains.
using EvaluatorActor = caf::typed_actor<
    // Evaluates the weights of this step or of a newer one. Fails with `kUnavailable` while another
    // evaluation is running, or if no device generates a response. All later evaluations then fail
    // too.
    caf::replies_to<atom::start, std::uint64_t>::with<EvalReport>,
    // Abandons the running evaluation: sends no more requests, cancels those at the device, and
    // fails the evaluation with `kUnavailable`. All later evaluations fail in the same way.
    caf::reacts_to<atom::stop>,
    // A step of the reward engine has run at the port.
    caf::reacts_to<atom::worked>>;

}  // namespace tidemill::actors
