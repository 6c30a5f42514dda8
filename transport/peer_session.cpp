// SPDX-License-Identifier: Apache-2.0
#include "transport/peer_session.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace tidemill::transport {
namespace {

std::uint64_t bytes_of(const Buffer& body) {
  return body.size_bytes() + kMessageOverheadBytes;
}

Status refused(Errc code, const PeerSessionOptions& options, const std::string& what) {
  return {code, "peer " + std::to_string(options.peer) + ": " + what};
}

}  // namespace

PeerSession::PeerSession(const PeerSessionOptions& options, TimePoint now)
    : options_(options),
      resend_after_(options.resend_after),
      resend_at_(now),
      last_sent_(now),
      last_received_(now),
      disconnected_since_(now) {
  TIDEMILL_CHECK(options.heartbeat > Duration::zero() && options.max_silence > options.heartbeat)
      << options.heartbeat.count() << " " << options.max_silence.count();
  const std::uint64_t largest = options.max_body_bytes + kMessageOverheadBytes;
  TIDEMILL_CHECK(options.max_body_bytes <= kMaxBodyBytes && options.send_bytes >= largest &&
                 options.receive_bytes >= largest)
      << options.max_body_bytes << " " << options.send_bytes << " " << options.receive_bytes;
}

std::uint64_t PeerSession::unacknowledged_bytes() const noexcept {
  return queued_bytes_ - acknowledged_bytes_;
}

TimePoint PeerSession::next_event() const {
  TimePoint next = expiries_.empty() ? TimePoint::max() : expiries_.begin()->first;
  switch (state_) {
    case State::kDisconnected:
      return std::min(next, disconnected_since_ + options_.max_disconnected);
    case State::kConnected:
      next =
          std::min({next, last_sent_ + options_.heartbeat, last_received_ + options_.max_silence});
      return sent_ > 0 ? std::min(next, resend_at_) : next;
    case State::kEnded: break;
  }
  return next;
}

Result<std::uint64_t> PeerSession::send(const OutgoingMessage& message) {
  TIDEMILL_CHECK(message.kind != 0 && message.body.resolved()) << message.kind;
  if (state_ == State::kEnded) {
    return refused(Errc::kUnavailable, options_, end_reason_.message());
  }
  const std::uint64_t bytes = bytes_of(message.body);
  if (message.body.size_bytes() > options_.max_body_bytes) {
    return refused(Errc::kInvalidArgument, options_,
                   "a body of " + std::to_string(message.body.size_bytes()) +
                       " bytes is too large for one message (at most " +
                       std::to_string(options_.max_body_bytes) + ")");
  }
  if (unacknowledged_bytes() + bytes > options_.send_bytes) {
    return refused(Errc::kResourceExhausted, options_,
                   std::to_string(unacknowledged_bytes()) +
                       " bytes are not acknowledged, at most " +
                       std::to_string(options_.send_bytes) + " may be");
  }
  queued_bytes_ += bytes;
  const std::uint64_t number = ++last_number_;
  pending_.push_back({number, queued_bytes_, message});
  if (message.expires.has_value()) {
    requests_.emplace(number, *message.expires);
    expiries_.emplace(*message.expires, number);
  }
  return number;
}

void PeerSession::connect(TimePoint now) {
  if (state_ == State::kEnded) {
    return;
  }
  state_ = State::kConnected;
  last_received_ = now;
  resend_after_ = options_.resend_after;
  frame_due_ = true;
  resend_all(now);
}

void PeerSession::disconnect(TimePoint now) {
  if (state_ == State::kConnected) {
    state_ = State::kDisconnected;
    disconnected_since_ = now;
  }
}

Status PeerSession::check(const Envelope& frame) const {
  if (frame.run != options_.run) {
    return refused(Errc::kInvalidArgument, options_, "a frame of another run");
  }
  if (frame.incarnation != options_.incarnation) {
    return refused(Errc::kStaleVersion, options_,
                   "a frame of incarnation " + std::to_string(frame.incarnation) +
                       ", this process is in incarnation " + std::to_string(options_.incarnation));
  }
  if (frame.sender != options_.peer) {
    return refused(Errc::kInvalidArgument, options_,
                   "a frame that process " + std::to_string(frame.sender) + " has sent");
  }
  // Messages are sent in order, so their number is that of the last one.
  if (frame.acknowledged > counts_.sent) {
    return refused(Errc::kInvalidArgument, options_,
                   "message " + std::to_string(frame.acknowledged) + " is acknowledged, but only " +
                       std::to_string(counts_.sent) + " were sent");
  }
  if ((frame.sequence == 0) != (frame.kind == 0)) {
    return refused(Errc::kInvalidArgument, options_,
                   "a frame of kind " + std::to_string(frame.kind) + " has number " +
                       std::to_string(frame.sequence));
  }
  const std::uint64_t credit = released_bytes_ + options_.receive_bytes;
  if (frame.sequence == counts_.taken + 1 && bytes_of(frame.body) > credit - taken_bytes_) {
    return refused(Errc::kResourceExhausted, options_,
                   "a message of " + std::to_string(frame.body.size_bytes()) +
                       " bytes exceeds the credit of " + std::to_string(credit - taken_bytes_));
  }
  return {};
}

Status PeerSession::receive(const Envelope& frame, TimePoint now) {
  if (state_ == State::kEnded) {
    return {};
  }
  TIDEMILL_RETURN_IF_ERROR(check(frame));
  last_received_ = now;
  take_acknowledgement(frame.acknowledged, now);
  credit_ = std::max(credit_, frame.credit);  // an older frame may arrive late
  if (frame.sequence != 0) {
    take_message(frame, now);
  }
  return {};
}

void PeerSession::take_acknowledgement(std::uint64_t acknowledged, TimePoint now) {
  bool progress = false;
  while (!pending_.empty() && pending_.front().number <= acknowledged) {
    acknowledged_bytes_ = pending_.front().bytes_until;
    pending_.pop_front();
    sent_ -= sent_ > 0 ? 1 : 0;
    progress = true;
  }
  if (progress) {
    resend_after_ = options_.resend_after;
    resend_at_ = now + resend_after_;
  }
}

void PeerSession::take_message(const Envelope& frame, TimePoint now) {
  frame_due_ = true;  // the acknowledgement, also if the peer has missed the last one
  if (frame.sequence != counts_.taken + 1) {
    ++counts_.ignored;
    return;
  }
  IncomingMessage message{frame.kind, frame.sequence, frame.request, std::nullopt, frame.body};
  if (frame.deadline > Duration::zero()) {
    message.expires =
        frame.deadline < TimePoint::max() - now ? now + frame.deadline : TimePoint::max();
  }
  ++counts_.taken;
  taken_bytes_ += bytes_of(frame.body);
  if (frame.request != 0) {
    const auto request = requests_.find(frame.request);
    if (request == requests_.end()) {
      ++counts_.late_answers;
      release(message);
      return;
    }
    expiries_.erase({request->second, request->first});
    requests_.erase(request);
  }
  messages_.push_back(std::move(message));
}

void PeerSession::release(const IncomingMessage& message) {
  released_bytes_ += bytes_of(message.body);
  frame_due_ = true;
}

void PeerSession::advance(TimePoint now) {
  while (!expiries_.empty() && expiries_.begin()->first <= now) {
    fail_request(expiries_.begin()->second, {Errc::kTimeout, "no answer before the deadline"});
  }
  if (state_ == State::kConnected) {
    if (now - last_received_ >= options_.max_silence) {
      disconnect(now);
    } else if (sent_ > 0 && now >= resend_at_) {
      resend_after_ = std::min(2 * resend_after_, options_.max_silence);
      resend_all(now);
    }
  }
  if (state_ == State::kDisconnected && now - disconnected_since_ >= options_.max_disconnected) {
    end("no connection for " +
        std::to_string(
            std::chrono::duration_cast<std::chrono::seconds>(options_.max_disconnected).count()) +
        " s");
  }
}

void PeerSession::resend_all(TimePoint now) {
  sent_ = 0;
  resend_at_ = now + resend_after_;
}

void PeerSession::end(const std::string& reason) {
  if (state_ == State::kEnded) {
    return;
  }
  state_ = State::kEnded;
  end_reason_ = {Errc::kUnavailable, reason};
  pending_.clear();
  sent_ = 0;
  acknowledged_bytes_ = queued_bytes_;
  while (!requests_.empty()) {
    fail_request(requests_.begin()->first, end_reason_);
  }
}

void PeerSession::fail_request(std::uint64_t number, const Status& reason) {
  const auto request = requests_.find(number);
  expiries_.erase({request->second, number});
  requests_.erase(request);
  failures_.push_back({number, refused(reason.code(), options_, reason.message())});
}

Envelope PeerSession::frame() const {
  Envelope frame;
  frame.run = options_.run;
  frame.incarnation = options_.incarnation;
  frame.sender = options_.self;
  frame.acknowledged = counts_.taken;
  frame.credit = released_bytes_ + options_.receive_bytes;
  return frame;
}

std::vector<Envelope> PeerSession::take_frames(TimePoint now) {
  std::vector<Envelope> frames;
  if (state_ != State::kConnected) {
    return frames;
  }
  for (; sent_ < pending_.size() && pending_[sent_].bytes_until <= credit_; ++sent_) {
    const Pending& next = pending_[sent_];
    Envelope out = frame();
    out.sequence = next.number;
    out.kind = next.message.kind;
    out.request = next.message.request;
    if (next.message.expires.has_value()) {
      // The peer still has to be told that it is a request, so a deadline is never zero.
      out.deadline = std::max(*next.message.expires - now, Duration(1));
    }
    out.body = next.message.body;
    if (sent_ == 0) {
      resend_at_ = now + resend_after_;
    }
    frames.push_back(std::move(out));
    ++(next.number > counts_.sent ? counts_.sent : counts_.resent);
  }
  if (frames.empty() && (frame_due_ || now - last_sent_ >= options_.heartbeat)) {
    frames.push_back(frame());
  }
  if (!frames.empty()) {
    frame_due_ = false;
    last_sent_ = now;
  }
  return frames;
}

std::vector<IncomingMessage> PeerSession::take_messages() {
  return std::exchange(messages_, {});
}

std::vector<FailedRequest> PeerSession::take_failures() {
  return std::exchange(failures_, {});
}

}  // namespace tidemill::transport
