// SPDX-License-Identifier: Apache-2.0
// Private to transport/segments. The messages between a segment server and its readers.
//
// Both sides run on one host, so a message is a struct in the byte order of the host, and one
// packet of a socket of type SOCK_SEQPACKET. Each side refuses a packet whose size differs from
// that of its kind.
//
//   reader -> server   Hello      first, and once
//                      Map        asks for the memory of a segment of which it holds a loan
//                      Release    returns loans
//                      Unmapped   has unmapped a segment
//   server -> reader   Welcome    the response to Hello
//                      Refused    the other one; then the server closes the connection
//                      Segment    the response to Map, with the descriptor
//                      Unlent     the other one
//                      Unmap      asks to unmap a segment that has no loans
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <type_traits>

#include "base/files/unique_fd.hpp"
#include "transport/segments/segment_pool.hpp"
#include "transport/segments/segment_store.hpp"

namespace tidemill::transport::segment_wire {

/// Change the version with every change to a message. `Hello` and `Refused` keep their layout.
inline constexpr std::uint32_t kWireVersion = 1;
inline constexpr std::uint32_t kWireMagic = 0x67'73'6d'74;  // "tmsg"

enum class Kind : std::uint32_t {
  kHello = 1,
  kMap = 2,
  kRelease = 3,
  kUnmapped = 4,
  kWelcome = 5,
  kRefused = 6,
  kSegment = 7,
  kUnlent = 8,
  kUnmap = 9,
};

struct Hello {
  Kind kind = Kind::kHello;
  std::uint32_t magic = kWireMagic;
  std::uint32_t version = kWireVersion;
  std::uint32_t reader = 0;
  ReaderToken token{};
};

/// Why a server refuses a reader.
enum class Refusal : std::uint32_t { kVersion = 1, kUnknownReader = 2, kConnectedBefore = 3 };

struct Refused {
  Kind kind = Kind::kRefused;
  Refusal reason = Refusal::kVersion;
  std::uint32_t version = kWireVersion;  // of the server
};

struct Welcome {
  Kind kind = Kind::kWelcome;
  std::uint32_t index = 0;  // the index of the reader in the loan words
  std::uint64_t pool = 0;
};

/// kMap, kUnmapped, kUnlent, kUnmap.
struct AboutSegment {
  Kind kind = Kind::kMap;
  std::uint32_t unused = 0;
  std::uint64_t segment = 0;
};

struct Segment {
  Kind kind = Kind::kSegment;
  std::uint32_t unused = 0;
  std::uint64_t segment = 0;
  std::uint64_t capacity = 0;  // bytes
};

/// Followed by 1 to `kMaxReturned` values of `ReturnedLoans`.
struct Release {
  Kind kind = Kind::kRelease;
  std::uint32_t count = 0;
};
inline constexpr std::size_t kMaxReturned = 256;

inline constexpr std::size_t kMaxPacketBytes =
    sizeof(Release) + kMaxReturned * sizeof(ReturnedLoans);

/// A packet that has arrived.
struct Packet {
  alignas(8) std::array<std::byte, kMaxPacketBytes> bytes;
  std::size_t size = 0;
  UniqueFd descriptor;
};

/// How sending or receiving has ended. kClosed: the other side has closed the connection, or the
/// connection has failed. kMalformed: the packet is too long, empty, or carries descriptors that
/// are not expected.
enum class Transfer : std::uint8_t { kDone, kWouldBlock, kClosed, kMalformed };

/// Whether a packet may carry a descriptor.
enum class Descriptors : std::uint8_t { kNone, kOne };

/// Sends one packet without waiting, with `descriptor` unless that is negative.
[[nodiscard]] Transfer send_packet(int socket, std::span<const std::byte> bytes,
                                   int descriptor = -1);
/// Receives one packet without waiting.
[[nodiscard]] Transfer receive_packet(int socket, Descriptors allowed, Packet& packet);

/// Returns the bytes of a message.
template <class Message>
requires std::is_trivially_copyable_v<Message>
[[nodiscard]] std::span<const std::byte> bytes_of(const Message& message) {
  return std::as_bytes(std::span(&message, 1));
}

/// Returns the kind of a packet, or nothing if it is too short to have one.
[[nodiscard]] std::optional<Kind> kind_of(const Packet& packet);

/// Returns the packet as a `Message`, or nothing if it has another size.
template <class Message>
requires std::is_trivially_copyable_v<Message>
[[nodiscard]] std::optional<Message> read_as(const Packet& packet);

/// Returns the loans of a `Release`, or nothing if its size does not fit its count.
[[nodiscard]] std::optional<std::span<const ReturnedLoans>> read_release(const Packet& packet);

// -- implementation ------------------------------------------------------------------------------

template <class Message>
requires std::is_trivially_copyable_v<Message> std::optional<Message> read_as(
    const Packet& packet) {
  if (packet.size != sizeof(Message)) {
    return std::nullopt;
  }
  Message message;
  std::memcpy(&message, packet.bytes.data(), sizeof(message));
  return message;
}

}  // namespace tidemill::transport::segment_wire
