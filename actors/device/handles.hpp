// SPDX-License-Identifier: Apache-2.0
// The protocol of a device: one model, generating and training on it, one iteration at a time.
#pragma once

#include <caf/replies_to.hpp>
#include <caf/typed_actor.hpp>

#include "actors/atoms.hpp"
#include "actors/device/messages.hpp"
#include "actors/type_ids.hpp"

namespace tidemill::actors {

/// GENERATING DEVICE: continues prompts.
using GeneratingActor = caf::typed_actor<
    // Continues one prompt. Answers when the response has ended; a response that fails answers
    // with `kFailed`. Fails with what `RolloutEngine::submit` says.
    caf::replies_to<atom::generate, engines::RolloutRequest>::with<engines::RolloutResult>,
    // Ends a request early; its answer is `kCancelled`. Unknown ids are ignored.
    caf::reacts_to<atom::cancel, SampleId>>;

/// DEVICE: owns one model runtime and is the only one to step it.
using DeviceActor = GeneratingActor::extend<
    // Takes new weights for generation: digest checked, served once the responses in flight have
    // ended. Answers the version accepted. Fails with what `RolloutEngine::load` says.
    caf::replies_to<atom::load, engines::Snapshot>::with<PolicyVersion>,
    // Trains on one batch and answers with the new weights, or only scores it. One job at a time: a
    // second one fails with `kUnavailable`. A job that fails publishes nothing, but the trainer's
    // own weights have made the updates of the minibatches before the failure: go back to a commit.
    caf::replies_to<atom::train, TrainJob>::with<TrainOutcome>,
    // Answers the optimizer's state between two jobs. Fails with `kUnavailable` during one.
    caf::replies_to<atom::capture>::with<OptimizerState>,
    // A piece of work that the device handed to its port has run.
    caf::reacts_to<atom::worked>>;

}  // namespace tidemill::actors
