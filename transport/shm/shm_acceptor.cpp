// SPDX-License-Identifier: Apache-2.0
// Accepts connections through shared memory; see shm_connection.hpp.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/files/file.hpp"
#include "base/files/unique_fd.hpp"
#include "transport/shm/hang_up_watcher.hpp"
#include "transport/shm/shm_connection.hpp"
#include "transport/shm/shm_memory.hpp"
#include "transport/shm/shm_rendezvous.hpp"
#include "transport/shm/shm_side.hpp"

namespace tidemill::transport {
namespace {

// How long the acceptor leaves the socket alone if it cannot accept for lack of descriptors or
// memory. The connection stays in the kernel's queue meanwhile, so asking again at once would be a
// loop without a pause.
constexpr Duration kAcceptRetryPause = std::chrono::milliseconds(100);

class ShmAcceptor final : public Acceptor {
public:
  ShmAcceptor(ListeningSocket socket, UniqueFd stop, std::shared_ptr<shm::HangUpWatcher> watcher,
              OnAccept on_accept, const ShmOptions& options)
      : socket_(std::move(socket)),
        stop_(std::move(stop)),
        watcher_(std::move(watcher)),
        on_accept_(std::move(on_accept)),
        options_(options),
        thread_([this] { run(); }) {
    pthread_setname_np(thread_.native_handle(), "shm-accept");
  }
  ~ShmAcceptor() override {
    const std::uint64_t one = 1;
    TIDEMILL_CHECK(::write(stop_.get(), &one, sizeof(one)) == sizeof(one)) << errno;
    thread_.join();
  }

private:
  // A process that has connected and has not sent its hello yet.
  struct Pending {
    UniqueFd socket;
    TimePoint deadline;
  };

  void run();
  [[nodiscard]] int wait_ms(TimePoint now) const;
  void accept(TimePoint now);
  void shake_hands(UniqueFd socket);
  void report(const Status& why) const;

  ListeningSocket socket_;
  UniqueFd stop_;  // an eventfd that ends the thread
  std::shared_ptr<shm::HangUpWatcher> watcher_;
  const OnAccept on_accept_;
  const ShmOptions options_;

  // Used by the thread only.
  std::vector<Pending> pending_;  // in the order of their deadlines
  TimePoint accept_from_{};

  std::thread thread_;
};

// Reports what the system lacks. Other failures are faults of the process that connects.
void ShmAcceptor::report(const Status& why) const {
  if (why.code() == Errc::kResourceExhausted && options_.on_trouble) {
    options_.on_trouble(why);
  }
}

// Completes the handshake of a process that has sent something, or has closed its socket.
void ShmAcceptor::shake_hands(UniqueFd socket) {
  Result<shm::ReceivedHello> received = shm::receive_hello(socket.get());
  if (!received.ok()) {
    report(received.status());
    return;
  }
  if (received.value().hello.version != shm::kHandshakeVersion) {
    (void)shm::send_reply(socket.get(), shm::HelloOutcome::kOtherVersion);
    return;
  }
  Result<shm::SharedMemory> memory = shm::SharedMemory::open(std::move(received.value().memory),
                                                             received.value().hello.ring_bytes);
  if (!memory.ok()) {
    const bool exhausted = memory.status().code() == Errc::kResourceExhausted;
    report(memory.status());
    (void)shm::send_reply(
        socket.get(), exhausted ? shm::HelloOutcome::kNoResources : shm::HelloOutcome::kBadMemory);
    return;
  }
  const int descriptor = socket.get();
  Result<std::unique_ptr<Connection>> side =
      shm::ShmSide::create({shm::Role::kAcceptor, std::move(memory).value(), std::move(socket),
                            watcher_, options_.spin});
  report(side.status());
  if (side.ok() && shm::send_reply(descriptor, shm::HelloOutcome::kAccepted).ok()) {
    on_accept_(std::move(side).value());
  }
}

// Takes a process that has connected, and drops the oldest one if there are too many.
void ShmAcceptor::accept(TimePoint now) {
  UniqueFd socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.is_open()) {
    // Otherwise the process has gone again.
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
      accept_from_ = now + kAcceptRetryPause;
      report({Errc::kResourceExhausted,
              "cannot accept a connection: " + std::system_category().message(errno)});
    }
    return;
  }
  if (!is_same_user(socket.get())) {
    return;
  }
  if (pending_.size() == kMaxPendingHandshakes) {
    pending_.erase(pending_.begin());
  }
  pending_.push_back({std::move(socket), now + options_.handshake_timeout});
}

// Returns for how long the thread may wait in `poll`.
int ShmAcceptor::wait_ms(TimePoint now) const {
  TimePoint next = TimePoint::max();
  if (!pending_.empty()) {
    next = pending_.front().deadline;
  }
  if (accept_from_ > now) {
    next = std::min(next, accept_from_);
  }
  if (next == TimePoint::max()) {
    return -1;
  }
  const auto wait = std::chrono::ceil<std::chrono::milliseconds>(next - now);
  return static_cast<int>(std::clamp<std::int64_t>(wait.count(), 0, 1 << 30));
}

void ShmAcceptor::run() {
  while (true) {
    const TimePoint now = SystemClock().now();
    std::erase_if(pending_, [&](const Pending& one) { return one.deadline <= now; });
    std::vector<pollfd> waited;
    for (const Pending& one : pending_) {
      waited.push_back({one.socket.get(), POLLIN, 0});
    }
    waited.push_back({stop_.get(), POLLIN, 0});
    // A negative descriptor is left out.
    waited.push_back({accept_from_ > now ? -1 : socket_.get(), POLLIN, 0});
    const int count = ::poll(waited.data(), waited.size(), wait_ms(now));
    TIDEMILL_CHECK(count >= 0 || errno == EINTR || errno == ENOMEM) << errno;
    if (count <= 0) {
      continue;
    }
    if (waited[pending_.size()].revents != 0) {
      return;
    }
    const bool connected = waited.back().revents != 0;
    std::vector<UniqueFd> ready;
    for (std::size_t i = pending_.size(); i-- > 0;) {
      if (waited[i].revents != 0) {
        ready.push_back(std::move(pending_[i].socket));
        pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
    for (UniqueFd& socket : ready) {
      shake_hands(std::move(socket));
    }
    if (connected) {
      accept(SystemClock().now());
    }
  }
}

}  // namespace

Result<std::unique_ptr<Acceptor>> listen_shm(const std::filesystem::path& socket,
                                             Acceptor::OnAccept on_accept,
                                             const ShmOptions& options) {
  TIDEMILL_CHECK(options.spin >= Duration::zero()) << options.spin.count();
  TIDEMILL_ASSIGN_OR_RETURN(std::shared_ptr<shm::HangUpWatcher> watcher,
                            shm::HangUpWatcher::create());
  UniqueFd stop(::eventfd(0, EFD_CLOEXEC));
  if (!stop.is_open()) {
    return system_error(errno, "listen at", socket);
  }
  TIDEMILL_ASSIGN_OR_RETURN(ListeningSocket listening, ListeningSocket::open(socket));
  try {
    return std::unique_ptr<Acceptor>(std::make_unique<ShmAcceptor>(
        std::move(listening), std::move(stop), std::move(watcher), std::move(on_accept), options));
  } catch (const std::system_error&) {
    return Status(Errc::kResourceExhausted, socket.string() + ": cannot start a thread");
  }
}

}  // namespace tidemill::transport
