// SPDX-License-Identifier: Apache-2.0
// The protocol of a router, which spreads requests over the devices that serve.
#pragma once

#include <cstdint>
#include <string>

#include <caf/replies_to.hpp>
#include <caf/typed_actor.hpp>

#include "actors/device/handles.hpp"
#include "actors/keeper/messages.hpp"
#include "actors/router/messages.hpp"
#include "actors/type_ids.hpp"

namespace tidemill::actors {

/// ROUTER: forwards each generation request to the device with the fewest pending requests, or to
/// the one that already has a request of the same id, and returns the reply. It never sends a
/// request to a second device: if a device ends or is quarantined, its requests fail with
/// `kUnavailable`, and the requesters decide what to do. Requests also fail so if no device is
/// left, unless the router was told to wait for one that joins, or if it has as many requests as it
/// may. Versions and adapters are loaded into devices, so `load` and `adapters` fail with
/// `kUnimplemented`.
using RouterActor = ServingActor::extend<
    // Begins to send requests to a device. A device that was removed or has left may come back
    // under its name. Ignored if a device of this name gets requests. Requests that have waited for
    // a device to join are sent now.
    caf::reacts_to<atom::join, DeviceJoin>,
    // Sends the device of this name no more requests, but for a second one with the id of a request
    // that it has. Replies once the device has no requests left, and the router has removed it,
    // with the number of requests that it had at first. Unknown names have none.
    caf::replies_to<atom::leave, std::string>::with<std::uint64_t>,
    // Removes the device of this name: its requests are cancelled and fail, and it gets no others.
    // Unknown names are ignored. If the message says so, later requests wait until a device joins,
    // but for those with the id of a request that a leaving device has.
    caf::reacts_to<atom::quarantine, QuarantinedDevice>>;

}  // namespace tidemill::actors
