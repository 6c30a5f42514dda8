// SPDX-License-Identifier: Apache-2.0
// Private to transport/shm/. The handshake over the Unix socket where two processes meet.
//
// The connector sends a `Hello` with the descriptor of the memory, the acceptor a `HelloReply`.
// Each is one packet in the order of the machine, because both processes run on it. After that,
// nothing more is sent over the socket.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <sys/types.h>

#include "base/clock.hpp"
#include "base/files/unique_fd.hpp"
#include "base/result.hpp"
#include "transport/unix_socket.hpp"

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
