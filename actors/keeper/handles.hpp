// SPDX-License-Identifier: Apache-2.0
// The protocol of the version keeper, the only valve of a run.
#pragma once

#include <caf/replies_to.hpp>
#include <caf/typed_actor.hpp>

#include "actors/atoms.hpp"
#include "actors/keeper/messages.hpp"
#include "actors/type_ids.hpp"
#include "base/ids.hpp"
#include "engines/snapshot.hpp"
#include "storage/records/verdict.hpp"

namespace tidemill::actors {

/// VERSION KEEPER: knows the policy's versions, who serves what, and how many rows may be in
/// flight.
///
/// Rows map to the capacity rule so: an admitted row is `submit`; a finished response, or a row
/// that fails in a group that goes on, is `accept`; a row of a dropped group whose response is not
/// finished is `abort`; a filtered one `reject`; a finished row of a group that leaves untrained is
/// `forfeit`. Redelivery is no event.
using KeeperActor = caf::typed_actor<
    // Grants places for whole groups. Answers when at least one fits, or none after `wait`.
    caf::replies_to<atom::admit, AdmissionRequest>::with<Admission>,
    // The stream's rows have changed state.
    caf::reacts_to<atom::record, storage::PlaceChanges>,
    // New weights of the next step: raises the version, has the device load them. Answers the
    // version. Fails with `kStaleVersion` when the step is not the next one.
    caf::replies_to<atom::publish, engines::Snapshot>::with<PolicyVersion>,
    // Answers once devices have accepted weights of this step or newer; with `ScheduleKind::kFixed`
    // every row that older steps must generate is finished then. Fails only by the asker's
    // deadline.
    caf::replies_to<atom::waits, std::uint64_t>::with<PolicyVersion>,
    // The data has ended: only groups below this one have been put and none will follow.
    caf::reacts_to<atom::finish, std::uint64_t>,
    // Answers where it stands.
    caf::replies_to<atom::status>::with<KeeperStatus>,
    // Time to look for waits that are over.
    caf::reacts_to<atom::wake>>;

}  // namespace tidemill::actors
