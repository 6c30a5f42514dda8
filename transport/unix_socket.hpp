// SPDX-License-Identifier: Apache-2.0
// Private to transport/. Unix sockets in files, of type SOCK_SEQPACKET.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <sys/types.h>
#include <sys/un.h>

#include "base/clock.hpp"
#include "base/files/held_directory.hpp"
#include "base/files/unique_fd.hpp"
#include "base/result.hpp"

namespace tidemill::transport {

/// The path of a Unix socket, of any length. Its directory is held open.
class SocketPath {
public:
  /// Errors: `kInvalidArgument` if the last name is missing or too long, or the directory is none;
  /// `kNotFound` without the directory; `kResourceExhausted`; `kUnavailable`.
  [[nodiscard]] static Result<SocketPath> open(const std::filesystem::path& path);

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] const sockaddr_un& address() const noexcept { return address_; }
  [[nodiscard]] int directory() const noexcept { return directory_->descriptor(); }
  /// Returns the name of the socket in its directory.
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

private:
  SocketPath(std::filesystem::path path, std::shared_ptr<const HeldDirectory> directory);

  std::filesystem::path path_;
  std::shared_ptr<const HeldDirectory> directory_;
  std::string name_;
  sockaddr_un address_{};
};

/// A socket that listens. Destroying it removes its file, unless the file is of another socket by
/// then.
class ListeningSocket {
public:
  /// Replaces a socket at the path. The file has mode 0600.
  /// Errors: those of `SocketPath::open`; `kInvalidArgument` if the path is not a socket; otherwise
  /// as `system_error`.
  [[nodiscard]] static Result<ListeningSocket> open(const std::filesystem::path& path);
  ListeningSocket(ListeningSocket&&) noexcept = default;
  ListeningSocket& operator=(ListeningSocket&&) = delete;
  ListeningSocket(const ListeningSocket&) = delete;
  ListeningSocket& operator=(const ListeningSocket&) = delete;
  ~ListeningSocket();

  /// Returns the descriptor, which does not block.
  [[nodiscard]] int get() const noexcept { return socket_.get(); }

private:
  ListeningSocket(SocketPath path, UniqueFd socket) noexcept;

  SocketPath path_;
  UniqueFd socket_;  // closed in an object that was moved from
  dev_t device_ = 0;
  ino_t inode_ = 0;  // of the file, or 0 without one
};

/// Connects to the process that listens at `path`. Waits until `deadline`.
/// Errors: `kUnavailable` if none listens there, or it is too busy; otherwise as `system_error`.
[[nodiscard]] Result<UniqueFd> connect_socket(const SocketPath& path, TimePoint deadline);

/// Returns whether the process at the other end of `socket` runs as this user.
[[nodiscard]] bool is_same_user(int socket);

/// Waits until `socket` can be read or has hung up. Returns false at the deadline.
[[nodiscard]] bool wait_to_read(int socket, TimePoint deadline);

/// Returns whether a process listens at `path`, or may do so.
[[nodiscard]] bool may_listen(const SocketPath& path);

}  // namespace tidemill::transport
