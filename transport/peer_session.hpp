// SPDX-License-Identifier: Apache-2.0
// Reliable messages between two processes, over connections that may lose, repeat or reorder frames
// and that may break.
//
// A session is a state machine without threads, clocks and sockets. Its owner passes in what
// happens, with the time, and then takes out frames for the connection, messages from the peer, and
// requests that have failed. The same code therefore runs in a simulation.
//
// Each side numbers its messages from 1 on and keeps them until the peer acknowledges them. The
// receiver takes only the message with the next number. It ignores all others, so that none is
// delivered twice or out of order, and acknowledges the last one that it took with every frame that
// it sends. Without progress, and on a new connection, the sender sends all unacknowledged messages
// again. All of this holds for one incarnation of a run.
//
// The receiver limits what the sender may send by credit, which counts bytes. A message uses the
// size of its body and `kMessageOverheadBytes`. The receiver gives credit back when its program
// releases a message. Frames without a message use none, so acknowledgements never wait for credit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/buffer.hpp"
#include "base/clock.hpp"
#include "base/result.hpp"
#include "base/status.hpp"
#include "transport/envelope.hpp"

namespace tidemill::transport {

/// What a message uses of the credit in addition to its body. Units: bytes.
inline constexpr std::uint64_t kMessageOverheadBytes = 64;

/// How two processes talk to each other. Both sides need the same `run`, `incarnation` and
/// `max_body_bytes`.
struct PeerSessionOptions {
  std::uint64_t run = 0;
  std::uint32_t incarnation = 0;
  std::uint32_t self = 0;  // the number of this process
  std::uint32_t peer = 0;  // the number of the other one
  /// A connected session sends a frame at least this often.
  Duration heartbeat = std::chrono::milliseconds(250);
  /// A connection on which nothing has arrived for this long is broken. Several heartbeats.
  Duration max_silence = std::chrono::seconds(2);
  /// Unacknowledged messages are sent again after this time without progress. Each further time
  /// without progress doubles it, up to `max_silence`.
  Duration resend_after = std::chrono::milliseconds(500);
  /// A session without a connection for this long ends.
  Duration max_disconnected = std::chrono::seconds(30);
  /// The maximum size of a body, at most `kMaxBodyBytes`. Units: bytes.
  std::uint64_t max_body_bytes = kMaxBodyBytes;
  /// How much the peer may send that this program has not released. Units: bytes of credit.
  std::uint64_t receive_bytes = std::uint64_t{32} << 20U;
  /// How much this program may send that the peer has not acknowledged. Units: bytes of credit.
  std::uint64_t send_bytes = std::uint64_t{32} << 20U;
};

/// A message for the peer.
struct OutgoingMessage {
  std::uint16_t kind = 0;     // not 0, which the transport uses
  std::uint64_t request = 0;  // the number of the peer's request that this message answers, or 0
  /// Makes the message a request, which fails at this time if the peer has not answered.
  std::optional<TimePoint> expires;
  Buffer body;
};

/// A message from the peer.
struct IncomingMessage {
  std::uint16_t kind = 0;
  std::uint64_t number = 0;          // answers to this message carry it
  std::uint64_t request = 0;         // the number of our request that this message answers, or 0
  std::optional<TimePoint> expires;  // when the peer stops waiting for an answer
  Buffer body;
};

/// A request of this side that gets no answer.
struct FailedRequest {
  std::uint64_t number = 0;
  Status reason;  // `kTimeout`, or `kUnavailable` if the session has ended
};

/// What a session has counted since it was made.
struct PeerSessionCounts {
  std::uint64_t sent = 0;          // messages, each once
  std::uint64_t resent = 0;        // times that a message was sent again
  std::uint64_t taken = 0;         // messages from the peer, each once
  std::uint64_t ignored = 0;       // frames with a message that was not the next one
  std::uint64_t late_answers = 0;  // answers to requests that had failed
};

/// One side of the messages between two processes.
///
/// Every request gets exactly one answer or failure. An answer that arrives after its request has
/// failed is dropped.
///
/// Threads: one call at a time.
class PeerSession {
public:
  /// kDisconnected: there is no connection; messages wait for one. kConnected. kEnded: there will
  /// be none; `end_reason` says why.
  enum class State { kDisconnected, kConnected, kEnded };

  /// Requires `max_silence` > `heartbeat` > 0, and room for a message of `max_body_bytes` in
  /// `send_bytes` and `receive_bytes`.
  PeerSession(const PeerSessionOptions& options, TimePoint now);
  PeerSession(const PeerSession&) = delete;
  PeerSession& operator=(const PeerSession&) = delete;

  [[nodiscard]] State state() const noexcept { return state_; }
  /// Returns why the session has ended, or success if it has not.
  [[nodiscard]] const Status& end_reason() const noexcept { return end_reason_; }
  [[nodiscard]] const PeerSessionCounts& counts() const noexcept { return counts_; }
  /// Returns the credit that messages use which the peer has not acknowledged. Units: bytes.
  [[nodiscard]] std::uint64_t unacknowledged_bytes() const noexcept;
  /// Returns when `advance` has to be called at the latest.
  [[nodiscard]] TimePoint next_event() const;

  /// Queues a message and returns its number. Requires a kind other than 0 and a resolved body.
  /// Errors: `kResourceExhausted` if `send_bytes` would be exceeded, until the peer acknowledges
  /// more; `kInvalidArgument` if the body is larger than `max_body_bytes`;
  /// `kUnavailable` if the session has ended.
  [[nodiscard]] Result<std::uint64_t> send(const OutgoingMessage& message);

  /// There is a new connection to the peer. It replaces an earlier one. Ignored after the end.
  void connect(TimePoint now);
  /// The connection has broken.
  void disconnect(TimePoint now);
  /// A frame has arrived on the connection, or on an earlier one. Ignored after the end. If the
  /// call fails, the peer has broken the rules: the owner must close the connection and call
  /// `disconnect`. Nothing of the frame then counts. Errors: `kStaleVersion` if the frame belongs
  /// to another incarnation; `kInvalidArgument` if it belongs to another run, comes from another
  /// process, or acknowledges what was not sent; `kResourceExhausted` if the peer exceeds its
  /// credit.
  [[nodiscard]] Status receive(const Envelope& frame, TimePoint now);
  /// The program has finished with a message, whose credit the peer gets back.
  void release(const IncomingMessage& message);
  /// Applies the timeouts until `now`.
  void advance(TimePoint now);
  /// Ends the session. All requests fail with `kUnavailable` and `reason`.
  void end(const std::string& reason);

  /// Returns the frames that the connection has to send now, in this order.
  [[nodiscard]] std::vector<Envelope> take_frames(TimePoint now);
  /// Returns the messages that have arrived.
  [[nodiscard]] std::vector<IncomingMessage> take_messages();
  /// Returns the requests that have failed.
  [[nodiscard]] std::vector<FailedRequest> take_failures();

private:
  // A message that the peer has not acknowledged.
  struct Pending {
    std::uint64_t number = 0;
    std::uint64_t bytes_until = 0;  // credit that all messages up to this one use
    OutgoingMessage message;
  };

  [[nodiscard]] Envelope frame() const;
  [[nodiscard]] Status check(const Envelope& frame) const;
  void take_acknowledgement(std::uint64_t acknowledged, TimePoint now);
  void take_message(const Envelope& frame, TimePoint now);
  void resend_all(TimePoint now);
  void fail_request(std::uint64_t number, const Status& reason);

  PeerSessionOptions options_;
  State state_ = State::kDisconnected;
  Status end_reason_;

  // Sending.
  std::deque<Pending> pending_;  // by number
  std::size_t sent_ = 0;         // how many of `pending_` do not have to be sent now
  std::uint64_t last_number_ = 0;
  std::uint64_t acknowledged_bytes_ = 0;  // credit that acknowledged messages have used
  std::uint64_t queued_bytes_ = 0;        // credit that all messages use
  std::uint64_t credit_ = 0;              // from the peer
  Duration resend_after_;
  TimePoint resend_at_;                          // if a message was sent
  std::map<std::uint64_t, TimePoint> requests_;  // without an answer
  std::set<std::pair<TimePoint, std::uint64_t>> expiries_;

  // Receiving.
  std::uint64_t taken_bytes_ = 0;     // credit that these messages have used
  std::uint64_t released_bytes_ = 0;  // credit that the peer got back
  std::vector<IncomingMessage> messages_;
  std::vector<FailedRequest> failures_;

  PeerSessionCounts counts_;
  bool frame_due_ = false;  // the peer has to learn something
  TimePoint last_sent_;
  TimePoint last_received_;       // or when the connection was made
  TimePoint disconnected_since_;  // if it is
};

}  // namespace tidemill::transport
