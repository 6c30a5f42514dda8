// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/shm_frames.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include "base/tensor/dtype.hpp"
#include "transport/envelope.hpp"

namespace tidemill::transport::shm {

WriteStep write_piece(RingWriter& ring, OutgoingFrame& outgoing) {
  const std::size_t wanted = std::min(outgoing.num_left(), kPieceBytes);
  const std::optional<std::size_t> room = ring.room(wanted);
  if (!room.has_value()) {
    return WriteStep::kBrokenCount;
  }
  std::size_t left = std::min(wanted, *room);
  if (left == 0) {
    return WriteStep::kFull;
  }
  if (outgoing.num_done < kPrefixBytes) {
    const auto length = static_cast<std::uint32_t>(outgoing.frame.size_bytes());
    const auto prefix = std::as_bytes(std::span(&length, 1)).subspan(outgoing.num_done);
    const std::size_t size = std::min(prefix.size(), left);
    ring.write(prefix.first(size));
    outgoing.num_done += size;
    left -= size;
  }
  if (left > 0) {
    ring.write(outgoing.frame.bytes().subspan(outgoing.num_done - kPrefixBytes, left));
    outgoing.num_done += left;
  }
  ring.publish();
  return outgoing.num_left() == 0 ? WriteStep::kDone : WriteStep::kPiece;
}

// Prepares for the frame that the prefix announces.
ReadStep FrameReader::begin() {
  std::uint32_t size = 0;
  std::memcpy(&size, prefix_.data(), sizeof(size));
  size_ = size;
  num_read_ = 0;
  if (size_ > kMaxEnvelopeBytes) {
    return ReadStep::kTooLarge;
  }
  // The memory is not written here, so the kernel provides pages of a large frame only as its bytes
  // arrive: a length without bytes costs addresses, but no memory.
  try {
    words_ = std::make_shared_for_overwrite<std::uint64_t[]>((size_ + 7) / 8);
  } catch (const std::bad_alloc&) {
    return ReadStep::kNoMemory;
  }
  return ReadStep::kPiece;
}

ReadStep FrameReader::read_piece(RingReader& ring) {
  const std::optional<std::size_t> available = ring.available();
  if (!available.has_value()) {
    return ReadStep::kBrokenCount;
  }
  std::size_t left = std::min(*available, kPieceBytes);
  if (left == 0) {
    return ReadStep::kNothing;
  }
  if (num_prefix_ < kPrefixBytes) {
    const std::size_t size = std::min(kPrefixBytes - num_prefix_, left);
    ring.read(std::span(prefix_).subspan(num_prefix_, size));
    num_prefix_ += size;
    left -= size;
    if (num_prefix_ == kPrefixBytes) {
      if (const ReadStep step = begin(); step != ReadStep::kPiece) {
        return step;
      }
    }
  }
  if (num_prefix_ == kPrefixBytes) {
    const std::size_t size = std::min(size_ - num_read_, left);
    ring.read(
        std::as_writable_bytes(std::span(words_.get(), (size_ + 7) / 8)).subspan(num_read_, size));
    num_read_ += size;
  }
  ring.publish();
  return num_prefix_ == kPrefixBytes && num_read_ == size_ ? ReadStep::kFrame : ReadStep::kPiece;
}

Buffer FrameReader::take() {
  const auto bytes = std::as_bytes(std::span(words_.get(), (size_ + 7) / 8)).first(size_);
  num_prefix_ = 0;
  return Buffer::wrap(std::exchange(words_, nullptr), bytes, DType::kU8);
}

}  // namespace tidemill::transport::shm
