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
/// Errors: the failure of the call; `kUnavailable` if it cannot be read. That may be a fault of the
/// other process, which must not end the run as a failure that would repeat.
[[nodiscard]] inline Status failure_of(const PeerMessage& reply) {
  if (!reply.failure.ok() || reply.kind != MessageKind::kFailure) {
    return reply.failure;
  }
  const auto failed = from_wire<Failure>(reply.body);
  return failed.ok() ? failed.value().status
                     : Status(Errc::kUnavailable, failed.status().message());
}

/// Returns why a process cannot start a worker or a device, for the supervisor: what the process
/// does not find (`kNotFound`) is `kInvalidArgument`, since another start will not find it either.
[[nodiscard]] inline Status start_failure(const Status& failure) {
  return failure.code() == Errc::kNotFound ? invalid_argument(failure.message()) : failure;
}

/// Checks that a call has a reply of `kind`.
/// Errors: those of `failure_of`; `kUnavailable` for another kind.
[[nodiscard]] inline Status check_reply(MessageKind kind, const PeerMessage& reply) {
  TIDEMILL_RETURN_IF_ERROR(failure_of(reply));
  if (reply.kind != kind) {
    return {Errc::kUnavailable, "a reply of kind " + std::to_string(static_cast<int>(reply.kind)) +
                                    " instead of " + std::to_string(static_cast<int>(kind))};
  }
  return {};
}

/// Returns the content of the reply to a call, which must be of `kind`.
/// Errors: those of `check_reply`; `kUnavailable` if the reply is no such message.
template <class Reply>
[[nodiscard]] Result<Reply> read_reply(MessageKind kind, const PeerMessage& reply) {
  TIDEMILL_RETURN_IF_ERROR(check_reply(kind, reply));
  auto content = from_wire<Reply>(reply.body);
  if (!content.ok()) {
    return Status(Errc::kUnavailable, content.status().message());
  }
  return content;
}

}  // namespace tidemill::actors
