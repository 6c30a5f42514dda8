// SPDX-License-Identifier: Apache-2.0
#include "transport/unix_socket.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>
#include <utility>

#include "base/files/file.hpp"

namespace tidemill::transport {
namespace {

constexpr int kBacklog = 128;
constexpr mode_t kSocketMode = 0600;
constexpr std::size_t kMaxAddressBytes = sizeof(sockaddr_un::sun_path) - 1;

Duration left_until(TimePoint deadline) {
  return std::max(Duration::zero(), deadline - SystemClock().now());
}

Result<UniqueFd> make_socket(const SocketPath& path, int flags) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0));
  if (!socket.is_open()) {
    return system_error(errno, "create a socket", path.path());
  }
  return socket;
}

// Removes what an acceptor that was killed has left.
Status remove_stale(const SocketPath& path) {
  struct stat found {};
  if (::fstatat(path.directory(), path.name().c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0) {
    return errno == ENOENT ? Status() : system_error(errno, "examine", path.path());
  }
  if (!S_ISSOCK(found.st_mode)) {
    return invalid_argument(path.path().string() + ": exists and is not a socket");
  }
  if (::unlinkat(path.directory(), path.name().c_str(), 0) != 0 && errno != ENOENT) {
    return system_error(errno, "remove", path.path());
  }
  return {};
}

}  // namespace

SocketPath::SocketPath(std::filesystem::path path, std::shared_ptr<const HeldDirectory> directory)
    : path_(std::move(path)), directory_(std::move(directory)), name_(path_.filename().string()) {
  address_.sun_family = AF_UNIX;
}

Result<SocketPath> SocketPath::open(const std::filesystem::path& path) {
  const std::filesystem::path parent = path.has_parent_path() ? path.parent_path() : ".";
  if (!path.has_filename()) {
    return invalid_argument(path.string() + ": not the path of a socket");
  }
  TIDEMILL_ASSIGN_OR_RETURN(std::shared_ptr<const HeldDirectory> directory,
                            HeldDirectory::open(parent));
  SocketPath result(path, std::move(directory));
  std::string text = path.string();
  if (text.size() > kMaxAddressBytes) {
    text = "/proc/self/fd/" + std::to_string(result.directory()) + "/" + result.name();
  }
  if (text.size() > kMaxAddressBytes) {
    return invalid_argument(path.string() + ": the name of the socket is too long");
  }
  std::ranges::copy(text, result.address_.sun_path);
  return result;
}

ListeningSocket::ListeningSocket(SocketPath path, UniqueFd socket) noexcept
    : path_(std::move(path)), socket_(std::move(socket)) {}

ListeningSocket::~ListeningSocket() {
  struct stat found {};
  if (socket_.is_open() && inode_ != 0 &&
      ::fstatat(path_.directory(), path_.name().c_str(), &found, AT_SYMLINK_NOFOLLOW) == 0 &&
      found.st_dev == device_ && found.st_ino == inode_) {
    (void)::unlinkat(path_.directory(), path_.name().c_str(), 0);
  }
}

Result<ListeningSocket> ListeningSocket::open(const std::filesystem::path& path) {
  TIDEMILL_ASSIGN_OR_RETURN(SocketPath opened, SocketPath::open(path));
  TIDEMILL_ASSIGN_OR_RETURN(UniqueFd socket, make_socket(opened, SOCK_NONBLOCK));
  TIDEMILL_RETURN_IF_ERROR(remove_stale(opened));
  // Linux creates the file with the mode of the socket, less the umask, so no other user can open
  // it even for a moment.
  if (::fchmod(socket.get(), kSocketMode) != 0) {
    return system_error(errno, "protect", path);
  }
  ListeningSocket result(std::move(opened), std::move(socket));
  const auto* address = reinterpret_cast<const sockaddr*>(&result.path_.address());
  if (::bind(result.get(), address, sizeof(sockaddr_un)) != 0) {
    return system_error(errno, "listen at", path);
  }
  struct stat made {};
  if (::fstatat(result.path_.directory(), result.path_.name().c_str(), &made,
                AT_SYMLINK_NOFOLLOW) != 0) {
    return system_error(errno, "examine", path);
  }
  result.device_ = made.st_dev;
  result.inode_ = made.st_ino;
  if (::listen(result.get(), kBacklog) != 0) {
    return system_error(errno, "listen at", path);
  }
  return result;
}

Result<UniqueFd> connect_socket(const SocketPath& path, TimePoint deadline) {
  TIDEMILL_ASSIGN_OR_RETURN(UniqueFd socket, make_socket(path, 0));
  const auto* address = reinterpret_cast<const sockaddr*>(&path.address());
  while (true) {
    // Linux waits that long for a place among the connections that the acceptor has not seen yet.
    // A timeout of zero would mean to wait without end.
    const auto left = std::max(std::chrono::microseconds(1),
                               std::chrono::ceil<std::chrono::microseconds>(left_until(deadline)));
    const timeval timeout{left.count() / 1'000'000, left.count() % 1'000'000};
    if (::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout)) != 0) {
      return system_error(errno, "connect to", path.path());
    }
    if (::connect(socket.get(), address, sizeof(sockaddr_un)) == 0) {
      return socket;
    }
    if (errno == EAGAIN) {
      return Status(Errc::kUnavailable, path.path().string() + ": the acceptor is too busy");
    }
    if (errno == ENOENT || errno == ECONNREFUSED) {
      return Status(Errc::kUnavailable, path.path().string() + ": no process listens there");
    }
    if (errno != EINTR) {
      return system_error(errno, "connect to", path.path());
    }
  }
}

bool is_same_user(int socket) {
  ucred other{};
  socklen_t size = sizeof(other);
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &other, &size) == 0 &&
         size == sizeof(other) && other.uid == ::geteuid();
}

bool wait_to_read(int socket, TimePoint deadline) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(left_until(deadline));
    // A longer wait than poll's would be one of 24 days.
    const int wait_ms = static_cast<int>(std::min<std::int64_t>(left.count(), 1 << 30));
    pollfd waited{socket, POLLIN, 0};
    const int count = ::poll(&waited, 1, wait_ms);
    if (count > 0) {
      return true;
    }
    if (count == 0 && left_until(deadline) == Duration::zero()) {
      return false;
    }
  }
}

bool may_listen(const SocketPath& path) {
  const auto probe = make_socket(path, SOCK_NONBLOCK);
  const auto* address = reinterpret_cast<const sockaddr*>(&path.address());
  return !probe.ok() || ::connect(probe.value().get(), address, sizeof(sockaddr_un)) == 0 ||
         (errno != ECONNREFUSED && errno != ENOENT);
}

}  // namespace tidemill::transport
