// SPDX-License-Identifier: Apache-2.0
// Private to transport/zmq/: endpoints, and the files of those in the file system.
//
// The path in an address of a Unix socket has at most 107 characters. A longer one is reached
// through the descriptor of its directory, as `/proc/self/fd/N/name`.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <sys/types.h>

#include "base/files/held_directory.hpp"
#include "base/files/unique_fd.hpp"
#include "base/result.hpp"
#include "base/status.hpp"

namespace tidemill::transport {

/// The maximum length of the last component of a path in an endpoint. Units: bytes.
inline constexpr std::size_t kMaxSocketNameBytes = 80;

/// Checks that `endpoint` is "ipc://" and an absolute path.
/// Errors: `kInvalidArgument`.
[[nodiscard]] Status check_endpoint(const std::string& endpoint);

/// An endpoint as ZeroMQ takes it, which is valid while this object exists.
struct ZmqAddress {
  std::string endpoint;
  std::shared_ptr<const HeldDirectory> directory;
};

/// Returns the address to connect to. Requires a valid endpoint.
/// Errors: those of `HeldDirectory::open`, for the folder of the path.
[[nodiscard]] Result<ZmqAddress> address_of(const std::string& endpoint);

/// A Unix socket that listens at a path. Only processes of the same user can connect to it. The
/// destructor removes the file, unless another one has replaced it.
class SocketFile {
public:
  /// Creates the file. Replaces a socket that no process listens to any more. Requires a valid
  /// endpoint.
  /// Errors: `kInvalidArgument` if the path names something else than a socket; `kUnavailable` if a
  /// process listens there, or the system refuses; those of `address_of`.
  [[nodiscard]] static Result<std::unique_ptr<SocketFile>> listen(const std::string& endpoint);

  SocketFile(const SocketFile&) = delete;
  SocketFile& operator=(const SocketFile&) = delete;
  ~SocketFile();

  /// Returns the listening socket, which the caller now owns.
  [[nodiscard]] int release_socket() noexcept { return socket_.release(); }

private:
  SocketFile(std::shared_ptr<const HeldDirectory> directory, std::string name)
      : directory_(std::move(directory)), name_(std::move(name)) {}
  Status create();

  std::shared_ptr<const HeldDirectory> directory_;
  std::string name_;
  UniqueFd socket_;
  dev_t device_ = 0;
  ino_t inode_ = 0;  // of the file; 0 if it was not created
};

}  // namespace tidemill::transport
