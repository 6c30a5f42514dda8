// SPDX-License-Identifier: Apache-2.0
#include "base/buffer_allocator.hpp"

#include <cstdint>
#include <memory>
#include <utility>

#include "base/tensor/aligned_bytes.hpp"

namespace tidemill {

Result<Buffer> HeapAllocator::allocate(std::size_t size, DType dtype, const Fill& fill) {
  auto memory = std::make_shared<AlignedBytes>(static_cast<std::int64_t>(size));
  const std::span<std::byte> bytes(memory->data(), size);
  fill(bytes);
  return Buffer::wrap(std::move(memory), bytes, dtype);
}

}  // namespace tidemill
