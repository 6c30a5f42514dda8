// SPDX-License-Identifier: Apache-2.0
// The state of a link. Private to transport/.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>

#include "transport/peer_connection.hpp"
#include "transport/peer_link.hpp"

namespace tidemill::transport {

class PeerLink::Impl final : public PeerConnectionHandler {
public:
  Impl(const PeerLinkOptions& options, PeerLinkListener& listener, const Clock& clock,
       std::function<void()> wake);

  Result<std::uint64_t> send(const OutgoingMessage& message);
  void release(const IncomingMessage& message);
  void wake_at(TimePoint time);
  void end(const std::string& reason);
  /// Takes a connection. One that was accepted has been started, and `first_frame` has arrived.
  void attach(std::unique_ptr<PeerConnection> connection, const Buffer* first_frame = nullptr);
  void on_frame(PeerConnection& from, const Buffer& frame) override;
  void on_closed(PeerConnection& from, const Status& reason) override;
  void advance();
  TimePoint next_event();
  PeerLinkStatus status() const;

  [[nodiscard]] const PeerSessionOptions& session_options() const { return options_.session; }

private:
  struct Room {};   // the event of `PeerLinkListener::on_room`
  struct Silence {  // the event of `on_silence`, and of `on_heard` once it is over
    Duration lasted;
    bool over = false;
  };
  using Event = std::variant<Room, Silence, IncomingMessage, FailedRequest, Status>;

  void take_frame(const Buffer& frame, const Result<Envelope>& envelope);
  void settle(std::unique_lock<std::mutex>& lock);
  void send_due(std::unique_lock<std::mutex>& lock);
  void send_frames();
  void note_state();
  void note_heard(TimePoint now);
  void note_silence(TimePoint now);
  void tell(const Event& event);
  void collect();
  void deliver(std::unique_lock<std::mutex>& lock);
  void lose_connection(const Status& why);
  void plan_connection();
  void open_connection(std::unique_lock<std::mutex>& lock);
  [[nodiscard]] TimePoint due() const;

  const PeerLinkOptions options_;
  PeerLinkListener& listener_;
  const Clock& clock_;
  const std::function<void()> wake_;

  mutable std::mutex mutex_;  // of all below
  PeerSession session_;
  Duration pause_;                        // before the next attempt to open a connection
  TimePoint connect_at_;                  // when to try; max(): the peer opens connections
  TimePoint planned_ = TimePoint::min();  // what `next_event` returned
  bool messages_arrive_ = false;          // since `next_event` was called
  std::deque<Event> events_;              // for the listener
  bool delivering_ = false;               // a thread calls the listener
  bool room_wanted_ = false;              // a message had no room
  TimePoint wake_at_ = TimePoint::max();  // when the listener wants to try again
  bool ended_ = false;                    // the listener gets to know the end
  std::optional<TimePoint> heard_;        // when a frame has arrived, or a silence is counted from
  bool silent_ = false;                   // the listener knows of a silence
  std::uint64_t sent_bytes_ = 0;
  std::uint64_t received_bytes_ = 0;
  PeerSession::State state_ = PeerSession::State::kDisconnected;  // as last noted
  TimePoint since_;                                               // of `state_`
  std::unique_ptr<PeerConnection> connection_;  // destroyed first: it uses the rest
};

}  // namespace tidemill::transport
