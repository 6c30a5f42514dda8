// SPDX-License-Identifier: Apache-2.0
// Private to transport/zmq/: one side of a connection, without its socket.
//
// The program sends frames, which wait in `outgoing_`. The thread that uses the socket takes them
// from there, and adds the frames that arrive to `incoming_`. The thread of the side gives those to
// the listener, so a slow listener delays only its own connection. While it has none to give, it
// watches the socket, if no other side does (zmq_node.hpp).
//
// The two sides limit what is in flight, which ZeroMQ cannot do by bytes. Each side reports how
// much its listener has consumed, and the other one keeps the rest of its frames. So at most
// `kMaxInFlightBytes` wait in a receiver, even if its peer breaks the rules.
//
// A side is open first. `close`, or `end` for what the peer or the network does, closes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/buffer.hpp"
#include "base/files/unique_fd.hpp"
#include "base/status.hpp"
#include "transport/connection.hpp"
#include "transport/envelope.hpp"

namespace tidemill::transport {

/// What a frame counts in addition to its size. Units: bytes.
inline constexpr std::uint64_t kFrameOverheadBytes = 256;
/// The maximum size of the frames that were sent and that the listener of the other side has not
/// consumed. Two of the largest frames fit, so one of them can be on its way while the listener has
/// the other. Units: bytes.
inline constexpr std::uint64_t kMaxInFlightBytes = 2 * (kMaxEnvelopeBytes + kFrameOverheadBytes);
/// A listener that has consumed this much more than the peer knows makes a report. Less than the
/// peer can need to send one more frame. Units: bytes.
inline constexpr std::uint64_t kReportBytes = kMaxInFlightBytes / 4;

/// What has to be sent for a side, in this order.
struct ZmqWork {
  std::vector<Buffer> frames;
  std::optional<std::uint64_t> consumed;  // a report. Units: bytes, since the connection was made
  bool bye = false;                       // the program has closed the side
  bool more = false;  // call `take_work` again, after the other sides had a turn
};

/// The socket of a side, as the side sees it.
///
/// Threads: safe to use concurrently. A caller holds no lock that a call of the side takes.
class ZmqSideSocket {
public:
  ZmqSideSocket() = default;
  ZmqSideSocket(const ZmqSideSocket&) = delete;
  ZmqSideSocket& operator=(const ZmqSideSocket&) = delete;
  virtual ~ZmqSideSocket() = default;

  /// When to send.
  enum class When { kNow, kSoon };
  /// The side with this route has something to send. `kNow`: sends it, or leaves that to the thread
  /// that uses the socket now. `kSoon`: leaves it to another thread, which sends what else comes
  /// until then together with it. Does not wait.
  virtual void on_work(const std::string& route, When when) = 0;
  /// Makes the calling thread the watcher, until `end_watch`, and receives what has arrived.
  /// Returns the descriptor to wait for, or -1 if the thread of another side watches or the socket
  /// ends.
  [[nodiscard]] virtual int begin_watch() = 0;
  /// Receives what has arrived. For the watcher, when the descriptor is readable.
  virtual void receive_watched() = 0;
  virtual void end_watch() = 0;
};

/// One side of a connection.
///
/// Threads: safe to use concurrently; see the sections.
class ZmqSide {
public:
  /// Starts the thread of the side, which uses `socket` after `start` and until `stop`.
  /// Throws `std::system_error` if the system has no thread or descriptor left.
  ZmqSide(ZmqSideSocket& socket, std::string route);
  ZmqSide(const ZmqSide&) = delete;
  ZmqSide& operator=(const ZmqSide&) = delete;
  ~ZmqSide();

  // -- for the program, as in Connection ----------------------------------------------------------

  void start(ConnectionListener& listener);
  [[nodiscard]] Status send(const Buffer& frame);
  void close();
  /// Closes the side and waits for a call of the listener in progress. None follows.
  void stop();

  // -- for the thread that uses the socket --------------------------------------------------------

  /// Returns what must be sent now. The caller must send all of it, or end the side.
  [[nodiscard]] ZmqWork take_work();
  /// A frame has arrived.
  /// Errors: `kCorruptData` if the peer had no right to send it.
  [[nodiscard]] Status on_frame(Buffer frame);
  /// The peer reports how much its listener has consumed.
  /// Errors: `kCorruptData` if that cannot be. Otherwise `take_work` may have something to return.
  [[nodiscard]] Status on_consumed(std::uint64_t bytes);
  /// The connection has ended. Frames that have arrived go to the listener before it learns of it.
  void end(const Status& reason);

private:
  enum class Then { kTellListener, kStop };
  void close_and(Then then);
  // Gives frames to the listener until it knows that the side is closed.
  void deliver();
  void deliver_frame(std::unique_lock<std::mutex>& lock);
  // Returns whether the thread has something to do. Requires the lock, as all below do.
  [[nodiscard]] bool due() const;
  // Waits until the thread has something to do. Receives meanwhile, if no other thread does.
  void wait(std::unique_lock<std::mutex>& lock);
  // Waits until another thread calls `wake`, or something arrives on `descriptor` (-1: none).
  void sleep(std::unique_lock<std::mutex>& lock, int descriptor);
  void wake();
  // Returns whether `on_work` of the socket has to be called, and assumes that it will.
  [[nodiscard]] bool request_work();

  ZmqSideSocket& socket_;
  const std::string route_;
  const UniqueFd wake_;  // an eventfd
  std::mutex mutex_;
  ConnectionListener* listener_ = nullptr;  // null before the start
  bool open_ = true;
  bool stopped_ = false;
  bool sleeping_ = false;   // the thread has to be woken
  bool requested_ = false;  // `on_work` is called, and `take_work` was not
  bool bye_due_ = false;
  Status reason_;  // why the side is not open
  std::deque<Buffer> outgoing_;
  std::deque<Buffer> incoming_;
  // Totals since the connection was made. Units: bytes, with overhead.
  std::uint64_t sent_ = 0;
  std::uint64_t consumed_by_peer_ = 0;
  std::uint64_t received_ = 0;
  std::uint64_t consumed_ = 0;
  std::uint64_t reported_ = 0;
  std::thread thread_;
};

}  // namespace tidemill::transport
