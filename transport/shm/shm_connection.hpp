// SPDX-License-Identifier: Apache-2.0
// Connections between two processes of one host, through rings in shared memory.
//
// The acceptor listens at a Unix socket. The connector makes the memory and sends its descriptor
// over the socket, once. Frames then travel through the memory; a process makes a system call only
// to sleep, or to wake a thread of the other process that sleeps. The socket stays open, because
// the kernel closes it when either process ends, however it ends. The other side then learns of it
// at once. A process that forked without exec keeps a copy of the socket: until it ends too, the
// other side does not learn of the end of its parent.
//
// Both processes must run as the same user. Apart from that, a process does not trust the other
// one: whatever that writes into the memory, the connection at most closes with `kCorruptData`.
#pragma once

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>

#include "base/clock.hpp"
#include "base/result.hpp"
#include "base/status.hpp"
#include "transport/connection.hpp"

namespace tidemill::transport {

/// Settings of connections through shared memory.
struct ShmOptions {
  /// The size of the ring of each direction: a power of two from 4 KiB to 16 MiB. Larger frames
  /// pass in pieces. The connector decides. Units: bytes.
  std::size_t ring_bytes = std::size_t{1} << 20U;
  /// How long a thread looks for the next frame before it sleeps. Meanwhile it occupies a
  /// processor. A thread that finds nothing several times in a row sleeps at once from then on, and
  /// looks again only from time to time. Not negative; zero: it always sleeps at once.
  Duration spin = std::chrono::microseconds(20);
  /// How long an acceptor waits for the handshake of a process that has connected to its socket.
  Duration handshake_timeout = std::chrono::seconds(5);
  /// If not empty: gets the reason each time a connection cannot be accepted for lack of
  /// descriptors, memory or threads. It is tried again. Called by the thread of the acceptor; must
  /// not block.
  std::function<void(const Status&)> on_trouble = {};
};

/// The maximum number of handshakes that an acceptor waits for. If another process connects, the
/// acceptor drops the oldest one.
inline constexpr std::size_t kMaxPendingHandshakes = 64;

/// Makes a connector to the acceptor at the Unix socket `socket`, whose path may have any length.
/// Its connections share a thread that notices the end of other processes; each has a thread of its
/// own, which calls its listener.
/// Errors of `connect`, besides those of `Connector`: `kResourceExhausted` without memory,
/// descriptors or threads; `kUnimplemented` naming both versions if the acceptor's program has
/// another version of the handshake; `kInvalidArgument` if the file name at the end of the path is
/// too long for a socket.
[[nodiscard]] std::unique_ptr<Connector> make_shm_connector(const std::filesystem::path& socket,
                                                            const ShmOptions& options = {});

/// Listens at the Unix socket `socket`, which only this user can open. Replaces a socket of that
/// name: the caller guarantees that no other process listens there. The acceptor removes it at its
/// end. It has a thread, which calls `on_accept`, and one that notices the end of other processes.
/// Each connection has a thread of its own, which calls its listener.
/// Errors: `kInvalidArgument` if the path names something other than a socket, its last name is too
/// long, or its directory cannot be written to; `kNotFound` without that directory;
/// `kResourceExhausted` without descriptors or threads; `kUnavailable`.
[[nodiscard]] Result<std::unique_ptr<Acceptor>> listen_shm(const std::filesystem::path& socket,
                                                           Acceptor::OnAccept on_accept,
                                                           const ShmOptions& options = {});

}  // namespace tidemill::transport
