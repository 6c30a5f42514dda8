// SPDX-License-Identifier: Apache-2.0
// The envelope in which processes of a run send each other messages, and its encoding.
//
// A frame is a checksum of 8 bytes, little-endian, and a Cap'n Proto message of
// wire/envelope.capnp. The checksum is the low half of the message's xxh3-128. It detects damage,
// but is no protection against a sender that chooses content. Tensors do not travel in envelopes: a
// body is a small message, and a large payload is sent as a handle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/buffer.hpp"
#include "base/clock.hpp"
#include "base/result.hpp"

namespace tidemill::transport {

/// The version of the envelope that this program writes, and the only one that it reads.
inline constexpr std::uint16_t kEnvelopeVersion = 1;

/// The maximum size of an encoded envelope. Units: bytes.
inline constexpr std::size_t kMaxEnvelopeBytes = std::size_t{16} << 20U;
/// The maximum size of a frame without its body. Units: bytes.
inline constexpr std::size_t kMaxHeaderBytes = 256;
/// The maximum size of a body. Units: bytes.
inline constexpr std::size_t kMaxBodyBytes = kMaxEnvelopeBytes - kMaxHeaderBytes;

/// One message between two processes, or a message of the transport itself.
struct Envelope {
  std::uint64_t run = 0;          // names the run
  std::uint32_t incarnation = 0;  // of the run; a restart opens a new one
  /// The sending process, as the process of the run numbers them. A number is never given out again
  /// in the same incarnation, because the numbers of messages begin anew with a new process.
  std::uint32_t sender = 0;
  /// Says what `body` is. Protocols give out the numbers.
  std::uint16_t kind = 0;
  /// The number of this message among those from `sender` to the receiver in this incarnation, from
  /// 1 on. A message that is sent again keeps its number. 0: a message of the transport, which is
  /// neither acknowledged nor sent again.
  std::uint64_t sequence = 0;
  /// The `sequence` of the request to which this message replies, or 0.
  std::uint64_t reply_to = 0;
  /// The sender has received all messages of the receiver up to this number.
  std::uint64_t acknowledged = 0;
  /// How many bytes of bodies the receiver may send in this incarnation, from its first message on.
  /// A total instead of a difference: an envelope that is lost or arrives twice does no harm.
  std::uint64_t credit = 0;
  /// How long the sender still waits for a reply, or zero. A duration, because the clocks of two
  /// hosts need not agree. Never negative.
  Duration deadline{};
  Buffer body;
};

/// Encodes an envelope as a frame. Requires a resolved body and a deadline that is not negative.
/// Errors: `kInvalidArgument` if the body is larger than `kMaxBodyBytes`.
[[nodiscard]] Result<std::vector<std::byte>> write_envelope(const Envelope& envelope);

/// Decodes a frame. The body is a part of `frame`, without a copy if `frame` is aligned to 8
/// bytes. Requires a resolved `frame`. Its content may be anything.
/// Errors: `kUnimplemented` naming both versions if the sender wrote another version;
/// `kCorruptData` if `frame` is not exactly one envelope of at most `kMaxEnvelopeBytes`, or was
/// damaged.
[[nodiscard]] Result<Envelope> read_envelope(const Buffer& frame);

}  // namespace tidemill::transport
