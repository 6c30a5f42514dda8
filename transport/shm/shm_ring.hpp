// SPDX-License-Identifier: Apache-2.0
// Private to transport/shm/. A ring of bytes in memory that another process can change at any time.
//
// The writer counts the bytes that it has written, the reader those that it has read; the content
// of the ring lies between the two counts. Each side keeps its own count in its own memory and only
// publishes it, so the other process cannot change it. It loads the count of the other side once,
// checks it, and uses that value. A count that would make the content negative or larger than the
// ring is impossible, and the connection closes.
//
// Memory order: the writer publishes its count after it has copied the bytes, with at least release
// order, and the reader loads it with at least acquire order, so the reader sees the bytes. The
// same holds for the count of the reader, so the writer overwrites only bytes that were copied out.
// The operations are sequentially consistent because sleeping needs it (shm_sleep.hpp).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace tidemill::transport::shm {

/// The sizes that a ring may have, which are powers of two. Units: bytes.
inline constexpr std::size_t kMinRingBytes = std::size_t{4} << 10U;
inline constexpr std::size_t kMaxRingBytes = std::size_t{16} << 20U;

/// The distance that keeps two words out of one cache line, and out of a pair that a processor
/// fetches together. Units: bytes.
inline constexpr std::size_t kSeparateBytes = 128;

/// Returns whether a ring may have this size.
[[nodiscard]] constexpr bool is_ring_size(std::uint64_t bytes) noexcept {
  return bytes >= kMinRingBytes && bytes <= kMaxRingBytes && (bytes & (bytes - 1)) == 0;
}

/// The published counts of one ring. Lies in shared memory, where zeros are a valid start.
struct RingCounts {
  alignas(kSeparateBytes) std::atomic<std::uint64_t> written;
  alignas(kSeparateBytes) std::atomic<std::uint64_t> read;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// The side of a ring that writes. Borrows the counts and the bytes, whose number is a ring size.
///
/// Threads: one call at a time.
class RingWriter {
public:
  RingWriter(RingCounts& counts, std::span<std::byte> bytes) noexcept;

  [[nodiscard]] std::size_t capacity() const noexcept { return bytes_.size(); }
  /// Returns how many bytes can be written, or nothing if the count of the reader is impossible.
  /// Does not look at that count if there is known to be room for `wanted` bytes.
  [[nodiscard]] std::optional<std::size_t> room(std::size_t wanted) noexcept;
  /// Copies `bytes` into the ring. Requires that the last `room` was at least their number.
  void write(std::span<const std::byte> bytes) noexcept;
  /// Shows the reader what was written.
  void publish() noexcept { counts_.written.store(written_); }

private:
  RingCounts& counts_;
  std::span<std::byte> bytes_;
  std::uint64_t written_ = 0;
  std::uint64_t known_read_ = 0;
};

/// The side of a ring that reads. Borrows the counts and the bytes, whose number is a ring size.
///
/// Threads: one call at a time.
class RingReader {
public:
  RingReader(RingCounts& counts, std::span<const std::byte> bytes) noexcept;

  [[nodiscard]] std::size_t capacity() const noexcept { return bytes_.size(); }
  /// Returns how many bytes can be read, or nothing if the count of the writer is impossible. Looks
  /// at that count only if all bytes that are known of were read.
  [[nodiscard]] std::optional<std::size_t> available() noexcept;
  /// Returns whether `available` would return something other than 0.
  [[nodiscard]] bool has_news() const noexcept {
    return known_written_ != read_ || (!frozen_ && counts_.written.load() != read_);
  }
  /// Takes `out.size()` bytes out of the ring. Requires that the last `available` was at least
  /// that.
  void read(std::span<std::byte> out) noexcept;
  /// Gives the room of what was read back to the writer.
  void publish() noexcept { counts_.read.store(read_); }
  /// Returns how much room the writer has at least, as far as this side knows.
  [[nodiscard]] std::size_t known_room() const noexcept {
    return bytes_.size() - static_cast<std::size_t>(known_written_ - read_);
  }
  /// Looks at the count of the writer one last time: what it writes later is never read.
  /// Returns whether the count was possible.
  [[nodiscard]] bool freeze() noexcept;

private:
  [[nodiscard]] bool look() noexcept;

  RingCounts& counts_;
  std::span<const std::byte> bytes_;
  std::uint64_t read_ = 0;
  std::uint64_t known_written_ = 0;
  bool frozen_ = false;
};

}  // namespace tidemill::transport::shm
