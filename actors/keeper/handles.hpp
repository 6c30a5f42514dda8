// SPDX-License-Identifier: Apache-2.0
// The protocol of the version keeper, which admits rows and has the devices load new versions.
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

/// VERSION KEEPER: tracks the versions of the policy, tells the devices when to load one, and
/// limits how many rows may be in flight.
///
/// The keeper counts rows in an admission ledger (`storage/versions/admission.hpp`). An admitted
/// row is a `submit`. A finished response is an `accept`, and so is a row that fails in a group
/// that continues without it. If a group leaves before a row's response is finished, the row is a
/// `reject` if the group was filtered, and an `abort` otherwise. A row whose response is finished
/// is a `forfeit` if its group leaves untrained. Redelivery is not an event.
using KeeperActor = caf::typed_actor<
    // Grants slots for whole groups. Replies when at least one group fits, or with none after
    // `wait`.
    caf::replies_to<atom::admit, AdmissionRequest>::with<Admission>,
    // Applies the slot changes that the stream reports.
    caf::reacts_to<atom::record, storage::SlotChanges>,
    // Takes the new weights of the next step: raises the version and has the devices load them.
    // Replies with the version. Fails with `kStaleVersion` if the step is not the next one of this
    // incarnation.
    caf::replies_to<atom::publish, engines::Snapshot>::with<PolicyVersion>,
    // Replies once every device that is not quarantined has accepted the weights of this step or of
    // a newer one. With `GenerationOrder::kFixed`, every row that older steps must generate is then
    // finished. Fails only by the requester's deadline.
    caf::replies_to<atom::waits, std::uint64_t>::with<PolicyVersion>,
    // The data has ended: the groups below this one have been put, and no group will follow.
    caf::reacts_to<atom::finish, std::uint64_t>,
    // Replies with the keeper's status.
    caf::replies_to<atom::status>::with<KeeperStatus>,
    // Looks for requests whose wait is over. The keeper sends this to itself.
    caf::reacts_to<atom::wake>>;

}  // namespace tidemill::actors
