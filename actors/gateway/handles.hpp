// SPDX-License-Identifier: Apache-2.0
// The protocol of the gateway.
#pragma once

#include <cstdint>

#include <caf/replies_to.hpp>
#include <caf/typed_actor.hpp>

#include "actors/atoms.hpp"
#include "actors/device/handles.hpp"
#include "actors/gateway/http/http_message.hpp"
#include "actors/type_ids.hpp"

namespace tidemill::actors {

/// GATEWAY: responds to the requests of an HTTP server with what a device generates.
using GatewayActor = TokenListenerActor::extend<
    // A request has arrived. The response goes to the HTTP server.
    caf::reacts_to<atom::request, HttpRequest>,
    // The connection of an exchange has been closed before the response was complete. Cancels what
    // is generated for it.
    caf::reacts_to<atom::closed, std::uint64_t>,
    // A port has run the work of an exchange.
    caf::reacts_to<atom::worked, std::uint64_t>,
    // The HTTP server has sent all parts so far of the body of an exchange
    // (`HttpCallbacks::on_sent`).
    caf::reacts_to<atom::sent, std::uint64_t>,
    // Refuses new requests with 503, and goes on with all others.
    caf::reacts_to<atom::drain>,
    // Fails all requests with 503, and ends.
    caf::reacts_to<atom::stop>>;

}  // namespace tidemill::actors
