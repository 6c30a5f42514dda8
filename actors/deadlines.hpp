// SPDX-License-Identifier: Apache-2.0
// Deadlines of requests that have been answered.
#pragma once

#include <caf/all.hpp>

namespace tidemill::actors {

/// Ends the deadline of a request that has been answered. The clock of the actor system keeps a
/// deadline until it has passed, answered or not, in about 150 bytes: where every row makes
/// requests, they would be most of what a run holds.
/// `self` made the request, `request` is the id of its response handle. Threads: of the actor.
template <class Self>
void end_deadline(Self self, caf::message_id request) {
  self->clock().cancel_request_timeout(self, request);
}

}  // namespace tidemill::actors
