// SPDX-License-Identifier: Apache-2.0
#include "transport/zmq/zmq_side.hpp"

#include <string>
#include <utility>

#include "base/check.hpp"

namespace tidemill::transport {
namespace {

// How many frames a side may send before the other sides at the same socket.
constexpr std::size_t kFramesPerTurn = 256;

std::uint64_t cost_of(const Buffer& frame) {
  return frame.size_bytes() + kFrameOverheadBytes;
}

}  // namespace

ZmqSide::ZmqSide(std::function<void()> on_work)
    : on_work_(std::move(on_work)), thread_([this] { deliver(); }) {}

ZmqSide::~ZmqSide() {
  stop();
}

void ZmqSide::start(ConnectionListener& listener) {
  const std::lock_guard lock(mutex_);
  TIDEMILL_CHECK(listener_ == nullptr) << "started twice";
  listener_ = &listener;
  changed_.notify_all();
}

bool ZmqSide::request_work() {
  return !std::exchange(requested_, true);
}

Status ZmqSide::send(const Buffer& frame) {
  TIDEMILL_CHECK(frame.resolved()) << to_string(frame.identity());
  if (frame.size_bytes() > kMaxEnvelopeBytes) {
    return invalid_argument("connection: a frame of " + std::to_string(frame.size_bytes()) +
                            " bytes is too large (at most " + std::to_string(kMaxEnvelopeBytes) +
                            ")");
  }
  std::unique_lock lock(mutex_);
  if (!open_) {
    return {Errc::kUnavailable, "connection: it is closed"};
  }
  outgoing_.push_back(frame);
  const bool call = request_work();
  lock.unlock();
  if (call) {
    on_work_();
  }
  return {};
}

void ZmqSide::close() {
  close_and(Then::kTellListener);
}

void ZmqSide::close_and(Then then) {
  std::unique_lock lock(mutex_);
  stopped_ = stopped_ || then == Then::kStop;
  changed_.notify_all();
  if (!open_) {
    return;
  }
  open_ = false;
  reason_ = {Errc::kUnavailable, "this side has closed the connection"};
  bye_due_ = true;
  // Destroyed without the mutex: a buffer may be large.
  const std::deque<Buffer> outgoing = std::exchange(outgoing_, {});
  const std::deque<Buffer> incoming = std::exchange(incoming_, {});
  const bool call = request_work();
  lock.unlock();
  if (call) {
    on_work_();
  }
}

void ZmqSide::stop() {
  close_and(Then::kStop);
  if (thread_.joinable()) {
    thread_.join();
  }
}

ZmqWork ZmqSide::take_work() {
  ZmqWork work;
  const std::lock_guard lock(mutex_);
  work.bye = std::exchange(bye_due_, false);
  requested_ = false;
  if (!open_) {
    return work;
  }
  while (!outgoing_.empty()) {
    const std::uint64_t cost = cost_of(outgoing_.front());
    if (sent_ + cost - consumed_by_peer_ > kMaxInFlightBytes) {
      break;
    }
    if (work.frames.size() == kFramesPerTurn) {
      work.more = true;
      requested_ = true;
      break;
    }
    sent_ += cost;
    work.frames.push_back(std::move(outgoing_.front()));
    outgoing_.pop_front();
  }
  if (consumed_ - reported_ >= kReportBytes) {
    reported_ = consumed_;
    work.consumed = consumed_;
  }
  return work;
}

Status ZmqSide::on_frame(Buffer frame) {
  const std::lock_guard lock(mutex_);
  if (!open_) {
    return {};
  }
  if (frame.size_bytes() > kMaxEnvelopeBytes) {
    return corrupt_data("connection: the other side has sent a frame of " +
                        std::to_string(frame.size_bytes()) + " bytes");
  }
  received_ += cost_of(frame);
  // What is consumed but not reported still counts for the peer.
  if (received_ - reported_ > kMaxInFlightBytes) {
    return corrupt_data("connection: the other side has sent more than it may");
  }
  incoming_.push_back(std::move(frame));
  changed_.notify_all();
  return {};
}

Status ZmqSide::on_consumed(std::uint64_t bytes) {
  std::unique_lock lock(mutex_);
  if (bytes < consumed_by_peer_ || bytes > sent_) {
    return corrupt_data("connection: the other side reports to have consumed " +
                        std::to_string(bytes) + " bytes of " + std::to_string(sent_));
  }
  consumed_by_peer_ = bytes;
  const bool call = !outgoing_.empty() && request_work();
  lock.unlock();
  if (call) {
    on_work_();
  }
  return {};
}

void ZmqSide::end(const Status& reason) {
  std::unique_lock lock(mutex_);
  if (!open_) {
    return;
  }
  open_ = false;
  reason_ = reason;
  const std::deque<Buffer> outgoing = std::exchange(outgoing_, {});
  changed_.notify_all();
  lock.unlock();
}

void ZmqSide::deliver() {
  std::unique_lock lock(mutex_);
  const auto something_to_do = [this] {
    return stopped_ || (listener_ != nullptr && (!open_ || !incoming_.empty()));
  };
  for (;;) {
    changed_.wait(lock, something_to_do);
    if (stopped_) {
      return;
    }
    if (incoming_.empty()) {
      const Status reason = reason_;
      lock.unlock();
      listener_->on_closed(reason);
      return;
    }
    deliver_frame(lock);
  }
}

void ZmqSide::deliver_frame(std::unique_lock<std::mutex>& lock) {
  Buffer frame = std::move(incoming_.front());
  incoming_.pop_front();
  lock.unlock();
  listener_->on_frame(frame);
  const std::uint64_t cost = cost_of(frame);
  frame = {};
  lock.lock();
  consumed_ += cost;
  const bool due = open_ && consumed_ - reported_ >= kReportBytes;
  if (due && request_work()) {
    lock.unlock();
    on_work_();
    lock.lock();
  }
}

}  // namespace tidemill::transport
