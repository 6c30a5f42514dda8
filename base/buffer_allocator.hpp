// SPDX-License-Identifier: Apache-2.0
// Where the memory of new buffers comes from.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "base/buffer.hpp"
#include "base/result.hpp"

namespace tidemill {

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

  /// Returns a buffer of `size` bytes with elements of `dtype`, after `fill` has written them. Its
  /// memory is aligned for every element type and may outlive the allocator.
  /// Errors: `kResourceExhausted` if the allocator has no such memory.
  [[nodiscard]] virtual Result<Buffer> allocate(std::size_t size, DType dtype,
                                                const Fill& fill) = 0;
};

/// Allocates memory of this process that starts on a cache line. Never fails.
class HeapAllocator final : public BufferAllocator {
public:
  [[nodiscard]] Result<Buffer> allocate(std::size_t size, DType dtype, const Fill& fill) override;
};

}  // namespace tidemill
