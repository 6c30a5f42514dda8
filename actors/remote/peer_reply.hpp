// SPDX-License-Identifier: Apache-2.0
// Reads what has become of a call to another process. Private to this folder.
#pragma once

#include <string>

#include "actors/remote/peer_port.hpp"
#include "actors/wire/messages.hpp"
#include "base/result.hpp"
#include "base/status.hpp"

namespace tidemill::actors {

/// Returns why a call has failed, or success if `reply` has the content of a reply.
[[nodiscard]] inline Status failure_of(const PeerMessage& reply) {
  if (!reply.failure.ok() || reply.kind != MessageKind::kFailure) {
    return reply.failure;
  }
  const auto failed = from_wire<Failure>(reply.body);
  return failed.ok() ? failed.value().status : failed.status();
}

/// Returns the content of the reply to a call, which must be of `kind`.
/// Errors: the failure of the call; `kCorruptData` if the reply is no such message.
template <class Reply>
[[nodiscard]] Result<Reply> read_reply(MessageKind kind, const PeerMessage& reply) {
  TIDEMILL_RETURN_IF_ERROR(failure_of(reply));
  if (reply.kind != kind) {
    return corrupt_data("a reply of kind " + std::to_string(static_cast<int>(reply.kind)) +
                        " instead of " + std::to_string(static_cast<int>(kind)));
  }
  return from_wire<Reply>(reply.body);
}

}  // namespace tidemill::actors
