// SPDX-License-Identifier: Apache-2.0
// A connection to another process: it carries frames, in order, until it closes.
//
// Each backend is a folder. `loopback/` stays inside one process. A connection may break at any
// time, and frames in transit are then lost; PeerSession sends them again. A session sends each
// message once on a connection and limits what is unacknowledged, so a connection has no limit of
// its own.
#pragma once

#include <functional>
#include <memory>

#include "base/buffer.hpp"
#include "base/clock.hpp"
#include "base/result.hpp"
#include "base/status.hpp"

namespace tidemill::transport {

/// Receives the events of a connection.
///
/// A call may use the connection, but not destroy it. The connection never calls the listener from
/// inside a call that the same thread makes to it.
/// Threads: one call at a time for each connection.
class ConnectionListener {
public:
  ConnectionListener() = default;
  ConnectionListener(const ConnectionListener&) = delete;
  ConnectionListener& operator=(const ConnectionListener&) = delete;
  virtual ~ConnectionListener() = default;

  /// A frame has arrived, whole and unchanged unless the network has damaged it.
  virtual void on_frame(const Buffer& frame) = 0;
  /// The connection is closed: by the other side, by `close`, or because it broke. The last call,
  /// and made exactly once, unless the connection is destroyed first.
  virtual void on_closed(const Status& reason) = 0;
};

/// One side of a connection. Destroying it closes it. The destructor waits for a call of the
/// listener in progress, and none follows. A call of its listener must not destroy it.
///
/// Threads: safe to call concurrently; destroyed by one thread that makes no other call.
class Connection {
public:
  Connection() = default;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  virtual ~Connection() = default;

  /// Begins to call `listener`, which must outlive the connection. Events that occur earlier are
  /// delivered then. Requires that the connection was not started.
  virtual void start(ConnectionListener& listener) = 0;
  /// Sends a frame, which may be empty, and does not wait. Requires a resolved buffer. Success does
  /// not mean that the frame arrives.
  /// Errors: `kInvalidArgument` if the frame is larger than `kMaxEnvelopeBytes`; `kUnavailable` if
  /// the connection is closed.
  [[nodiscard]] virtual Status send(const Buffer& frame) = 0;
  /// Closes both sides. Frames in transit may be lost. Frames that have not been delivered on this
  /// side are dropped. Does nothing if the connection is closed.
  virtual void close() = 0;
};

/// Opens connections to one address, where an acceptor listens.
///
/// Threads: one call at a time.
class Connector {
public:
  Connector() = default;
  Connector(const Connector&) = delete;
  Connector& operator=(const Connector&) = delete;
  virtual ~Connector() = default;

  /// Opens a connection. Waits for at most `max_wait`.
  /// Errors: `kUnavailable` if nothing listens at the address, or it does not accept in time.
  [[nodiscard]] virtual Result<std::unique_ptr<Connection>> connect(Duration max_wait) = 0;
};

/// Accepts connections at one address until it is destroyed. Made by `listen_shm` and `listen_zmq`.
/// The destructor waits for a call of `OnAccept` in progress. Accepted connections may outlive the
/// acceptor.
///
/// Threads: has threads of its own; destroyed by one thread, and not from inside `OnAccept`.
class Acceptor {
public:
  /// Takes a connection that was accepted. Called by a thread of the acceptor, one call at a time.
  using OnAccept = std::function<void(std::unique_ptr<Connection>)>;

  Acceptor() = default;
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;
  virtual ~Acceptor() = default;
};

}  // namespace tidemill::transport
