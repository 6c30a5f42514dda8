// SPDX-License-Identifier: Apache-2.0
#include "transport/peer_session.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace tidemill::transport {
namespace {

// The problem of a connection that has ended without a reason.
constexpr const char* kSilence = "nothing received for too long";

std::uint64_t bytes_of(const Buffer& body) {
  return body.size_bytes() + kMessageOverheadBytes;
}

Status refused(Errc code, const PeerSessionOptions& options, const std::string& what) {
  return {code, "peer " + std::to_string(options.peer) + ": " + what};
}

}  // namespace

PeerSession::PeerSession(const PeerSessionOptions& options, TimePoint now)
    : options_(options),
      progress_at_(now),
      frame_sent_at_(now),
      connected_at_(now),
      received_at_(now) {
  for (const Duration time : {options.heartbeat, options.max_silence, options.max_unacknowledged,
                              options.max_unreachable, options.max_first_wait}) {
    TIDEMILL_CHECK(time > Duration::zero() && time <= std::chrono::hours(24)) << time.count();
  }
  TIDEMILL_CHECK(options.acknowledge_within >= Duration::zero() &&
                 options.acknowledge_within < options.max_unacknowledged)
      << options.acknowledge_within.count();
  TIDEMILL_CHECK(options.max_silence > options.heartbeat)
      << options.heartbeat.count() << " " << options.max_silence.count();
  const std::uint64_t largest = options.max_body_bytes + kMessageOverheadBytes;
  TIDEMILL_CHECK(options.max_body_bytes <= kMaxBodyBytes && options.send_bytes >= largest &&
                 options.receive_bytes >= largest)
      << options.max_body_bytes << " " << options.send_bytes << " " << options.receive_bytes;
}

std::uint64_t PeerSession::unacknowledged_bytes() const noexcept {
  return queued_bytes_ - acknowledged_bytes_;
}

// Returns after how long without a frame the session ends.
Duration PeerSession::max_unreachable() const {
  return received_ ? options_.max_unreachable
                   : std::min(options_.max_unreachable, options_.max_first_wait);
}

TimePoint PeerSession::next_event() const {
  if (state_ == State::kEnded) {
    return TimePoint::max();
  }
  TimePoint next = received_at_ + max_unreachable();
  if (!expiries_.empty()) {
    next = std::min(next, expiries_.begin()->first);
  }
  if (state_ == State::kConnected) {
    next = std::min({next, frame_sent_at_ + options_.heartbeat,
                     std::max(received_at_, connected_at_) + options_.max_silence});
    if (in_flight_ > 0) {
      next = std::min(next, progress_at_ + options_.max_unacknowledged);
    }
    if (frame_due_at_.has_value()) {
      next = std::min(next, *frame_due_at_);
    }
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
  connected_at_ = now;
  in_flight_ = 0;
  frame_now_ = true;
}

void PeerSession::disconnect(const std::string& why) {
  problem_ = why;
  if (state_ == State::kConnected) {
    state_ = State::kDisconnected;
    in_flight_ = 0;
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
  if (frame.acknowledged > last_sent_) {
    return refused(Errc::kInvalidArgument, options_,
                   "message " + std::to_string(frame.acknowledged) + " is acknowledged, but only " +
                       std::to_string(last_sent_) + " were sent");
  }
  if (frame.reply_to > last_sent_) {
    return refused(Errc::kInvalidArgument, options_,
                   "a reply to message " + std::to_string(frame.reply_to) + ", but only " +
                       std::to_string(last_sent_) + " were sent");
  }
  const bool is_message = frame.kind != 0;
  if ((frame.sequence != 0) != is_message || (!is_message && frame.body.size_bytes() > 0)) {
    return refused(Errc::kInvalidArgument, options_,
                   "a frame of kind " + std::to_string(frame.kind) + " has number " +
                       std::to_string(frame.sequence) + " and a body of " +
                       std::to_string(frame.body.size_bytes()) + " bytes");
  }
  if (frame.body.size_bytes() > options_.max_body_bytes) {
    return refused(Errc::kInvalidArgument, options_,
                   "a body of " + std::to_string(frame.body.size_bytes()) + " bytes, at most " +
                       std::to_string(options_.max_body_bytes) + " are allowed");
  }
  const std::uint64_t credit = released_bytes_ + options_.receive_bytes;
  if (frame.sequence == taken_ + 1 && bytes_of(frame.body) > credit - taken_bytes_) {
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
  received_at_ = now;
  received_ = true;
  take_acknowledgement(frame.acknowledged, now);
  credit_ = std::max(credit_, frame.credit);  // an older frame may arrive late
  if (frame.sequence != 0) {
    take_message(frame, now);
  }
  return {};
}

void PeerSession::take_acknowledgement(std::uint64_t acknowledged, TimePoint now) {
  while (!pending_.empty() && pending_.front().number <= acknowledged) {
    acknowledged_bytes_ = pending_.front().bytes_until;
    pending_.pop_front();
    in_flight_ -= in_flight_ > 0 ? 1 : 0;
    progress_at_ = now;
  }
}

void PeerSession::take_message(const Envelope& frame, TimePoint now) {
  frame_due_ = true;  // the acknowledgement
  if (frame.sequence != taken_ + 1) {
    ++ignored_;
    frame_now_ = true;  // the peer may have missed the last one
    if (frame.sequence > taken_) {
      disconnect("the connection has lost a message");  // which only another one will carry
    }
    return;
  }
  IncomingMessage message;
  message.kind = frame.kind;
  message.number = frame.sequence;
  message.reply_to = frame.reply_to;
  message.body = frame.body;
  if (frame.deadline > Duration::zero()) {
    message.expires =
        frame.deadline < TimePoint::max() - now ? now + frame.deadline : TimePoint::max();
  }
  ++taken_;
  taken_bytes_ += bytes_of(frame.body);
  if (frame.reply_to != 0) {
    const auto request = requests_.find(frame.reply_to);
    message.late = request == requests_.end();
    if (message.late) {
      ++late_replies_;
    } else {
      expiries_.erase({request->second, request->first});
      requests_.erase(request);
    }
  }
  messages_.push_back(std::move(message));
}

void PeerSession::release(const IncomingMessage& message) {
  released_bytes_ += bytes_of(message.body);
  TIDEMILL_CHECK(released_bytes_ <= taken_bytes_) << "a message was released twice";
  frame_due_ = true;
}

void PeerSession::advance(TimePoint now) {
  while (!expiries_.empty() && expiries_.begin()->first <= now) {
    fail_request(expiries_.begin()->second, {Errc::kTimeout, "no reply before the deadline"});
  }
  if (state_ != State::kEnded && now - received_at_ >= max_unreachable()) {
    const auto limit = std::chrono::duration_cast<std::chrono::seconds>(max_unreachable());
    end("nothing received for " + std::to_string(limit.count()) + " s" +
        (problem_.empty() || problem_ == kSilence ? "" : "; " + problem_));
  }
  if (state_ == State::kConnected) {
    const bool silent = now - std::max(received_at_, connected_at_) >= options_.max_silence;
    const bool stuck = in_flight_ > 0 && now - progress_at_ >= options_.max_unacknowledged;
    if (silent || stuck) {
      disconnect(silent ? kSilence : "nothing acknowledged for too long");
    }
  }
}

void PeerSession::end(const std::string& reason) {
  if (state_ == State::kEnded) {
    return;
  }
  state_ = State::kEnded;
  end_reason_ = {Errc::kUnavailable, reason};
  pending_.clear();
  in_flight_ = 0;
  while (!requests_.empty()) {
    fail_request(requests_.begin()->first, end_reason_);
  }
}

void PeerSession::fail_request(std::uint64_t number, const Status& reason) {
  const auto request = requests_.find(number);
  expiries_.erase({request->second, number});
  requests_.erase(request);
  failures_.push_back({number, reason});
}

Envelope PeerSession::frame() const {
  Envelope frame;
  frame.run = options_.run;
  frame.incarnation = options_.incarnation;
  frame.sender = options_.self;
  frame.acknowledged = taken_;
  frame.credit = released_bytes_ + options_.receive_bytes;
  return frame;
}

std::vector<Envelope> PeerSession::take_frames(TimePoint now) {
  std::vector<Envelope> frames;
  if (state_ != State::kConnected) {
    return frames;
  }
  for (; in_flight_ < pending_.size() && pending_[in_flight_].bytes_until <= credit_;
       ++in_flight_) {
    const Pending& next = pending_[in_flight_];
    Envelope out = frame();
    out.sequence = next.number;
    out.kind = next.message.kind;
    out.reply_to = next.message.reply_to;
    if (next.message.expires.has_value()) {
      // The peer still has to be told that it is a request, so a deadline is never zero.
      out.deadline = std::max(*next.message.expires - now, Duration(1));
    }
    out.body = next.message.body;
    if (in_flight_ == 0) {
      progress_at_ = now;
    }
    frames.push_back(std::move(out));
    if (next.number > last_sent_) {
      last_sent_ = next.number;
    } else {
      ++resent_;
    }
  }
  if (frames.empty() && owes_frame(now)) {
    frames.push_back(frame());
  }
  if (!frames.empty()) {
    frame_due_ = false;
    frame_now_ = false;
    frame_due_at_.reset();
    reported_bytes_ = taken_bytes_ + released_bytes_;
    frame_sent_at_ = now;
  }
  return frames;
}

// Returns whether the peer has to get a frame now, although there is no message for it.
bool PeerSession::owes_frame(TimePoint now) {
  if (frame_now_ || now - frame_sent_at_ >= options_.heartbeat) {
    return true;
  }
  if (!frame_due_) {
    return false;
  }
  if (!frame_due_at_.has_value()) {
    frame_due_at_ = now + options_.acknowledge_within;
  }
  // The peer may wait for credit, or for room in what it keeps.
  constexpr std::uint64_t kLargePart = 8;
  return *frame_due_at_ <= now ||
         taken_bytes_ + released_bytes_ - reported_bytes_ >= options_.receive_bytes / kLargePart;
}

std::vector<IncomingMessage> PeerSession::take_messages() {
  return std::exchange(messages_, {});
}

std::vector<FailedRequest> PeerSession::take_failures() {
  return std::exchange(failures_, {});
}

}  // namespace tidemill::transport
