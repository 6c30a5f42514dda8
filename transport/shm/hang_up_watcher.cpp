// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/hang_up_watcher.hpp"

#include <array>
#include <cerrno>
#include <pthread.h>
#include <span>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "base/check.hpp"
#include "base/files/file.hpp"

namespace tidemill::transport::shm {
namespace {

constexpr std::uint64_t kStopNumber = 0;  // no watched socket has it

Status watch_descriptor(int epoll, int descriptor, std::uint32_t events, std::uint64_t number) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = number;
  return ::epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event) == 0
             ? Status()
             : system_error(errno, "watch", "socket");
}

}  // namespace

Result<std::shared_ptr<HangUpWatcher>> HangUpWatcher::create() {
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  UniqueFd stop(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll.is_open() || !stop.is_open()) {
    return system_error(errno, "create", "watcher of sockets");
  }
  TIDEMILL_RETURN_IF_ERROR(watch_descriptor(epoll.get(), stop.get(), EPOLLIN, kStopNumber));
  try {
    return std::shared_ptr<HangUpWatcher>(new HangUpWatcher(std::move(epoll), std::move(stop)));
  } catch (const std::system_error&) {
    return Status(Errc::kResourceExhausted, "watcher of sockets: cannot start a thread");
  }
}

HangUpWatcher::HangUpWatcher(UniqueFd epoll, UniqueFd stop)
    : epoll_(std::move(epoll)), stop_(std::move(stop)), thread_([this] { run(); }) {
  pthread_setname_np(thread_.native_handle(), "shm-watch");
}

HangUpWatcher::~HangUpWatcher() {
  TIDEMILL_CHECK(watched_.empty()) << watched_.size();
  const std::uint64_t one = 1;
  TIDEMILL_CHECK(::write(stop_.get(), &one, sizeof(one)) == sizeof(one)) << errno;
  thread_.join();
}

Result<std::uint64_t> HangUpWatcher::watch(int socket, std::function<void()> on_hang_up) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t number = ++last_number_;
  // Once: a socket that was hung up stays so, and would be reported without end.
  TIDEMILL_RETURN_IF_ERROR(
      watch_descriptor(epoll_.get(), socket, EPOLLRDHUP | EPOLLONESHOT, number));
  watched_.emplace(number, Watched{socket, std::move(on_hang_up)});
  return number;
}

void HangUpWatcher::forget(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto it = watched_.find(number);
  TIDEMILL_CHECK(it != watched_.end()) << number;
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, it->second.socket, nullptr);
  watched_.erase(it);
}

// The socket may have been forgotten since the kernel reported it.
void HangUpWatcher::report(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  if (const auto it = watched_.find(number); it != watched_.end()) {
    it->second.on_hang_up();
  }
}

void HangUpWatcher::run() {
  std::array<epoll_event, 16> events{};
  while (true) {
    const int count =
        ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), -1);
    TIDEMILL_CHECK(count >= 0 || errno == EINTR) << errno;
    for (const epoll_event& event :
         std::span(events).first(static_cast<std::size_t>(count < 0 ? 0 : count))) {
      if (event.data.u64 == kStopNumber) {
        return;
      }
      report(event.data.u64);
    }
  }
}

}  // namespace tidemill::transport::shm
