// SPDX-License-Identifier: Apache-2.0
#include "transport/peer_link.hpp"

#include <algorithm>
#include <utility>

#include "base/check.hpp"
#include "transport/envelope.hpp"
#include "transport/peer_link_impl.hpp"

namespace tidemill::transport {
namespace {

// A call of `advance` that is later than planned by more than this says that this process did not
// run for a while.
constexpr Duration kMaxLate = std::chrono::seconds(1);

}  // namespace

PeerLink::Impl::Impl(const PeerLinkOptions& options, PeerLinkListener& listener, const Clock& clock,
                     std::function<void()> wake)
    : options_(options),
      listener_(listener),
      clock_(clock),
      wake_(std::move(wake)),
      session_(options.session, clock.now()),
      pause_(options.first_pause),
      connect_at_(options.connector != nullptr ? clock.now() : TimePoint::max()),
      since_(clock.now()) {
  TIDEMILL_CHECK(options.first_pause > Duration::zero() && options.max_pause >= options.first_pause)
      << options.first_pause.count() << " " << options.max_pause.count();
}

Result<std::uint64_t> PeerLink::Impl::send(const OutgoingMessage& message) {
  std::unique_lock lock(mutex_);
  Result<std::uint64_t> number = session_.send(message);
  room_wanted_ = room_wanted_ || number.status().code() == Errc::kResourceExhausted;
  send_due(lock);
  return number;
}

void PeerLink::Impl::release(const IncomingMessage& message) {
  std::unique_lock lock(mutex_);
  session_.release(message);
  send_due(lock);
}

void PeerLink::Impl::wake_at(TimePoint time) {
  std::unique_lock lock(mutex_);
  wake_at_ = time;
  send_due(lock);
}

void PeerLink::Impl::end(const std::string& reason) {
  std::unique_lock lock(mutex_);
  session_.end(reason);
  settle(lock);
}

void PeerLink::Impl::attach(std::unique_ptr<PeerConnection> connection, const Buffer* first_frame) {
  std::unique_ptr<PeerConnection> earlier;  // destroyed without the lock, for which it may wait
  std::unique_lock lock(mutex_);
  earlier = std::exchange(connection_, std::move(connection));
  if (first_frame == nullptr) {
    connection_->start(*this);
  }
  session_.connect(clock_.now());
  if (first_frame != nullptr && session_.state() == PeerSession::State::kConnected) {
    take_frame(*first_frame, read_envelope(*first_frame));
  }
  settle(lock);
}

void PeerLink::Impl::on_frame(PeerConnection& from, const Buffer& frame) {
  const Result<Envelope> envelope = read_envelope(frame);
  std::unique_lock lock(mutex_);
  if (&from == connection_.get() && session_.state() == PeerSession::State::kConnected) {
    take_frame(frame, envelope);
    settle(lock);
  }
}

// Requires the lock.
void PeerLink::Impl::take_frame(const Buffer& frame, const Result<Envelope>& envelope) {
  received_bytes_ += frame.size_bytes();
  const std::uint64_t unacknowledged = session_.unacknowledged_bytes();
  const TimePoint now = clock_.now();
  const Status status = envelope.ok() ? session_.receive(envelope.value(), now) : envelope.status();
  if (status.ok()) {
    note_heard(now);
  }
  if (!status.ok()) {
    lose_connection(status);
  } else if (session_.state() == PeerSession::State::kDisconnected) {
    plan_connection();  // a message is missing
  } else {
    pause_ = options_.first_pause;
  }
  if (room_wanted_ && session_.unacknowledged_bytes() < unacknowledged) {
    room_wanted_ = false;
    events_.emplace_back(Room{});
  }
}

void PeerLink::Impl::on_closed(PeerConnection& from, const Status& reason) {
  std::unique_lock lock(mutex_);
  if (&from == connection_.get() && session_.state() == PeerSession::State::kConnected) {
    lose_connection(reason);
    settle(lock);
  }
}

void PeerLink::Impl::advance() {
  std::unique_lock lock(mutex_);
  session_.advance(clock_.now());
  note_silence(clock_.now());
  if (wake_at_ <= clock_.now() && session_.state() != PeerSession::State::kEnded) {
    wake_at_ = TimePoint::max();
    events_.emplace_back(Room{});
  }
  settle(lock);
  if (session_.state() == PeerSession::State::kDisconnected && connect_at_ <= clock_.now()) {
    open_connection(lock);
  }
}

TimePoint PeerLink::Impl::next_event() {
  const std::lock_guard lock(mutex_);
  // A message should not have to wake the thread that advances, although its acknowledgement is due
  // soon: a reply often carries it before. So while messages arrive, the plan is as early as an
  // acknowledgement can be, and an earlier plan stays.
  const TimePoint now = clock_.now();
  planned_ = planned_ > now ? std::min(planned_, due()) : due();
  if (std::exchange(messages_arrive_, false)) {
    planned_ = std::min(planned_, now + options_.session.acknowledge_within);
  }
  return planned_;
}

PeerLinkStatus PeerLink::Impl::status() const {
  const std::lock_guard lock(mutex_);
  PeerLinkStatus status;
  status.state = session_.state();
  status.since = since_;
  status.counts = session_.counts();
  status.sent_bytes = sent_bytes_;
  status.received_bytes = received_bytes_;
  status.unacknowledged_bytes = session_.unacknowledged_bytes();
  status.problem = session_.problem();
  return status;
}

TimePoint PeerLink::Impl::due() const {
  if (session_.state() == PeerSession::State::kEnded) {
    return TimePoint::max();
  }
  TimePoint next = std::min(session_.next_event(), wake_at_);
  if (heard_.has_value() && !silent_) {
    next = std::min(next, *heard_ + options_.tell_silence_after);
  }
  return session_.state() == PeerSession::State::kDisconnected ? std::min(next, connect_at_) : next;
}

// The connection carries nothing any more. Requires the lock.
void PeerLink::Impl::lose_connection(const Status& why) {
  session_.disconnect(why.message());
  plan_connection();
}

void PeerLink::Impl::plan_connection() {
  if (options_.connector != nullptr) {
    connect_at_ = clock_.now() + pause_;
    pause_ = std::min(2 * pause_, options_.max_pause);
  }
}

// Tries to open a connection, without the lock meanwhile. Only `advance` calls this, and only one
// call of it at a time has a connector to use.
void PeerLink::Impl::open_connection(std::unique_lock<std::mutex>& lock) {
  connect_at_ = TimePoint::max();
  lock.unlock();
  auto opened = options_.connector->connect(options_.connect_wait);
  if (opened.ok()) {
    attach(std::make_unique<PeerConnection>(std::move(opened).value()));
    lock.lock();
    return;
  }
  lock.lock();
  lose_connection(opened.status());
  settle(lock);
}

// Sends what the session has to send, and delivers what it has to deliver. The last step of every
// call that may have changed the session, other than those below.
void PeerLink::Impl::settle(std::unique_lock<std::mutex>& lock) {
  send_due(lock);
  collect();
  deliver(lock);
}

// Sends what the session has to send. The last step of the calls that change nothing which the
// listener has to know. They leave it alone even if another thread, in the middle of `settle`, has
// something for it: their caller may hold a lock that the listener takes.
void PeerLink::Impl::send_due(std::unique_lock<std::mutex>& lock) {
  send_frames();
  note_state();
  const TimePoint next = due();
  const bool earlier = next < planned_;
  planned_ = std::min(planned_, next);
  if (earlier) {
    lock.unlock();
    wake_();
    lock.lock();
  }
}

void PeerLink::Impl::send_frames() {
  for (const Envelope& envelope : session_.take_frames(clock_.now())) {
    auto bytes = write_envelope(envelope);
    TIDEMILL_CHECK(bytes.ok()) << bytes.status().to_string();  // the session limits bodies
    const Buffer frame = Buffer::adopt(std::move(bytes).value(), DType::kU8);
    sent_bytes_ += frame.size_bytes();
    const Status sent = connection_->connection().send(frame);
    if (!sent.ok()) {
      lose_connection(sent);
      return;
    }
  }
}

// Notes when the state has changed, and closes a connection that the session has given up.
void PeerLink::Impl::note_state() {
  if (session_.state() != PeerSession::State::kConnected && connection_ != nullptr) {
    connection_->connection().close();
  }
  if (session_.state() == state_) {
    return;
  }
  state_ = session_.state();
  since_ = clock_.now();
  if (state_ == PeerSession::State::kDisconnected && connect_at_ == TimePoint::max()) {
    plan_connection();  // the session has given the connection up
  }
}

void PeerLink::Impl::note_heard(TimePoint now) {
  if (std::exchange(silent_, false)) {
    events_.emplace_back(Silence{now - *heard_, true});
  }
  heard_ = now;
}

void PeerLink::Impl::note_silence(TimePoint now) {
  if (!heard_.has_value() || silent_ || session_.state() == PeerSession::State::kEnded) {
    return;
  }
  if (planned_ < now - kMaxLate) {
    heard_ = now;  // what the peer has sent meanwhile may not have been read yet
  } else if (now - *heard_ >= options_.tell_silence_after) {
    silent_ = true;
    events_.emplace_back(Silence{now - *heard_});
  }
}

void PeerLink::Impl::collect() {
  for (IncomingMessage& message : session_.take_messages()) {
    messages_arrive_ = true;
    events_.emplace_back(std::move(message));
  }
  for (FailedRequest& failed : session_.take_failures()) {
    events_.emplace_back(std::move(failed));
  }
  if (state_ == PeerSession::State::kEnded && !ended_) {
    ended_ = true;
    events_.emplace_back(session_.end_reason());
  }
}

// Calls the listener, without the lock.
void PeerLink::Impl::tell(const Event& event) {
  if (const auto* message = std::get_if<IncomingMessage>(&event)) {
    listener_.on_message(*message);
  } else if (const auto* failed = std::get_if<FailedRequest>(&event)) {
    listener_.on_failure(*failed);
  } else if (const auto* reason = std::get_if<Status>(&event)) {
    listener_.on_ended(*reason);
  } else if (const auto* silence = std::get_if<Silence>(&event)) {
    silence->over ? listener_.on_heard(silence->lasted) : listener_.on_silence(silence->lasted);
  } else {
    listener_.on_room();
  }
}

// One thread at a time delivers, so the listener gets all events in their order.
void PeerLink::Impl::deliver(std::unique_lock<std::mutex>& lock) {
  if (delivering_) {
    return;
  }
  delivering_ = true;
  while (!events_.empty()) {
    const Event event = std::move(events_.front());
    events_.pop_front();
    lock.unlock();
    tell(event);
    lock.lock();
  }
  delivering_ = false;
}

}  // namespace tidemill::transport
