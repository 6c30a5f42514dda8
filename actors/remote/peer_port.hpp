// SPDX-License-Identifier: Apache-2.0
// The port through which the actors of a process exchange messages with another process.
//
// The threads of the link call the port, which passes on what arrives as messages to actors.
#pragma once

#include <any>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <caf/actor_control_block.hpp>
#include <caf/allowed_unsafe_message_type.hpp>

#include "actors/wire/messages.hpp"
#include "base/buffer.hpp"
#include "base/clock.hpp"
#include "base/status.hpp"
#include "transport/peer_link.hpp"

namespace tidemill::actors {

class PeerPort;

/// A message from another process, or the failure of a call to it. Dropping the last handle returns
/// the message's credit to the sender, so an actor drops it once it has decoded it.
struct PeerMessage {
  PeerMessage() = default;
  PeerMessage(const PeerMessage&) = delete;
  PeerMessage& operator=(const PeerMessage&) = delete;
  ~PeerMessage();

  MessageKind kind = MessageKind::kFailure;
  std::uint64_t number = 0;  // replies to this message carry it
  std::uint64_t call = 0;    // the call that has ended with this, or 0
  Status failure;            // why the call has failed; its message then has no content
  Buffer body;
  std::any content;  // what the decoder of the kind has returned; empty: there is none

  std::weak_ptr<PeerPort> port;              // which gets the credit back
  transport::IncomingMessage incoming = {};  // the message that has the credit
};
using PeerMessagePtr = std::shared_ptr<const PeerMessage>;

/// The messages between the actors of this process and another process.
///
/// Messages wait in the port, in their order, until there is room to send them. A call that waits
/// fails at its deadline and is then never sent. The owner must close a port that was opened before
/// it destroys it.
/// Threads: safe to call concurrently.
class PeerPort final : public transport::PeerLinkListener,
                       public std::enable_shared_from_this<PeerPort> {
public:
  /// Decodes the body of a message. Called by the threads of the link, so it must return well
  /// within `PeerSessionOptions::max_silence`: meanwhile nothing is read from the connection.
  using Decoder = std::function<std::any(const Buffer& body)>;

  /// How much may wait for room. A peer that lets more wait has its link ended. Units: bytes.
  static constexpr std::uint64_t kMaxWaitingBytes = std::uint64_t{512} << 20U;

  /// Receives the second part of a line for the user, such as " has not been heard for 5 s: ...",
  /// which follows the name of the other process. Called by threads of the link; must not use the
  /// port.
  using Log = std::function<void(const std::string& fact)>;

  /// `clock` outlives the port. `log` may be empty.
  explicit PeerPort(const Clock& clock, Log log = {}) : clock_(clock), log_(std::move(log)) {}
  ~PeerPort() override = default;

  /// Opens the link. Called at most once. `receiver` gets `atom::deliver` with each message that is
  /// no reply, unless it is of a kind of another receiver, and `atom::closed` with the reason,
  /// once, when the link has ended. If the port was closed before, or too many bytes waited in it,
  /// `receiver` gets `atom::closed` at once. Messages that were sent earlier wait in the port until
  /// this call. `links` and the connector of `options` must live until `close` has returned.
  void open(transport::PeerLinks& links, const transport::PeerLinkOptions& options,
            caf::strong_actor_ptr receiver);
  /// Lets `receiver` get the messages of kinds `first` to `last` in place of the receiver of
  /// `open`. It gets `atom::closed` too. Call it before `open`, or messages that arrive earlier go
  /// to the receiver of `open`.
  void add_receiver(MessageKind first, MessageKind last, caf::strong_actor_ptr receiver);
  /// Has the port decode all messages of a kind that arrive from now on, before it delivers them.
  /// It also decodes a reply whose call has failed, and then drops the content. So what a message
  /// has lent is returned, whether an actor waits for it or not.
  void set_decoder(MessageKind kind, Decoder decoder);
  /// Closes the link, and returns once it is destroyed, for which it waits until calls of the link
  /// in progress have returned. Calls without a reply fail with `kUnavailable` and this reason,
  /// unless the link has ended before. Not from inside a call of the link.
  void close(const std::string& reason);

  /// Sends a request and returns its number among the calls of this port, which is
  /// `PeerMessage::call` of its end. `caller` gets `atom::deliver` with the reply or with a
  /// failure, exactly once, unless the port is destroyed before it is opened or closed. Deadlines
  /// have no effect before `open`: a request that is late by then fails once the port is opened.
  /// Failures: `kTimeout` if there is no reply before the deadline, or no room to send the request;
  /// `kInvalidArgument` if the body is larger than `PeerSessionOptions::max_body_bytes`;
  /// `kUnavailable` if the link ends first.
  std::uint64_t call(MessageKind kind, Buffer body, Duration deadline,
                     caf::strong_actor_ptr caller);
  /// Sends a message that needs no reply. The message is lost if the link ends first, or if its
  /// body is larger than `PeerSessionOptions::max_body_bytes`, so the caller checks the size.
  void tell(MessageKind kind, Buffer body);
  /// Replies to the message with this number. If the body is larger than
  /// `PeerSessionOptions::max_body_bytes`, sends a `kFailure` with `kInvalidArgument` instead. Lost
  /// if the link ends first.
  void reply(std::uint64_t number, MessageKind kind, Buffer body);

  /// Returns the state of the link. Before `open`: disconnected. After `close`: the last one.
  [[nodiscard]] transport::PeerLinkStatus status() const;
  /// Returns the size of the messages that wait for room. Units: bytes of bodies.
  [[nodiscard]] std::uint64_t waiting_bytes() const;

  void on_message(const transport::IncomingMessage& message) override;
  void on_failure(const transport::FailedRequest& failed) override;
  void on_room() override;
  void on_silence(Duration lasted) override;
  void on_heard(Duration lasted) override;
  void on_ended(const Status& reason) override;

private:
  friend struct PeerMessage;

  struct Waiting {
    transport::OutgoingMessage message;
    std::uint64_t call = 0;  // or 0
  };
  // Gets the messages of these kinds that are no replies.
  struct Receiver {
    MessageKind first{};
    MessageKind last{};
    caf::strong_actor_ptr actor;
  };
  [[nodiscard]] const caf::strong_actor_ptr& receiver_of(MessageKind kind) const;
  [[nodiscard]] caf::strong_actor_ptr take_target(const transport::IncomingMessage& message,
                                                  PeerMessage& arrived);
  void release(const transport::IncomingMessage& message);
  void send(Waiting message, std::unique_lock<std::mutex> lock);
  void send_waiting();
  void wake_for_waiting_calls();
  void fail_expired();
  void fail(std::uint64_t call, const Status& why);

  const Clock& clock_;
  const Log log_;
  mutable std::mutex mutex_;         // of all below
  std::condition_variable changed_;  // of the next four
  std::unique_ptr<transport::PeerLink> link_;
  int num_ending_ = 0;                    // calls of `send` that end the link
  bool closing_ = false;                  // a thread is in `close`, or was
  bool closed_ = false;                   // that thread has left it
  caf::strong_actor_ptr receiver_;        // of `open`
  std::vector<Receiver> receivers_ = {};  // of `add_receiver`
  std::map<MessageKind, std::shared_ptr<const Decoder>> decoders_;
  std::deque<Waiting> waiting_;
  std::uint64_t waiting_bytes_ = 0;                              // of their bodies
  std::set<std::pair<TimePoint, std::uint64_t>> waiting_calls_;  // when they fail
  std::uint64_t last_call_ = 0;
  std::map<std::uint64_t, caf::strong_actor_ptr> callers_;  // by call
  std::map<std::uint64_t, std::uint64_t> sent_calls_;       // calls, by the number of their message
  Status end_;                                              // why the link has ended
  transport::PeerLinkStatus last_status_;                   // when it was closed
};

}  // namespace tidemill::actors

// Holds a message of the transport, so it stays within the process.
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(std::shared_ptr<const tidemill::actors::PeerMessage>)
