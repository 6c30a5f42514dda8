// SPDX-License-Identifier: Apache-2.0
// Connections between threads of one process, which exchange frames through its memory.
#pragma once

#include <memory>
#include <string>

#include "base/result.hpp"
#include "transport/connection.hpp"

namespace tidemill::transport {

/// Returns a connector to a name at which this process listens, or will. Its connections may
/// outlive it. Each side of a connection has a thread, which calls its listener. `connect` does not
/// wait, and fails with `kUnavailable` if such a thread cannot be created.
[[nodiscard]] std::unique_ptr<Connector> make_loopback_connector(const std::string& name);

/// Listens at a name, which is known in this process only. The thread that connects calls
/// `on_accept`, which must not connect to the same name.
/// Errors: `kUnavailable` if the process listens there already.
[[nodiscard]] Result<std::unique_ptr<Acceptor>> listen_loopback(const std::string& name,
                                                                Acceptor::OnAccept on_accept);

}  // namespace tidemill::transport
