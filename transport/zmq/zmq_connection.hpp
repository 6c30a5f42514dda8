// SPDX-License-Identifier: Apache-2.0
// Connections to other processes of the same host, with ZeroMQ.
//
// An endpoint is "ipc://" and an absolute path. ZeroMQ reconnects by itself and would hide that
// frames were lost, so a connection here ends with the socket that carries it, and is never opened
// again. A side whose peer process has died learns of it from the kernel. A peer that is stopped or
// unreachable is not noticed, so PeerSession watches for silence.
//
// A frame is never lost while its connection is open. Frames wait in the sender while the listener
// of the receiver is slow, and no other connection waits for it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/result.hpp"
#include "transport/connection.hpp"

namespace tidemill::transport {

/// The maximum number of connections that an acceptor has accepted and the program has not
/// destroyed. It refuses more, and those for which it has no thread. The error of the connector
/// says which.
inline constexpr std::size_t kMaxZmqConnections = 128;

/// Returns a connector to an endpoint, which need not exist yet. Its connections may outlive it.
/// Each connection has two threads, one of which calls its listener.
/// Errors: `kInvalidArgument` if the endpoint is invalid; `kUnavailable` if the system refuses.
[[nodiscard]] Result<std::unique_ptr<Connector>> new_zmq_connector(const std::string& endpoint);

/// Listens at an endpoint, and replaces a socket there that no process listens to any more. Only
/// processes of the same user can connect. The acceptor has three threads, one of which calls
/// `on_accept`, and one more for each connection, which calls its listener. A slow `on_accept`
/// delays only itself. ZeroMQ aborts the process if it has no descriptor left for a connection, so
/// the program keeps enough of them.
/// Errors: `kInvalidArgument` if the endpoint is invalid or names something else than a socket;
/// `kNotFound` if its folder does not exist; `kUnavailable` if a process listens there, or the
/// system refuses.
[[nodiscard]] Result<std::unique_ptr<Acceptor>> listen_zmq(const std::string& endpoint,
                                                           Acceptor::OnAccept on_accept);

}  // namespace tidemill::transport
