// SPDX-License-Identifier: Apache-2.0
// The protocols of the trainer and of the actor that it reports to.
#pragma once

#include <caf/replies_to.hpp>
#include <caf/typed_actor.hpp>

#include "actors/atoms.hpp"
#include "actors/trainer/messages.hpp"
#include "actors/type_ids.hpp"

namespace tidemill::actors {

/// RUN LISTENER: receives the summary of a trainer.
using RunListenerActor = caf::typed_actor<
    // Training is over and the last weights are committed.
    caf::reacts_to<atom::finish, RunSummary>>;

/// TRAINER: leases batches from the stream, trains on them, publishes weights, commits.
using TrainerActor = caf::typed_actor<
    // Starts training.
    caf::reacts_to<atom::start>,
    // Finishes the current step, commits, and ends. An evaluation in progress is abandoned.
    caf::reacts_to<atom::stop>,
    // Renews the leases of the current batch. The trainer sends this to itself.
    caf::reacts_to<atom::renew>,
    // The port has written a commit, or failed to.
    caf::reacts_to<atom::worked>>;

}  // namespace tidemill::actors
