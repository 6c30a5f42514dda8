// SPDX-License-Identifier: Apache-2.0
// Cancels the deadlines of requests whose replies have arrived, errors included.
#pragma once

#include <caf/all.hpp>

namespace tidemill::actors {

/// Cancels the deadline of a request whose reply, or an error in its place, has arrived. The clock
/// of the actor system keeps every deadline until it has passed, even after the reply, at about 150
/// bytes each. In an actor that makes requests for every row, those entries would be most of the
/// memory that a run uses. Changes nothing if the error is that the deadline has passed.
/// `self` is the actor that made the request, `request` the id of its response handle.
/// Threads: called by the actor `self`.
template <class Self>
void end_deadline(Self self, caf::message_id request) {
  self->clock().cancel_request_timeout(self, request);
}

}  // namespace tidemill::actors
