// SPDX-License-Identifier: Apache-2.0
// Private to transport/zmq/: one side of a connection, without its socket.
//
// Three kinds of threads meet here. The program sends frames, which wait in `outgoing_`. The thread
// of the socket takes them from there, and adds the frames that arrive to `incoming_`. The thread
// of the side gives those to the listener, so a slow listener delays only its own connection.
//
// The two sides limit what is in flight, which ZeroMQ cannot do by bytes. Each side reports how
// much its listener has consumed, and the other one keeps the rest of its frames. So at most
// `kMaxInFlightBytes` wait in a receiver, even if its peer breaks the rules.
//
// A side is open first. `close`, or `end` for what the peer or the network does, closes it.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/buffer.hpp"
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

/// What the thread of a socket has to send for a side, in this order.
struct ZmqWork {
  std::vector<Buffer> frames;
  std::optional<std::uint64_t> consumed;  // a report. Units: bytes, since the connection was made
  bool bye = false;                       // the program has closed the side
  bool more = false;  // call `take_work` again, after the other sides had a turn
};

/// One side of a connection.
///
/// Threads: safe to use concurrently; see the sections.
class ZmqSide {
public:
  /// Starts the thread of the side. `on_work` is called when `take_work` has something to return
  /// that it had not before, by any thread. It must not block, and not call this object.
  /// Throws `std::system_error` if the system has no thread left.
  explicit ZmqSide(std::function<void()> on_work);
  ZmqSide(const ZmqSide&) = delete;
  ZmqSide& operator=(const ZmqSide&) = delete;
  ~ZmqSide();

  // -- for the program, as in Connection ----------------------------------------------------------

  void start(ConnectionListener& listener);
  [[nodiscard]] Status send(const Buffer& frame);
  void close();
  /// Closes the side and waits for a call of the listener in progress. None follows.
  void stop();

  // -- for the thread of the socket ---------------------------------------------------------------

  /// Returns what must be sent now. The caller must send all of it, or end the side.
  [[nodiscard]] ZmqWork take_work();
  /// A frame has arrived.
  /// Errors: `kCorruptData` if the peer had no right to send it.
  [[nodiscard]] Status on_frame(Buffer frame);
  /// The peer reports how much its listener has consumed.
  /// Errors: `kCorruptData` if that cannot be.
  [[nodiscard]] Status on_consumed(std::uint64_t bytes);
  /// The connection has ended. Frames that have arrived go to the listener before it learns of it.
  void end(const Status& reason);

private:
  enum class Then { kTellListener, kStop };
  void close_and(Then then);
  // Gives frames to the listener until it knows that the side is closed.
  void deliver();
  void deliver_frame(std::unique_lock<std::mutex>& lock);
  // Returns whether `on_work_` has to be called, and assumes that it will.
  [[nodiscard]] bool request_work();

  const std::function<void()> on_work_;
  std::mutex mutex_;
  std::condition_variable changed_;
  ConnectionListener* listener_ = nullptr;  // null before the start
  bool open_ = true;
  bool stopped_ = false;
  bool requested_ = false;  // `on_work_` was called, and `take_work` was not
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
