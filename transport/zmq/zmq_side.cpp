// SPDX-License-Identifier: Apache-2.0
#include "transport/zmq/zmq_side.hpp"

#include <array>
#include <cerrno>
#include <poll.h>
#include <string>
#include <sys/eventfd.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "base/check.hpp"
#include "transport/frame_size.hpp"

namespace tidemill::transport {
namespace {

// How many frames a side may send before the other sides at the same socket.
constexpr std::size_t kFramesPerTurn = 256;

std::uint64_t cost_of(const Buffer& frame) {
  return frame.size_bytes() + kFrameOverheadBytes;
}

UniqueFd new_eventfd() {
  UniqueFd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event.is_open()) {
    throw std::system_error(errno, std::generic_category(), "eventfd");
  }
  return event;
}

}  // namespace

ZmqSide::ZmqSide(ZmqSideSocket& socket, std::string route)
    : socket_(socket),
      route_(std::move(route)),
      wake_(new_eventfd()),
      thread_([this] { deliver(); }) {}

// The socket is not used: the caller may be the thread that uses it.
ZmqSide::~ZmqSide() {
  end({Errc::kUnavailable, "this side is destroyed"});
  stop();
}

void ZmqSide::start(ConnectionListener& listener) {
  const std::lock_guard lock(mutex_);
  TIDEMILL_CHECK(listener_ == nullptr) << "started twice";
  listener_ = &listener;
  wake();
}

bool ZmqSide::request_work() {
  return !std::exchange(requested_, true);
}

Status ZmqSide::send(const Buffer& frame) {
  TIDEMILL_RETURN_IF_ERROR(check_frame_size(frame));
  std::unique_lock lock(mutex_);
  if (!open_) {
    return {Errc::kUnavailable, "connection: it is closed"};
  }
  outgoing_.push_back(frame);
  const bool call = request_work();
  // A listener that is behind is likely to send again soon.
  const auto when = incoming_.empty() ? ZmqSideSocket::When::kNow : ZmqSideSocket::When::kSoon;
  lock.unlock();
  if (call) {
    socket_.on_work(route_, when);
  }
  return {};
}

void ZmqSide::close() {
  close_and(Then::kTellListener);
}

void ZmqSide::close_and(Then then) {
  std::unique_lock lock(mutex_);
  stopped_ = stopped_ || then == Then::kStop;
  wake();
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
    socket_.on_work(route_, ZmqSideSocket::When::kNow);
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
  wake();
  return {};
}

Status ZmqSide::on_consumed(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes < consumed_by_peer_ || bytes > sent_) {
    return corrupt_data("connection: the other side reports to have consumed " +
                        std::to_string(bytes) + " bytes of " + std::to_string(sent_));
  }
  consumed_by_peer_ = bytes;
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
  wake();
  lock.unlock();
}

// -- the thread ----------------------------------------------------------------------------------

bool ZmqSide::due() const {
  return stopped_ || (listener_ != nullptr && (!open_ || !incoming_.empty()));
}

void ZmqSide::wake() {
  if (std::exchange(sleeping_, false)) {
    const std::uint64_t one = 1;
    (void)!::write(wake_.get(), &one, sizeof(one));  // fails only if it is readable anyway
  }
}

void ZmqSide::sleep(std::unique_lock<std::mutex>& lock, int descriptor) {
  sleeping_ = true;
  lock.unlock();
  // poll(2) ignores a descriptor of -1.
  std::array<pollfd, 2> items{{{wake_.get(), POLLIN, 0}, {descriptor, POLLIN, 0}}};
  (void)::poll(items.data(), items.size(), -1);  // a signal may end it: the caller looks again
  if (items[0].revents != 0) {
    std::uint64_t count = 0;
    (void)!::read(wake_.get(), &count, sizeof(count));
  }
  lock.lock();
  sleeping_ = false;
}

void ZmqSide::wait(std::unique_lock<std::mutex>& lock) {
  if (listener_ == nullptr) {
    sleep(lock, -1);
    return;
  }
  lock.unlock();
  const int descriptor = socket_.begin_watch();
  const bool watches = descriptor != -1;
  lock.lock();
  while (!due()) {
    sleep(lock, descriptor);
    if (watches && !due()) {
      lock.unlock();
      socket_.receive_watched();
      lock.lock();
    }
  }
  if (watches) {
    lock.unlock();
    socket_.end_watch();
    lock.lock();
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
    socket_.on_work(route_, ZmqSideSocket::When::kNow);
    lock.lock();
  }
}

void ZmqSide::deliver() {
  std::unique_lock lock(mutex_);
  for (;;) {
    while (!due()) {
      wait(lock);
    }
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

}  // namespace tidemill::transport
