// SPDX-License-Identifier: Apache-2.0
// The protocols of the trainer and of whom it reports to.
#pragma once

#include <caf/replies_to.hpp>
#include <caf/typed_actor.hpp>

#include "actors/atoms.hpp"
#include "actors/trainer/messages.hpp"
#include "actors/type_ids.hpp"

namespace tidemill::actors {

/// RUN OWNER: is told when a trainer is done.
using RunOwnerActor = caf::typed_actor<
    // Training is over, the last weights are committed.
    caf::reacts_to<atom::finish, RunSummary>>;

/// TRAINER: takes batches from the stream, trains, publishes, commits.
using TrainerActor = caf::typed_actor<
    // Begins.
    caf::reacts_to<atom::start>,
    // Finish the step in work, commit, and end; an evaluation in work is given up.
    caf::reacts_to<atom::stop>,
    // Time to renew the leases of the batch in work.
    caf::reacts_to<atom::renew>,
    // The commit handed to the port is done.
    caf::reacts_to<atom::worked>>;

}  // namespace tidemill::actors
