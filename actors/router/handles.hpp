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
/// `kUnavailable`, and the requesters decide what to do. Requests fail in the same way if
/// `RouterDeps::max_pending` requests are pending, or if no device serves and the router was not
/// told to wait for one to join. Versions and adapters are loaded into devices, so `load` and
/// `adapters` fail with `kUnimplemented`.
using RouterActor = ServingActor::extend<
    // Begins to send requests to a device. A device that was removed or has left may come back
    // under its name. Ignored if a device of this name gets requests. Requests that have waited for
    // a device to join are sent now.
    caf::reacts_to<atom::join, DeviceJoin>,
    // Stops sending requests to the device of this name, except a second request for an id that it
    // already has. Replies with the number of requests that were pending, once they have ended and
    // the device has been removed. Replies with 0 if the name is unknown or was removed.
    caf::replies_to<atom::leave, std::string>::with<std::uint64_t>,
    // Removes the device of this name: its requests are cancelled and fail, and it gets no others.
    // Unknown names are ignored. If `await_join` is set, later requests wait until a device joins,
    // except those with the id of a request that a leaving device has.
    caf::reacts_to<atom::quarantine, QuarantinedDevice>>;

}  // namespace tidemill::actors
