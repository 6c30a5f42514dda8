// SPDX-License-Identifier: Apache-2.0
// The protocols of the version keeper, which admits rows and has the devices load new versions:
// `RosterActor`, for devices that join or leave a run, and `KeeperActor`, the whole.
#pragma once

#include <string>

#include <caf/replies_to.hpp>
#include <caf/typed_actor.hpp>

#include "actors/atoms.hpp"
#include "actors/device/handles.hpp"
#include "actors/keeper/messages.hpp"
#include "actors/type_ids.hpp"
#include "base/ids.hpp"
#include "engines/snapshot.hpp"
#include "storage/records/verdict.hpp"

namespace tidemill::actors {

/// ROSTER: lets devices that only serve join a run and leave it.
using RosterActor = caf::typed_actor<
    // Adds a device to the run. It loads the weights that the other devices serve or, if these are
    // switching, those that they switch to. Then the router begins to send it requests, and the
    // roster replies. With `GenerationOrder::kFixed`, no device loads a newer version until the
    // join is complete. If the next version is waiting only for devices to join, this device joins
    // with that version.
    // Fails with `kInvalidArgument` if the request has no device, if the name is empty or belongs
    // to another device of the run, or if the run has the device under another name;
    // `kUnavailable` if the device is quarantined; `kResourceExhausted` if this incarnation has had
    // `kMaxDevices` devices; and with the failure of the load, which quarantines the device.
    caf::replies_to<atom::join, DeviceJoin>::with<DeviceStatus>,
    // Removes the device of this name. The router sends it no more requests. Replies once its
    // pending requests have ended, or after `kLeaveDeadline`, when those that are left fail. Fails
    // with `kNotFound` if the run has no such device; `kUnavailable` if it is joining or leaving;
    // `kInvalidArgument` if the device trains or no other one would serve; and with the reason if
    // it is quarantined before it has left.
    caf::replies_to<atom::leave, std::string>::with<DeviceStatus>>;

/// Returns the request with which `device` joins a run.
[[nodiscard]] DeviceJoin join_request(const ServingDevice& device,
                                      caf::strong_actor_ptr listener = {});

/// How long a leaving device may take to finish its pending requests.
inline constexpr Duration kLeaveDeadline = std::chrono::minutes(10);

/// VERSION KEEPER: tracks the versions of the policy, tells the devices when to load one, and
/// limits how many rows may be in flight.
///
/// The keeper counts rows in an admission ledger (`storage/versions/admission.hpp`). An admitted
/// row is a `submit`. A finished response is an `accept`, and so is a row that fails in a group
/// that continues without it. If a group leaves before a row's response is finished, the row is a
/// `reject` if the group was filtered, and an `abort` otherwise. A row whose response is finished
/// is a `forfeit` if its group leaves untrained. Redelivery is not an event.
using KeeperActor = RosterActor::extend<
    // Grants slots for whole groups. Replies when at least one group fits, or with none after
    // `wait`.
    caf::replies_to<atom::admit, AdmissionRequest>::with<Admission>,
    // Applies the slot changes that the stream reports.
    caf::reacts_to<atom::record, storage::SlotChanges>,
    // Takes the new weights of the next step: raises the version and has the devices load them.
    // Replies with the version. Fails with `kStaleVersion` if the step is not the next one of this
    // incarnation.
    caf::replies_to<atom::publish, engines::Snapshot>::with<PolicyVersion>,
    // Replies once every serving or leaving device has accepted the weights of this step or of a
    // newer one. With `GenerationOrder::kFixed`, every row that older steps must generate is then
    // finished. Fails only by the requester's deadline.
    caf::replies_to<atom::waits, std::uint64_t>::with<PolicyVersion>,
    // The data has ended: the groups below this one have been put, and no group will follow.
    caf::reacts_to<atom::finish, std::uint64_t>,
    // Replies with the keeper's status.
    caf::replies_to<atom::status>::with<KeeperStatus>,
    // Looks for requests whose wait is over. The keeper sends this to itself.
    caf::reacts_to<atom::wake>>;

}  // namespace tidemill::actors
