// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/shm_ring.hpp"

#include <algorithm>
#include <cstring>

#include "base/check.hpp"

namespace tidemill::transport::shm {
namespace {

// Calls `copy(at, done, size)` for the one or two ranges of the ring that hold `size` bytes from
// `count` on: `at` is an offset in the ring, `done` the number of bytes before the range.
template <class Copy>
void for_each_range(std::uint64_t count, std::size_t size, std::size_t capacity, Copy copy) {
  const std::size_t at = static_cast<std::size_t>(count) & (capacity - 1);
  const std::size_t first = std::min(size, capacity - at);
  if (first > 0) {
    copy(at, std::size_t{0}, first);
  }
  if (size > first) {
    copy(std::size_t{0}, first, size - first);
  }
}

}  // namespace

RingWriter::RingWriter(RingCounts& counts, std::span<std::byte> bytes) noexcept
    : counts_(counts), bytes_(bytes) {
  TIDEMILL_CHECK(is_ring_size(bytes.size())) << bytes.size();
}

std::optional<std::size_t> RingWriter::room(std::size_t wanted) noexcept {
  std::size_t room = bytes_.size() - static_cast<std::size_t>(written_ - known_read_);
  if (room >= wanted) {
    return room;
  }
  const std::uint64_t read = counts_.read.load();
  const std::uint64_t content = written_ - read;  // wraps to a huge value if `read` is ahead
  if (content > bytes_.size()) {
    return std::nullopt;
  }
  known_read_ = read;
  return bytes_.size() - static_cast<std::size_t>(content);
}

void RingWriter::write(std::span<const std::byte> bytes) noexcept {
  TIDEMILL_DCHECK(bytes.size() <= bytes_.size() - (written_ - known_read_)) << bytes.size();
  for_each_range(written_, bytes.size(), bytes_.size(),
                 [&](std::size_t at, std::size_t done, std::size_t size) {
                   std::memcpy(bytes_.data() + at, bytes.data() + done, size);
                 });
  written_ += bytes.size();
}

RingReader::RingReader(RingCounts& counts, std::span<const std::byte> bytes) noexcept
    : counts_(counts), bytes_(bytes) {
  TIDEMILL_CHECK(is_ring_size(bytes.size())) << bytes.size();
}

bool RingReader::look() noexcept {
  const std::uint64_t written = counts_.written.load();
  if (written - read_ > bytes_.size()) {  // wraps to a huge value if `written` is behind
    return false;
  }
  known_written_ = written;
  return true;
}

std::optional<std::size_t> RingReader::available() noexcept {
  if (known_written_ == read_ && !frozen_ && !look()) {
    return std::nullopt;
  }
  return static_cast<std::size_t>(known_written_ - read_);
}

void RingReader::read(std::span<std::byte> out) noexcept {
  TIDEMILL_DCHECK(out.size() <= known_written_ - read_) << out.size();
  for_each_range(read_, out.size(), bytes_.size(),
                 [&](std::size_t at, std::size_t done, std::size_t size) {
                   std::memcpy(out.data() + done, bytes_.data() + at, size);
                 });
  // The other process may change the ring now. The compiler must not load from it again what was
  // copied and is checked next.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  read_ += out.size();
}

bool RingReader::freeze() noexcept {
  const bool possible = look();
  frozen_ = true;
  return possible;
}

}  // namespace tidemill::transport::shm
