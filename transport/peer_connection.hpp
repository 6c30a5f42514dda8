// SPDX-License-Identifier: Apache-2.0
// A connection together with what handles its events. Private to transport/.
#pragma once

#include <memory>
#include <utility>

#include "transport/connection.hpp"

namespace tidemill::transport {

class PeerConnection;

/// Handles the events of connections. See `ConnectionListener`.
class PeerConnectionHandler {
public:
  PeerConnectionHandler() = default;
  PeerConnectionHandler(const PeerConnectionHandler&) = delete;
  PeerConnectionHandler& operator=(const PeerConnectionHandler&) = delete;
  virtual ~PeerConnectionHandler() = default;

  virtual void on_frame(PeerConnection& from, const Buffer& frame) = 0;
  virtual void on_closed(PeerConnection& from, const Status& reason) = 0;
};

/// Owns a connection. A connection that was accepted changes its handler at its first frame, which
/// says whose connection it is.
class PeerConnection final : public ConnectionListener {
public:
  explicit PeerConnection(std::unique_ptr<Connection> connection)
      : connection_(std::move(connection)) {}

  /// Starts the connection. `handler` must outlive this object, or be replaced before.
  void start(PeerConnectionHandler& handler) {
    handler_ = &handler;
    connection_->start(*this);
  }
  /// Replaces the handler. Only for the handler, while it handles a frame of this connection.
  void set_handler(PeerConnectionHandler& handler) { handler_ = &handler; }

  [[nodiscard]] Connection& connection() { return *connection_; }

  void on_frame(const Buffer& frame) override { handler_->on_frame(*this, frame); }
  void on_closed(const Status& reason) override { handler_->on_closed(*this, reason); }

private:
  PeerConnectionHandler* handler_ = nullptr;
  std::unique_ptr<Connection> connection_;  // destroyed first: it uses the rest
};

}  // namespace tidemill::transport
