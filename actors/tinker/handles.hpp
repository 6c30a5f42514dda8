// SPDX-License-Identifier: Apache-2.0
// The protocol of the actor that serves Tinker's API.
#pragma once

#include <cstdint>

#include <caf/replies_to.hpp>
#include <caf/typed_actor.hpp>

#include "actors/atoms.hpp"
#include "actors/gateway/caller.hpp"
#include "actors/gateway/http/http_message.hpp"
#include "actors/type_ids.hpp"

namespace tidemill::actors {

/// TINKER: responds to the requests of Tinker's API. The gateway passes them on.
using TinkerActor = caf::typed_actor<
    // A request of a caller has arrived, with a key that permits it. The response goes to the HTTP
    // server.
    caf::reacts_to<atom::request, HttpRequest, Caller>,
    // The connection of an exchange has been closed.
    caf::reacts_to<atom::closed, std::uint64_t>,
    // The HTTP server has sent all that was written of a file.
    caf::reacts_to<atom::sent, std::uint64_t>,
    // A port has run this piece of work.
    caf::reacts_to<atom::worked, std::uint64_t>,
    // Ends what is past its deadline. Sent by the actor to itself.
    caf::reacts_to<atom::wake>,
    // Responds to all exchanges that wait. Their clients ask again.
    caf::reacts_to<atom::drain>>;

}  // namespace tidemill::actors
