// SPDX-License-Identifier: Apache-2.0
// Where the memory of new buffers comes from.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "base/buffer.hpp"
#include "base/result.hpp"

namespace tidemill {

/// A new buffer, whose bytes its holder writes. Nothing else may read the buffer before that.
struct UnwrittenBuffer {
  Buffer buffer;
  std::span<std::byte> bytes;  // all bytes of `buffer`
};

/// Allocates buffers. A pool of shared memory can implement it, so that other processes can map
/// what one process has written.
///
/// Threads: calls may run concurrently.
class BufferAllocator {
public:
  /// Writes all bytes of a new buffer. Called once, before anything else can read the buffer.
  using Fill = std::function<void(std::span<std::byte>)>;

  BufferAllocator() = default;
  BufferAllocator(const BufferAllocator&) = delete;
  BufferAllocator& operator=(const BufferAllocator&) = delete;
  virtual ~BufferAllocator() = default;

  /// Returns a buffer of `size` bytes with elements of `dtype`, for a caller that writes them part
  /// by part. Its memory is aligned for every element type and may outlive the allocator.
  /// Errors: `kResourceExhausted` if the allocator has no such memory.
  [[nodiscard]] virtual Result<UnwrittenBuffer> allocate_unwritten(std::size_t size,
                                                                   DType dtype) = 0;

  /// Returns such a buffer after `fill` has written it. Errors: those of `allocate_unwritten`.
  [[nodiscard]] Result<Buffer> allocate(std::size_t size, DType dtype, const Fill& fill);
};

/// Allocates memory of this process that starts on a cache line. Never returns an error: if memory
/// runs out, it throws `std::bad_alloc`, as `new` does.
class HeapAllocator final : public BufferAllocator {
public:
  [[nodiscard]] Result<UnwrittenBuffer> allocate_unwritten(std::size_t size, DType dtype) override;
};

}  // namespace tidemill
