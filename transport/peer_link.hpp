// SPDX-License-Identifier: Apache-2.0
// Messages between this process and others. A link is a session with one other process and its
// current connection, which is replaced when it breaks.
//
// One of the two processes has a connector and opens connections. The other one accepts them. Links
// have no thread: their connections call them, and so does a program that calls `advance` in time,
// such as a `PeerLinkThread`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/buffer.hpp"
#include "base/clock.hpp"
#include "base/result.hpp"
#include "base/status.hpp"
#include "transport/connection.hpp"
#include "transport/peer_session.hpp"

namespace tidemill::transport {

/// Receives what happens on a link.
///
/// A call may use the link, but not destroy it. It must return well within
/// `PeerSessionOptions::max_silence`: meanwhile nothing is read from the connection, which then
/// counts as silent.
/// Threads: one call at a time, on a connection's thread or on a thread that is in `PeerLink::end`
/// or `PeerLinks::advance`.
class PeerLinkListener {
public:
  PeerLinkListener() = default;
  PeerLinkListener(const PeerLinkListener&) = delete;
  PeerLinkListener& operator=(const PeerLinkListener&) = delete;
  virtual ~PeerLinkListener() = default;

  /// A message has arrived. If `message.late` is set, it is a reply to a request that has already
  /// failed. The receiver calls `PeerLink::release` once it has processed the message.
  virtual void on_message(const IncomingMessage& message) = 0;
  /// A request gets no reply.
  virtual void on_failure(const FailedRequest& failed) = 0;
  /// After `send` has failed with `kResourceExhausted`: there is more room now, or the time of
  /// `PeerLink::wake_at` has come.
  virtual void on_room() = 0;
  /// Nothing has arrived from the peer for `lasted`, at least
  /// `PeerLinkOptions::tell_silence_after`. Called once for each silence.
  virtual void on_silence(Duration /*lasted*/) {}
  /// After `on_silence`: something has arrived again, after `lasted`.
  virtual void on_heard(Duration /*lasted*/) {}
  /// The session has ended. Called once. No call follows.
  virtual void on_ended(const Status& reason) = 0;
};

/// How a link opens connections.
struct PeerLinkOptions {
  PeerSessionOptions session;
  /// Opens connections. Outlives the link. Null: the peer opens them.
  Connector* connector = nullptr;
  /// How long one attempt may take. Meanwhile `PeerLinks::advance` does not return, so the other
  /// links of the process wait.
  Duration connect_wait = std::chrono::seconds(1);
  /// The pause after a failed attempt or a broken connection. Doubles with each until something
  /// arrives, up to `max_pause`. Positive, and at most `max_pause`.
  Duration first_pause = std::chrono::milliseconds(10);
  Duration max_pause = std::chrono::seconds(1);
  /// How long a peer that was heard before may be silent until the listener is told. If
  /// `PeerLinks::advance` is called more than a second late, the measurement restarts: this process
  /// was stopped, or too busy to hear its peer.
  Duration tell_silence_after = std::chrono::seconds(5);
};

/// The state of a link, for display.
struct PeerLinkStatus {
  PeerSession::State state = PeerSession::State::kDisconnected;
  TimePoint since;  // when it began
  PeerSessionCounts counts;
  std::uint64_t sent_bytes = 0;            // of frames
  std::uint64_t received_bytes = 0;        // of frames
  std::uint64_t unacknowledged_bytes = 0;  // of credit
  std::string problem;                     // why the last connection broke or could not be made
};

class PeerLinks;

/// The messages between this process and another one. Made by `PeerLinks::open`.
///
/// Threads: safe to call concurrently. Destroyed by one thread that makes no other call, and not
/// from inside a call of a listener. The destructor waits for a call of the listener in progress,
/// and none follows.
class PeerLink {
public:
  PeerLink(const PeerLink&) = delete;
  PeerLink& operator=(const PeerLink&) = delete;
  ~PeerLink();

  /// Sends a message; see `PeerSession::send`. Does not call the listener.
  [[nodiscard]] Result<std::uint64_t> send(const OutgoingMessage& message);
  /// Gives the peer the credit of a message back; see `PeerSession::release`. Does not call the
  /// listener.
  void release(const IncomingMessage& message);
  /// Calls `on_room` at `time`, even if there is no more room, in place of an earlier `wake_at`.
  /// `TimePoint::max()`: only if there is room. Does not call the listener.
  void wake_at(TimePoint time);
  /// Ends the session; see `PeerSession::end`.
  void end(const std::string& reason);
  [[nodiscard]] PeerLinkStatus status() const;

private:
  friend class PeerLinks;
  class Impl;
  PeerLink(std::unique_ptr<Impl> impl, PeerLinks& links);

  PeerLinks& links_;
  std::unique_ptr<Impl> impl_;
};

/// The links of a process. `PeerLinks` must outlive its links.
///
/// Threads: safe to call concurrently, except `advance`: one call at a time.
class PeerLinks {
public:
  /// Called when `advance` has to be called earlier than `next_event` last returned. From any
  /// thread. Must not call a link.
  using Wake = std::function<void()>;
  /// How many accepted connections may wait for their first frame. Beyond that, the oldest one is
  /// closed.
  static constexpr std::size_t kMaxArrivals = 64;
  /// How long an accepted connection may take until its first frame.
  static constexpr Duration kMaxArrivalTime = std::chrono::seconds(5);

  PeerLinks(const Clock& clock, Wake wake);
  PeerLinks(const PeerLinks&) = delete;
  PeerLinks& operator=(const PeerLinks&) = delete;
  ~PeerLinks();

  /// Opens a link. `listener` must outlive it. Requires that no link to the same peer in the same
  /// run and incarnation is open.
  [[nodiscard]] std::unique_ptr<PeerLink> open(const PeerLinkOptions& options,
                                               PeerLinkListener& listener);
  /// Takes a connection that was accepted. Its first frame says to which link it belongs. It is
  /// closed if there is no such link.
  void accept(std::unique_ptr<Connection> connection);

  /// Does what is due, which may be to open connections.
  void advance();
  /// Returns when `advance` has to be called at the latest, or `TimePoint::max()`.
  [[nodiscard]] TimePoint next_event();

private:
  friend class PeerLink;
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// Calls `advance` of the links of a process, in a thread of its own, until it is destroyed.
class PeerLinkThread {
public:
  PeerLinkThread();
  PeerLinkThread(const PeerLinkThread&) = delete;
  PeerLinkThread& operator=(const PeerLinkThread&) = delete;
  ~PeerLinkThread();

  [[nodiscard]] PeerLinks& links();

private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tidemill::transport
