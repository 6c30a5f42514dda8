// SPDX-License-Identifier: Apache-2.0
// Private to transport/zmq/: a socket of ZeroMQ with its thread, and the protocol on it.
//
// A connector makes a DEALER socket for each connection, and an acceptor has a ROUTER socket for
// all of its connections. A message is a header and, only for a frame, a second part with the
// frame. The first byte of a header says what the message is:
//
//   hello     the first message of a connecting side; a byte with the version of the protocol
//   accepted  the reply to a hello; frames may follow
//   refused   the other reply to a hello; a byte that says why
//   frame     the second part is the frame
//   consumed  how much the listener has consumed, see zmq_side.hpp; 8 bytes, little-endian
//   bye       the sender has closed the connection
//
// A ROUTER socket does not say when one of its peers is gone. The monitor of the socket does, but
// it names the peer by the descriptor of its transport. Messages carry the same descriptor. The
// monitor reports a descriptor before any message arrives on it, and reports its end before the
// descriptor can be used again. So a node that reads the monitor before it takes a hello knows on
// which transport a connection is.
//
// A message to another process crosses as few threads as with a plain socket of ZeroMQ. Several
// threads use the socket, one at a time, with `socket_mutex_`:
//
//   - A thread that sends does so itself. If another thread has the socket, it notes the work, and
//     that thread wakes the thread of the node for it. So it does not wait.
//   - The watcher waits for what arrives, and receives it. That is the thread of a side if one has
//     nothing else to do, because it can then give a frame to its listener at once. It stops
//     watching before it calls the listener, which may take long.
//   - The thread of the node watches while no side does, and does what the others leave to it. It
//     alone waits for events of the monitor.
//
// The watcher waits without the mutex for the descriptor that the socket has for this. The
// descriptor is readable only until some thread uses the socket, even if that thread does not
// receive. So after each use there is either nothing left to receive, or the user wakes the thread
// of the node. No listener is called with the mutex.
//
// One limit is out of reach: ZeroMQ caps the size of a part, but keeps all parts of a message that
// never ends. Only a process of the same user can send one, and its end frees the memory.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/buffer.hpp"
#include "base/clock.hpp"
#include "base/files/unique_fd.hpp"
#include "base/result.hpp"
#include "base/status.hpp"
#include "transport/zmq/zmq_side.hpp"

namespace zmq {
class context_t;
}  // namespace zmq

namespace tidemill::transport {

/// Makes a context, which carries the sockets of one connector or acceptor.
/// Errors: `kUnavailable` if the system refuses.
[[nodiscard]] Result<std::shared_ptr<zmq::context_t>> new_zmq_context();

/// A socket, the sides of the connections on it, and a thread.
///
/// Threads: safe to use concurrently. No thread of the node may destroy it.
class ZmqNode final : private ZmqSideSocket {
public:
  /// Opens a connection. Requires a valid endpoint. Waits for at most `max_wait`.
  /// Errors: `kUnavailable`.
  [[nodiscard]] static Result<std::shared_ptr<ZmqNode>> connect(
      const std::shared_ptr<zmq::context_t>& context, const std::string& endpoint,
      Duration max_wait);

  /// Takes a new connection, or returns false to refuse it. Called by a thread that uses the
  /// socket, which must not wait.
  using OnPeer = std::function<bool(const std::shared_ptr<ZmqSide>&)>;
  /// Accepts connections at `listener`, a listening socket, which the node closes.
  /// Errors: `kUnavailable`.
  [[nodiscard]] static Result<std::shared_ptr<ZmqNode>> listen(UniqueFd listener, OnPeer on_peer);

  ZmqNode(const ZmqNode&) = delete;
  ZmqNode& operator=(const ZmqNode&) = delete;
  /// Requires that the program has closed all sides. Sends what they have left to send, which takes
  /// at most a fraction of a second.
  ~ZmqNode() override;

  /// Returns the side of the connection that `connect` has opened.
  [[nodiscard]] const std::shared_ptr<ZmqSide>& side() const noexcept { return side_; }

private:
  enum class Kind : std::uint8_t;
  enum class Refusal : std::uint8_t;
  enum class Turn { kEnded, kWorkLeft, kDone };  // of the thread of the node
  struct Sockets;
  struct Message;
  struct Peer {
    std::shared_ptr<ZmqSide> side;
    int descriptor = -1;  // of the transport
  };
  // By route: the routing id of the peer at a ROUTER socket, empty at a DEALER socket.
  using Peers = std::map<std::string, Peer>;

  ZmqNode(std::shared_ptr<zmq::context_t> context, int socket_type);
  void control(int operation, int descriptor, std::uint32_t events) const;
  void begin();
  [[nodiscard]] Status shake_hands(TimePoint deadline);
  [[nodiscard]] static const char* text_of(Refusal why);

  // -- of the thread of the node ------------------------------------------------------------------
  void run();
  [[nodiscard]] Turn take_turn();
  void wait(std::chrono::milliseconds timeout);
  void end_peers(const Status& reason);
  void end_broken();

  // -- of the thread that uses the socket ---------------------------------------------------------
  void read_monitor();
  void receive_and_serve();
  void handle(Message& message);
  void on_hello(const Message& hello);
  [[nodiscard]] Status on_message(ZmqSide& side, Message& message);
  void end_transport(int descriptor);
  void serve_ready();
  void serve(const std::string& route);
  [[nodiscard]] bool send(const std::string& route, Kind kind);
  [[nodiscard]] bool send_frame(const std::string& route, const Buffer& frame);
  [[nodiscard]] bool send_consumed(const std::string& route, std::uint64_t consumed);
  [[nodiscard]] bool send(const std::string& route, std::span<const std::uint8_t> header,
                          const Buffer* frame = nullptr);
  [[nodiscard]] std::shared_ptr<ZmqSide> new_side(const std::string& route);
  [[nodiscard]] bool ends() const;

  // -- of any thread ------------------------------------------------------------------------------
  void on_work(const std::string& route, When when) override;
  [[nodiscard]] int begin_watch() override;
  void receive_watched() override;
  void end_watch() override;
  template <class F>
  void use_socket(std::unique_lock<std::mutex> lock, F action);
  void note_work(const std::string& route);
  [[nodiscard]] bool work_waits() const;
  void wake() const;

  std::shared_ptr<zmq::context_t> context_;
  const bool routed_;
  std::unique_ptr<Sockets> sockets_;  // null after the end
  const int descriptor_;              // readable when something arrives at the socket
  const UniqueFd wake_;               // an eventfd
  const UniqueFd epoll_;              // what the thread of the node waits for
  std::shared_ptr<ZmqSide> side_;
  OnPeer on_peer_;

  std::mutex socket_mutex_;  // of `sockets_`, and of all up to `stopping_`
  Peers peers_;
  std::vector<std::weak_ptr<ZmqSide>> sides_;  // that the node has made; some may be destroyed
  std::set<int> transports_;                   // descriptors that are connected
  std::vector<int> broken_;  // descriptors that are not, with messages that may not be read yet
  bool unreachable_ = false;
  bool watched_ = false;  // by the thread of a side
  bool left_ = false;     // messages may have arrived, and `descriptor_` need not say so
  Status failure_;        // of ZeroMQ
  bool stopping_ = false;

  mutable std::mutex ready_mutex_;
  std::vector<std::string> ready_;  // routes of sides that have work

  std::thread thread_;
};

}  // namespace tidemill::transport
