// SPDX-License-Identifier: Apache-2.0
// The protocol of a device, which generates with one model and trains it, one iteration at a time.
#pragma once

#include <caf/replies_to.hpp>
#include <caf/typed_actor.hpp>

#include "actors/atoms.hpp"
#include "actors/device/messages.hpp"
#include "actors/type_ids.hpp"

namespace tidemill::actors {

/// GENERATING DEVICE: generates responses to prompts.
using GeneratingActor = caf::typed_actor<
    // Generates a response to one prompt. Replies when the response has ended; if generation fails,
    // the finish reason of the reply is `kFailed`. Fails with the errors of
    // `RolloutEngine::submit`.
    caf::replies_to<atom::generate, engines::RolloutRequest>::with<engines::RolloutResult>,
    // Ends a request early; the finish reason of its reply is `kCancelled`. Unknown ids are
    // ignored.
    caf::reacts_to<atom::cancel, SampleId>>;

/// DEVICE: owns one model runtime. No other actor steps it.
using DeviceActor = GeneratingActor::extend<
    // Loads new weights for generation. Their digest is checked, and they are served once the
    // responses in flight have ended. Replies with the version as soon as it is accepted. Fails
    // with the errors of `RolloutEngine::load`.
    caf::replies_to<atom::load, engines::Snapshot>::with<PolicyVersion>,
    // Trains on one batch and replies with the new weights, or only scores the batch. One job runs
    // at a time: a second one fails with `kUnavailable`. A job that fails publishes nothing, but
    // the weights of the training view keep the updates of the minibatches before the failure. The
    // run must then return to a commit.
    caf::replies_to<atom::train, TrainJob>::with<TrainOutcome>,
    // Replies with the optimizer's state between two jobs. Fails with `kUnavailable` during a job.
    caf::replies_to<atom::capture>::with<OptimizerState>,
    // The port has run a piece of work of the device.
    caf::reacts_to<atom::worked>>;

}  // namespace tidemill::actors
