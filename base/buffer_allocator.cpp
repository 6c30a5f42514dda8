// SPDX-License-Identifier: Apache-2.0
#include "base/buffer_allocator.hpp"

#include <cstdint>
#include <memory>
#include <utility>

#include "base/tensor/aligned_bytes.hpp"

namespace tidemill {

Result<Buffer> BufferAllocator::allocate(std::size_t size, DType dtype, const Fill& fill) {
  TIDEMILL_ASSIGN_OR_RETURN(UnwrittenBuffer made, allocate_unwritten(size, dtype));
  fill(made.bytes);
  return std::move(made.buffer);
}

Result<UnwrittenBuffer> HeapAllocator::allocate_unwritten(std::size_t size, DType dtype) {
  auto memory = std::make_shared<AlignedBytes>(static_cast<std::int64_t>(size));
  const std::span<std::byte> bytes(memory->data(), size);
  return UnwrittenBuffer{Buffer::wrap(std::move(memory), bytes, dtype), bytes};
}

}  // namespace tidemill
