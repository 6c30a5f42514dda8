// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/shm_connection.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/check.hpp"
#include "transport/shm/hang_up_watcher.hpp"
#include "transport/shm/shm_memory.hpp"
#include "transport/shm/shm_rendezvous.hpp"
#include "transport/shm/shm_side.hpp"

namespace tidemill::transport {
namespace {

class ShmConnector final : public Connector {
public:
  ShmConnector(std::filesystem::path socket, const ShmOptions& options)
      : socket_(std::move(socket)), options_(options) {
    TIDEMILL_CHECK(shm::is_ring_size(options.ring_bytes)) << options.ring_bytes;
    TIDEMILL_CHECK(options.spin >= Duration::zero()) << options.spin.count();
  }

  Result<std::unique_ptr<Connection>> connect(Duration max_wait) override {
    // A deadline further away than a year would overflow the clock for no use.
    const TimePoint deadline =
        SystemClock().now() +
        std::clamp(max_wait, Duration::zero(), Duration(std::chrono::hours(24 * 365)));
    if (watcher_ == nullptr) {
      TIDEMILL_ASSIGN_OR_RETURN(watcher_, shm::HangUpWatcher::create());
    }
    Result<SocketPath> path = SocketPath::open(socket_);
    if (!path.ok()) {
      return path.status().code() == Errc::kNotFound
                 ? Status(Errc::kUnavailable, path.status().message())
                 : path.status();
    }
    // Made before: the acceptor waits for the hello from the moment of the connection on.
    Result<shm::SharedMemory> memory = shm::SharedMemory::create(options_.ring_bytes);
    if (!memory.ok()) {
      return memory.status().with_context(socket_.string());
    }
    TIDEMILL_ASSIGN_OR_RETURN(UniqueFd socket, connect_socket(path.value(), deadline));
    const Status status = shake_hands(socket.get(), memory.value(), deadline);
    if (!status.ok()) {
      return status.with_context(socket_.string());
    }
    return shm::ShmSide::create({shm::Role::kConnector, std::move(memory).value(),
                                 std::move(socket), watcher_, options_.spin});
  }

private:
  static Status shake_hands(int socket, const shm::SharedMemory& memory, TimePoint deadline) {
    if (!is_same_user(socket)) {
      return {Errc::kUnavailable, "the acceptor runs as another user"};
    }
    shm::Hello hello;
    hello.ring_bytes = memory.ring_bytes();
    TIDEMILL_RETURN_IF_ERROR(shm::send_hello(socket, hello, memory.descriptor()));
    return shm::receive_reply(socket, deadline);
  }

  const std::filesystem::path socket_;
  const ShmOptions options_;
  std::shared_ptr<shm::HangUpWatcher> watcher_;  // null before the first connection
};

}  // namespace

std::unique_ptr<Connector> make_shm_connector(const std::filesystem::path& socket,
                                              const ShmOptions& options) {
  return std::make_unique<ShmConnector>(socket, options);
}

}  // namespace tidemill::transport
