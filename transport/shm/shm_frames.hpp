// SPDX-License-Identifier: Apache-2.0
// Private to transport/shm/. Frames in a ring: each is its length, 4 bytes in the order of the
// machine, and its bytes.
//
// A frame may be larger than the ring. Both sides therefore move it in pieces, and a piece that was
// read makes room for the next one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/buffer.hpp"
#include "transport/shm/shm_ring.hpp"

namespace tidemill::transport::shm {

/// The length in front of a frame. Units: bytes.
inline constexpr std::size_t kPrefixBytes = 4;
/// The largest piece that is copied before the other side sees it, so that both sides copy a large
/// frame at the same time. Units: bytes.
inline constexpr std::size_t kPieceBytes = std::size_t{64} << 10U;

/// Returns how much room a ring must have before a writer that waits for room goes on. Less would
/// make the two sides wake each other for every few bytes. Units: bytes.
[[nodiscard]] constexpr std::size_t room_to_go_on(std::size_t capacity) noexcept {
  return capacity / 4;
}

/// A frame of which some bytes may be in the ring already.
struct OutgoingFrame {
  Buffer frame;
  std::size_t num_done = 0;  // bytes, counting the length in front
  [[nodiscard]] std::size_t num_left() const noexcept {
    return kPrefixBytes + frame.size_bytes() - num_done;
  }
};

/// What `write_piece` has done.
enum class WriteStep : std::uint8_t {
  kDone,         // the frame is complete
  kPiece,        // the frame is not complete
  kFull,         // nothing: the ring is full
  kBrokenCount,  // nothing: the reader published an impossible count
};

/// Writes the next piece of `outgoing` and publishes it. Requires that bytes of it are left.
[[nodiscard]] WriteStep write_piece(RingWriter& ring, OutgoingFrame& outgoing);

/// What `FrameReader::read_piece` has found.
enum class ReadStep : std::uint8_t {
  kNothing,      // the ring is empty
  kPiece,        // a part of a frame
  kFrame,        // the end of a frame, which `take` returns
  kBrokenCount,  // the writer published an impossible count
  kTooLarge,     // a frame longer than `kMaxEnvelopeBytes`
  kNoMemory,     // a frame for which this process has no memory
};

/// Puts frames together from the pieces in a ring. After one of the last three steps, it must not
/// be used.
///
/// Threads: one call at a time.
class FrameReader {
public:
  /// Copies the next piece out of the ring and publishes the room.
  [[nodiscard]] ReadStep read_piece(RingReader& ring);
  /// Returns the frame after `kFrame`. Its bytes are aligned to 8.
  [[nodiscard]] Buffer take();
  /// Returns the length of the frame that is being read.
  [[nodiscard]] std::size_t size_bytes() const noexcept { return size_; }

private:
  [[nodiscard]] ReadStep begin();

  std::array<std::byte, kPrefixBytes> prefix_{};
  std::size_t num_prefix_ = 0;  // bytes of the prefix that were read
  std::size_t size_ = 0;        // of the frame, once its prefix was read
  std::size_t num_read_ = 0;
  std::shared_ptr<std::uint64_t[]> words_;  // the memory of the frame
};

}  // namespace tidemill::transport::shm
