// SPDX-License-Identifier: Apache-2.0
// Private to transport/. The Unix socket where two processes meet, and the handshake over it.
//
// The connector sends a `Hello` with the descriptor of the memory, the acceptor a `HelloReply`.
// Each is one packet in the order of the machine, because both processes run on it. After that,
// nothing more is sent over the socket.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <sys/types.h>
#include <sys/un.h>

#include "base/clock.hpp"
#include "base/files/held_directory.hpp"
#include "base/files/unique_fd.hpp"
#include "base/result.hpp"

namespace tidemill::transport::shm {

/// The version of the handshake, the memory and the frames. Changing one of them changes it.
inline constexpr std::uint32_t kHandshakeVersion = 1;
inline constexpr std::array<char, 8> kHandshakeMagic = {'t', 'd', 'm', 'l', 's', 'h', 'm', '\n'};

/// What a connector sends. The first two members never change.
struct Hello {
  std::array<char, 8> magic = kHandshakeMagic;
  std::uint32_t version = kHandshakeVersion;
  std::uint32_t reserved = 0;
  std::uint64_t ring_bytes = 0;
};

/// What the acceptor has decided.
enum class HelloOutcome : std::uint32_t {
  kAccepted = 0,
  kOtherVersion = 1,
  kBadMemory = 2,
  kNoResources = 3,
};

/// What an acceptor sends. Never changes.
struct HelloReply {
  std::array<char, 8> magic = kHandshakeMagic;
  std::uint32_t version = kHandshakeVersion;
  HelloOutcome outcome = HelloOutcome::kAccepted;
};

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
  /// Errors: as `listen_shm`.
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

/// Connects to the acceptor at `path`. Waits until `deadline`.
/// Errors: as `Connector::connect` of make_shm_connector.
[[nodiscard]] Result<UniqueFd> connect_socket(const SocketPath& path, TimePoint deadline);

/// Returns whether the process at the other end of `socket` runs as this user.
[[nodiscard]] bool is_same_user(int socket);

/// Sends `hello` with the descriptor `memory`. Errors: `kUnavailable`.
[[nodiscard]] Status send_hello(int socket, const Hello& hello, int memory);
/// Waits for the reply of the acceptor until `deadline`.
/// Errors: `kUnavailable` if it refuses, or does not reply in time; `kUnimplemented` naming both
/// versions; `kResourceExhausted` if its process lacks memory, descriptors or threads.
[[nodiscard]] Status receive_reply(int socket, TimePoint deadline);

/// A hello that has arrived, with the descriptors that came with it.
struct ReceivedHello {
  Hello hello;
  UniqueFd memory;
};
/// Receives the hello that waits at `socket`. Its version is the only thing that may be wrong.
/// Errors: `kCorruptData` if it is no hello, or does not carry exactly one descriptor.
[[nodiscard]] Result<ReceivedHello> receive_hello(int socket);
/// Sends the reply. Errors: `kUnavailable`.
[[nodiscard]] Status send_reply(int socket, HelloOutcome outcome);

}  // namespace tidemill::transport::shm
