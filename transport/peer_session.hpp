// SPDX-License-Identifier: Apache-2.0
// Reliable messages between two processes, over connections that may break.
//
// A session is a state machine without threads, clocks and sockets. Its owner passes in what
// happens, with the time, and then takes out frames for the connection, messages from the peer, and
// requests that have failed. The same code therefore runs in a simulation.
//
// Each side numbers its messages from 1 on and keeps them until the peer acknowledges them. The
// receiver takes only the message with the next number. It ignores all others, so no message is
// delivered twice or out of order. Every frame that it sends acknowledges the last message that it
// took. A connection carries frames in order, so the sender sends messages again only on a new
// connection. A session gives a connection up if a message is missing, if nothing arrives for
// `max_silence`, or if messages were sent and the peer acknowledges none for `max_unacknowledged`.
// All of this holds for one incarnation of a run.
//
// The receiver limits what the sender may send by credit, which counts bytes. A message uses the
// size of its body and `kMessageOverheadBytes`. The receiver gives credit back when its program
// releases a message. Frames without a message use none, so acknowledgements never wait for credit.
//
// States: a session begins as kDisconnected. `connect` makes it kConnected. `disconnect`, `receive`
// if a message is missing, or `advance` after such a time make it kDisconnected again. `advance`
// ends a session that has received nothing for `max_unreachable`, and `end` ends it at once; a
// session that has ended stays so.
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

/// What a message uses of the credit in addition to its body: the rest of its frame, and its place
/// in a queue. Units: bytes.
inline constexpr std::uint64_t kMessageOverheadBytes = kMaxHeaderBytes + 256;

/// Options of a session. Give both sides the same values, except for `self` and `peer`: the peer
/// refuses frames of another run or incarnation and bodies above its own `max_body_bytes`, and
/// gives up a connection if the heartbeats are rarer than its `max_silence`. Durations that end a
/// session may differ. Durations are at most a day and, unless they say otherwise, positive.
struct PeerSessionOptions {
  std::uint64_t run = 0;
  std::uint32_t incarnation = 0;
  std::uint32_t self = 0;  // the number of this process; see `Envelope::sender`
  std::uint32_t peer = 0;  // the number of the other one
  /// How long an acknowledgement or returned credit may wait for a message to carry it. If there is
  /// none, it then gets a frame of its own. It does not wait if it is an eighth of `receive_bytes`.
  /// Less than `max_unacknowledged`. May be zero.
  Duration acknowledge_within = std::chrono::milliseconds(1);
  /// A connected session sends a frame at least this often.
  Duration heartbeat = std::chrono::milliseconds(250);
  /// A connection on which nothing has arrived for this long is broken. Several heartbeats.
  Duration max_silence = std::chrono::seconds(2);
  /// A connection is broken if messages were sent and none was acknowledged for this long. Longer
  /// than a connection needs to carry `send_bytes`.
  Duration max_unacknowledged = std::chrono::seconds(10);
  /// A session that has received nothing for this long ends.
  Duration max_unreachable = std::chrono::seconds(30);
  /// The same for a session that has never received anything, unless `max_unreachable` is shorter.
  Duration max_first_wait = std::chrono::seconds(30);
  /// The maximum size of a body, at most `kMaxBodyBytes`. Units: bytes.
  std::uint64_t max_body_bytes = kMaxBodyBytes;
  /// How much the peer may send that this program has not released. Units: bytes of credit.
  std::uint64_t receive_bytes = std::uint64_t{32} << 20U;
  /// How much this program may send that the peer has not acknowledged. Units: bytes of credit.
  std::uint64_t send_bytes = std::uint64_t{32} << 20U;
};

/// A message for the peer.
struct OutgoingMessage {
  std::uint16_t kind = 0;      // not 0, which the transport uses
  std::uint64_t reply_to = 0;  // the number of the request to which it replies, or 0
  /// Makes the message a request, which fails at this time if the peer has not replied.
  std::optional<TimePoint> expires;
  Buffer body;
};

/// A message from the peer.
struct IncomingMessage {
  std::uint16_t kind = 0;
  std::uint64_t number = 0;    // replies to this message carry it
  std::uint64_t reply_to = 0;  // the number of our request to which this message replies, or 0
  std::optional<TimePoint> expires;  // when the peer stops waiting for a reply
  Buffer body;
  /// Whether this is a reply to a request that has failed before. It is no result of the request.
  /// The receiver only returns what the message holds.
  bool late = false;
};

/// A request of this side that gets no reply.
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
  std::uint64_t late_replies = 0;  // replies to requests that had failed
};

/// One side of the messages between two processes.
///
/// Every request gets exactly one reply or failure. A reply that arrives after its request has
/// failed is marked as late.
///
/// The owner calls `advance` at `next_event()` at the latest. After every call it takes frames,
/// messages and failures, and closes the connection if the session is no longer connected. A
/// program must not wait for `send` to succeed before it releases a message: two programs that do
/// can deadlock.
///
/// Threads: one call at a time.
class PeerSession {
public:
  /// kDisconnected: there is no connection; messages wait for one. kConnected. kEnded: there will
  /// be none; `end_reason` says why.
  enum class State { kDisconnected, kConnected, kEnded };

  /// Requires `max_silence` > `heartbeat`, and room for a message of `max_body_bytes` in
  /// `send_bytes` and `receive_bytes`.
  PeerSession(const PeerSessionOptions& options, TimePoint now);
  PeerSession(const PeerSession&) = delete;
  PeerSession& operator=(const PeerSession&) = delete;

  [[nodiscard]] State state() const noexcept { return state_; }
  /// Returns why the last connection broke or could not be made, or an empty string.
  [[nodiscard]] const std::string& problem() const noexcept { return problem_; }
  /// Returns why the session has ended, or success if it has not. If the peer was unreachable, that
  /// includes the last problem.
  [[nodiscard]] const Status& end_reason() const noexcept { return end_reason_; }
  [[nodiscard]] PeerSessionCounts counts() const noexcept {
    return {last_sent_, resent_, taken_, ignored_, late_replies_};
  }
  /// Returns the credit that unacknowledged messages use. Units: bytes.
  [[nodiscard]] std::uint64_t unacknowledged_bytes() const noexcept;
  /// Returns when `advance` has to be called at the latest, or `TimePoint::max()`.
  [[nodiscard]] TimePoint next_event() const;

  /// Queues a message and returns its number. Requires a kind other than 0 and a resolved body.
  /// Errors: `kResourceExhausted` if `send_bytes` would be exceeded, until the peer acknowledges
  /// more; `kInvalidArgument` if the body is larger than `max_body_bytes`;
  /// `kUnavailable` if the session has ended.
  [[nodiscard]] Result<std::uint64_t> send(const OutgoingMessage& message);

  /// Tells the session that there is a new connection to the peer, which replaces any earlier one.
  /// Ignored after the end.
  void connect(TimePoint now);
  /// Tells the session that its current connection has closed, or that none could be made, and why.
  /// Not for one that was replaced.
  void disconnect(const std::string& why);
  /// Processes a frame that has arrived on the current connection or an earlier one. Ignored after
  /// the end. If it fails, the peer has broken the rules: the owner closes the connection and calls
  /// `disconnect`. Nothing of the frame then counts.
  /// Errors: `kStaleVersion` if the frame belongs to another incarnation; `kResourceExhausted` if
  /// the peer exceeds its credit; `kInvalidArgument` if the frame belongs to another run, comes
  /// from another process, acknowledges or replies to what was not sent, has a body of more than
  /// `max_body_bytes`, or is a message without kind or number, or a body without either.
  [[nodiscard]] Status receive(const Envelope& frame, TimePoint now);
  /// Gives the peer the credit of a message back. Call it exactly once for each message.
  void release(const IncomingMessage& message);
  /// Applies the timeouts until `now`: fails requests, gives up a connection, ends the session.
  void advance(TimePoint now);
  /// Ends the session. Unacknowledged messages may be lost, and all requests fail with
  /// `kUnavailable` and `reason`. The peer is not told.
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

  [[nodiscard]] Duration max_unreachable() const;
  [[nodiscard]] Envelope frame() const;
  [[nodiscard]] bool owes_frame(TimePoint now);
  [[nodiscard]] Status check(const Envelope& frame) const;
  void take_acknowledgement(std::uint64_t acknowledged, TimePoint now);
  void take_message(const Envelope& frame, TimePoint now);
  void fail_request(std::uint64_t number, const Status& reason);

  PeerSessionOptions options_;
  State state_ = State::kDisconnected;
  Status end_reason_;
  std::string problem_;

  // Sending.
  std::deque<Pending> pending_;  // by number
  std::size_t in_flight_ = 0;    // the first of `pending_`, sent on this connection
  std::uint64_t last_sent_ = 0;  // the number of the last message that was sent
  std::uint64_t last_number_ = 0;
  std::uint64_t acknowledged_bytes_ = 0;  // credit that acknowledged messages have used
  std::uint64_t queued_bytes_ = 0;        // credit that all messages use
  std::uint64_t credit_ = 0;              // from the peer
  TimePoint progress_at_;  // if messages are in flight: when one was acknowledged or sent first
  std::map<std::uint64_t, TimePoint> requests_;  // without a reply
  std::set<std::pair<TimePoint, std::uint64_t>> expiries_;

  // Receiving.
  std::uint64_t taken_ = 0;           // the number of the last message that was taken
  std::uint64_t taken_bytes_ = 0;     // credit that these messages have used
  std::uint64_t released_bytes_ = 0;  // credit that the peer got back
  std::vector<IncomingMessage> messages_;
  std::vector<FailedRequest> failures_;

  std::uint64_t resent_ = 0;  // these three as in `PeerSessionCounts`
  std::uint64_t ignored_ = 0;
  std::uint64_t late_replies_ = 0;
  bool frame_due_ = false;                 // the peer has to learn something
  bool frame_now_ = false;                 // at once
  std::optional<TimePoint> frame_due_at_;  // if only `frame_due_`: at the latest
  std::uint64_t reported_bytes_ = 0;       // `taken_bytes_` + `released_bytes_` of the last frame
  TimePoint frame_sent_at_;
  TimePoint connected_at_;
  TimePoint received_at_;  // the last frame, or when the session was made
  bool received_ = false;  // anything
};

}  // namespace tidemill::transport
