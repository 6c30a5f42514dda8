// SPDX-License-Identifier: Apache-2.0
#include "actors/remote/peer_port.hpp"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include <caf/all.hpp>

#include "actors/atoms.hpp"
#include "base/check.hpp"

namespace tidemill::actors {
namespace {

void deliver(const caf::strong_actor_ptr& receiver, std::shared_ptr<const PeerMessage> message) {
  if (receiver != nullptr) {
    caf::anon_send(caf::actor_cast<caf::actor>(receiver), atom::deliver_v, std::move(message));
  }
}

void send_closed(const caf::strong_actor_ptr& receiver, const Status& reason) {
  caf::anon_send(caf::actor_cast<caf::actor>(receiver), atom::closed_v, reason.message());
}

std::string seconds_text(Duration time) {
  return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(time).count()) + " s";
}

}  // namespace

PeerMessage::~PeerMessage() {
  if (incoming.kind == 0) {
    return;
  }
  if (const std::shared_ptr<PeerPort> owner = port.lock(); owner != nullptr) {
    owner->release(incoming);
  }
}

void PeerPort::open(transport::PeerLinks& links, const transport::PeerLinkOptions& options,
                    caf::strong_actor_ptr receiver) {
  const std::lock_guard lock(mutex_);
  TIDEMILL_CHECK(link_ == nullptr && receiver_ == nullptr) << "opened twice";
  if (closing_ || !end_.ok()) {
    send_closed(receiver, end_.ok() ? Status(Errc::kUnavailable, "it was closed") : end_);
    return;
  }
  receiver_ = std::move(receiver);
  link_ = links.open(options, *this);
  send_waiting();
}

void PeerPort::add_receiver(MessageKind first, MessageKind last, caf::strong_actor_ptr receiver) {
  const std::lock_guard lock(mutex_);
  if (!end_.ok()) {
    send_closed(receiver, end_);
    return;
  }
  receivers_.push_back({first, last, std::move(receiver)});
}

void PeerPort::set_decoder(MessageKind kind, Decoder decoder) {
  const std::lock_guard lock(mutex_);
  if (end_.ok()) {
    decoders_[kind] = std::make_shared<const Decoder>(std::move(decoder));
  }
}

const caf::strong_actor_ptr& PeerPort::receiver_of(MessageKind kind) const {
  const auto found = std::ranges::find_if(receivers_, [kind](const Receiver& receiver) {
    return receiver.first <= kind && kind <= receiver.last;
  });
  return found == receivers_.end() ? receiver_ : found->actor;
}

void PeerPort::close(const std::string& reason) {
  std::unique_lock lock(mutex_);
  if (std::exchange(closing_, true)) {
    changed_.wait(lock, [this] { return closed_; });
    return;
  }
  transport::PeerLink* const open_link = link_.get();
  lock.unlock();  // the link calls this port
  if (open_link != nullptr) {
    open_link->end(reason);
  }
  lock.lock();
  changed_.wait(lock, [this] { return num_ending_ == 0; });
  std::unique_ptr<transport::PeerLink> link = std::move(link_);
  if (link != nullptr) {
    last_status_ = link->status();
  }
  lock.unlock();
  link.reset();  // waits for calls of the link
  on_ended({Errc::kUnavailable, reason});
  lock.lock();
  closed_ = true;
  changed_.notify_all();
}

std::uint64_t PeerPort::call(MessageKind kind, Buffer body, Duration deadline,
                             caf::strong_actor_ptr caller) {
  std::unique_lock lock(mutex_);
  const std::uint64_t call = ++last_call_;
  callers_.emplace(call, std::move(caller));
  transport::OutgoingMessage message;
  message.kind = static_cast<std::uint16_t>(kind);
  message.expires = clock_.now() + deadline;
  message.body = std::move(body);
  send({std::move(message), call}, std::move(lock));
  return call;
}

void PeerPort::tell(MessageKind kind, Buffer body) {
  std::unique_lock lock(mutex_);
  transport::OutgoingMessage message;
  message.kind = static_cast<std::uint16_t>(kind);
  message.body = std::move(body);
  send({std::move(message)}, std::move(lock));
}

void PeerPort::reply(std::uint64_t number, MessageKind kind, Buffer body) {
  std::unique_lock lock(mutex_);
  transport::OutgoingMessage message;
  message.kind = static_cast<std::uint16_t>(kind);
  message.reply_to = number;
  message.body = std::move(body);
  send({std::move(message)}, std::move(lock));
}

transport::PeerLinkStatus PeerPort::status() const {
  const std::lock_guard lock(mutex_);
  return link_ != nullptr ? link_->status() : last_status_;
}

std::uint64_t PeerPort::waiting_bytes() const {
  const std::lock_guard lock(mutex_);
  return waiting_bytes_;
}

void PeerPort::on_message(const transport::IncomingMessage& message) {
  const auto arrived = std::make_shared<PeerMessage>();
  arrived->kind = static_cast<MessageKind>(message.kind);
  arrived->number = message.number;
  arrived->body = message.body;
  arrived->incoming = message;
  arrived->port = weak_from_this();
  std::shared_ptr<const Decoder> decoder;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = decoders_.find(arrived->kind); found != decoders_.end()) {
      decoder = found->second;
    }
  }
  if (decoder != nullptr) {
    arrived->content = (*decoder)(message.body);
  }
  deliver(take_target(message, *arrived), arrived);
}

// Returns who gets a message, or null. Its call, if it is a reply to one, has then ended.
caf::strong_actor_ptr PeerPort::take_target(const transport::IncomingMessage& message,
                                            PeerMessage& arrived) {
  const std::lock_guard lock(mutex_);
  if (message.reply_to == 0) {
    return receiver_of(arrived.kind);
  }
  const auto sent = sent_calls_.find(message.reply_to);
  if (message.late || sent == sent_calls_.end()) {
    return nullptr;
  }
  arrived.call = sent->second;
  const auto caller = callers_.find(sent->second);
  caf::strong_actor_ptr target = std::move(caller->second);
  callers_.erase(caller);
  sent_calls_.erase(sent);
  return target;
}

void PeerPort::on_failure(const transport::FailedRequest& failed) {
  const std::lock_guard lock(mutex_);
  if (const auto sent = sent_calls_.find(failed.number); sent != sent_calls_.end()) {
    const std::uint64_t call = sent->second;
    sent_calls_.erase(sent);
    fail(call, failed.reason);
  }
}

void PeerPort::on_room() {
  const std::lock_guard lock(mutex_);
  fail_expired();
  send_waiting();
}

void PeerPort::on_silence(Duration lasted) {
  if (log_) {
    log_(" has not been heard for " + seconds_text(lasted) +
         ": it is stopped, or the machine is overloaded");
  }
}

void PeerPort::on_heard(Duration lasted) {
  if (log_) {
    log_(" was heard again after " + seconds_text(lasted));
  }
}

void PeerPort::on_ended(const Status& reason) {
  const std::lock_guard lock(mutex_);
  if (!end_.ok()) {
    return;
  }
  end_ = reason;
  decoders_.clear();
  waiting_.clear();
  waiting_bytes_ = 0;
  waiting_calls_.clear();
  sent_calls_.clear();
  while (!callers_.empty()) {
    fail(callers_.begin()->first, reason);
  }
  // The receivers hold the port.
  if (const caf::strong_actor_ptr receiver = std::move(receiver_); receiver != nullptr) {
    send_closed(receiver, reason);
  }
  for (const Receiver& receiver : std::exchange(receivers_, {})) {
    send_closed(receiver.actor, reason);
  }
}

void PeerPort::release(const transport::IncomingMessage& message) {
  const std::lock_guard lock(mutex_);
  if (link_ != nullptr) {
    link_->release(message);
  }
}

void PeerPort::send(Waiting message, std::unique_lock<std::mutex> lock) {
  if (!end_.ok()) {
    if (message.call != 0) {
      fail(message.call, end_);
    }
    return;
  }
  waiting_bytes_ += message.message.body.size_bytes();
  const std::uint64_t call = message.call;
  const std::optional<TimePoint> expires = message.message.expires;
  waiting_.push_back(std::move(message));
  send_waiting();
  if (call != 0 && !waiting_.empty()) {  // then it waits, as the last one
    waiting_calls_.emplace(*expires, call);
    wake_for_waiting_calls();
  }
  if (waiting_bytes_ > kMaxWaitingBytes) {
    transport::PeerLink* const link = link_.get();
    ++num_ending_;
    lock.unlock();  // the link calls `on_ended`
    const std::string reason =
        "more than " + std::to_string(kMaxWaitingBytes) + " bytes are waiting for the process";
    if (link != nullptr) {
      link->end(reason);
    } else {
      on_ended({Errc::kUnavailable, reason});
    }
    lock.lock();
    --num_ending_;
    changed_.notify_all();
  }
}

// Requires the lock, as all below.
void PeerPort::send_waiting() {
  while (link_ != nullptr && !waiting_.empty()) {
    Waiting& next = waiting_.front();
    const std::size_t bytes = next.message.body.size_bytes();
    if (next.call != 0 && !callers_.contains(next.call)) {  // it has failed meanwhile
      waiting_bytes_ -= bytes;
      waiting_.pop_front();
      continue;
    }
    Result<std::uint64_t> number = link_->send(next.message);
    if (next.message.reply_to != 0 && number.status().code() == Errc::kInvalidArgument) {
      next.message.kind = static_cast<std::uint16_t>(MessageKind::kFailure);
      next.message.body = to_wire(number.status());
      number = link_->send(next.message);
    }
    if (number.status().code() == Errc::kResourceExhausted) {
      wake_for_waiting_calls();
      return;  // `on_room` follows
    }
    if (next.call != 0 && !waiting_calls_.empty()) {
      waiting_calls_.erase({*next.message.expires, next.call});
    }
    if (number.ok() && next.call != 0) {
      sent_calls_.emplace(number.value(), next.call);
    } else if (!number.ok() && next.call != 0) {
      fail(next.call, number.status());
    }
    waiting_bytes_ -= bytes;
    waiting_.pop_front();
  }
}

// Lets the link call `on_room` when the first of them fails.
void PeerPort::wake_for_waiting_calls() {
  if (link_ != nullptr && !waiting_calls_.empty()) {
    link_->wake_at(waiting_calls_.begin()->first);
  }
}

// Fails the calls that have waited for room until their deadlines.
void PeerPort::fail_expired() {
  const TimePoint now = clock_.now();
  while (!waiting_calls_.empty() && waiting_calls_.begin()->first <= now) {
    const std::uint64_t call = waiting_calls_.begin()->second;
    waiting_calls_.erase(waiting_calls_.begin());
    fail(call, {Errc::kTimeout, "no room for the request before the deadline"});
  }
}

void PeerPort::fail(std::uint64_t call, const Status& why) {
  const auto caller = callers_.find(call);
  const auto failed = std::make_shared<PeerMessage>();
  failed->call = call;
  failed->failure = why;
  deliver(caller->second, failed);
  callers_.erase(caller);
}

}  // namespace tidemill::actors
