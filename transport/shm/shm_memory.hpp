// SPDX-License-Identifier: Apache-2.0
// Private to transport/shm/. The memory that the two processes of a connection share: one ring for
// each direction, and their control words.
//
// The memory is a memfd, whose size is sealed. Neither process can shrink it, so an access never
// ends outside of it. Its pages are allocated in advance, so a lack of memory is an error when the
// connection is made, instead of a signal later.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/files/unique_fd.hpp"
#include "base/result.hpp"
#include "transport/shm/shm_ring.hpp"
#include "transport/shm/shm_sleep.hpp"

namespace tidemill::transport::shm {

/// The two sides of a connection, which number the rings and sleep words.
enum class Role : std::uint8_t { kConnector = 0, kAcceptor = 1 };

/// The control words, at the start of the memory. Zeros are their initial state.
struct Control {
  struct Side {
    RingCounts counts;                        // of the ring that this side writes
    alignas(kSeparateBytes) SleepWord sleep;  // of the thread of this side
  };
  std::array<Side, 2> sides;  // by `Role`
};

/// The bytes at the start of the memory for the control words. The rings follow.
inline constexpr std::size_t kControlBytes = 4096;
static_assert(sizeof(Control) <= kControlBytes);

/// A mapping of the memory of a connection.
class SharedMemory {
public:
  /// Makes new memory. Requires that `ring_bytes` is a ring size.
  /// Errors: `kResourceExhausted` if the machine or a limit has no room for it; `kUnavailable`.
  [[nodiscard]] static Result<SharedMemory> create(std::size_t ring_bytes);
  /// Maps memory that another process has made with `create`. It checks everything that makes
  /// access to the memory safe, so `descriptor` and `ring_bytes` may be anything.
  /// Errors: `kCorruptData` if it is something else; `kResourceExhausted`; `kUnavailable`.
  [[nodiscard]] static Result<SharedMemory> open(UniqueFd descriptor, std::uint64_t ring_bytes);

  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) = delete;
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory();

  [[nodiscard]] std::size_t ring_bytes() const noexcept { return ring_bytes_; }
  /// Returns the descriptor of the memory, which `close_descriptor` closes.
  [[nodiscard]] int descriptor() const noexcept { return descriptor_.get(); }
  void close_descriptor() noexcept { descriptor_.reset(); }

  [[nodiscard]] Control& control() const noexcept;
  /// Returns the ring that the side `writer` writes.
  [[nodiscard]] std::span<std::byte> ring(Role writer) const noexcept;

private:
  SharedMemory(UniqueFd descriptor, std::byte* mapping, std::size_t ring_bytes) noexcept;
  static Result<SharedMemory> map(UniqueFd descriptor, std::size_t ring_bytes);

  UniqueFd descriptor_;
  std::byte* mapping_;
  std::size_t ring_bytes_;
};

}  // namespace tidemill::transport::shm
