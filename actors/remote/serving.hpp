// SPDX-License-Identifier: Apache-2.0
// Spawns the actors through which a process uses an actor of another process that serves: a device
// or a router.
//
//   process with the requesters                    process of the device
//   requester -> serving proxy -> port  == link ==>  port -> serving gate -> device
//   tensors:     buffer lender   ======= shared memory =====> buffer resolver
//
// A requester holds the proxy as a `ServingActor` and does not notice where the device is. A port
// carries the messages of one proxy and of one gate in each process, besides those of its workers.
// A process with several devices puts a router behind its gate.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include <caf/fwd.hpp>

#include "actors/device/handles.hpp"
#include "actors/remote/buffer_exchange.hpp"
#include "actors/remote/handles.hpp"
#include "actors/remote/peer_port.hpp"
#include "actors/work/work_port.hpp"
#include "base/clock.hpp"

namespace tidemill::actors {

/// How long a device of another process may take to load weights or to change adapters.
inline constexpr Duration kRemoteChangeDeadline = std::chrono::minutes(10);

/// How long a proxy waits for room to lend tensors.
inline constexpr Duration kMaxLendWait = std::chrono::minutes(2);

/// SERVING PROXY: a `ServingActor` of another process. In addition to the failures of that actor, a
/// request fails with `kUnimplemented` if it has a constraint, or has tensors and the proxy has no
/// lender; with `kInvalidArgument` if the request or its result does not fit into one message; and
/// with `kUnavailable` if the link ends. A load takes effect when its reply arrives: requests that
/// are sent earlier may be processed before it. Loads and changes of adapters are sent one after
/// the other.
///
/// It ends when the actor that serves ends, with the same reason, and with `kUnavailable` when the
/// link ends. Its requests then fail with `kUnavailable`.
using ServingProxyActor = ServingActor::extend_with<PeerListenerActor>::extend<
    // The port has lent the tensors of a message.
    caf::reacts_to<atom::worked>,
    // Tries again to lend the tensors of a message.
    caf::reacts_to<atom::wake>>;

/// Dependencies of a serving proxy.
struct ServingProxyDeps {
  std::string name;                // of the actor that serves, such as "device-1", for messages
  std::shared_ptr<PeerPort> port;  // not opened yet
  /// Lends tensors to the process at the other end. May be null. Once the process has ended, the
  /// owner of the pool calls `drop_reader`, because messages that were lost still held loans.
  std::shared_ptr<BufferLender> buffers;
  WorkPort* work = nullptr;  // lends tensors; outlives the proxy; needed with `buffers`
  /// Whether the actor that serves has opened a base of its own. The first snapshot is then sent
  /// without its base, and with it only if the actor has another one.
  bool has_base = false;
  /// How long a response may take. Longer than the deadlines of requesters, so it passes only if a
  /// bug leaves a request open.
  Duration reply_deadline = std::chrono::hours(25);
  /// Takes a line when tensors have waited for room for a while, at most once a minute. May be
  /// empty.
  std::function<void(const std::string&)> log = {};
};

/// Spawns a serving proxy. It lives until its port is closed.
[[nodiscard]] ServingActor spawn_serving_proxy(caf::actor_system& system, ServingProxyDeps deps);

/// SERVING GATE: passes the requests of another process on to an actor that serves, and replies
/// with the results. When the link ends, it cancels the requests that are left and ends. When the
/// actor that serves ends, it tells the other process and ends with the same reason.
using ServingGateActor = PeerListenerActor::extend<
    // The port has resolved the tensors of a message.
    caf::reacts_to<atom::worked>>;

/// Dependencies of a serving gate.
struct ServingGateDeps {
  std::shared_ptr<PeerPort> port;  // not opened yet
  ServingActor serving;
  /// Resolves the tensors of messages. If it is null, messages with tensors are refused.
  std::shared_ptr<BufferResolver> buffers;
  WorkPort* work = nullptr;                          // resolves; as in `ServingProxyDeps`
  Duration reply_deadline = std::chrono::hours(25);  // as in `ServingProxyDeps`
};

/// Spawns a serving gate. It lives until its port is closed or `serving` ends.
ServingGateActor spawn_serving_gate(caf::actor_system& system, ServingGateDeps deps);

}  // namespace tidemill::actors
