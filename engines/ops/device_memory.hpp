// SPDX-License-Identifier: Apache-2.0
// The memory of a device: blocks that are allocated from it and freed with their owner.
#pragma once

#include <cstdint>
#include <utility>

#include "base/result.hpp"
#include "engines/ops/matrix.hpp"

namespace tidemill::engines {

class DeviceBlock;

/// Says how much of a block will be used.
enum class BlockUse : std::uint8_t {
  kWhole,   // all of it, soon
  kSparse,  // parts may never be touched, and should then take no memory if the device allows that
};

/// The memory of one device.
///
/// Threads: one call at a time over the memory and the operations of the device.
class DeviceMemory {
public:
  DeviceMemory() = default;
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  virtual ~DeviceMemory() = default;

  /// Allocates a block of undefined content that starts on a cache line. The memory must outlive
  /// the block. A block of 0 bytes is null.
  /// Errors: `kResourceExhausted` naming the sizes.
  [[nodiscard]] virtual Result<DeviceBlock> allocate(std::int64_t bytes,
                                                     BlockUse use = BlockUse::kWhole) = 0;

  /// Returns the total size of all blocks. Units: bytes.
  [[nodiscard]] std::int64_t used_bytes() const noexcept { return used_bytes_; }
  /// Returns how many blocks have been allocated until now.
  [[nodiscard]] std::int64_t num_allocations() const noexcept { return num_allocations_; }

protected:
  friend class DeviceBlock;
  /// Frees a block. Operations that were submitted before may still use it.
  virtual void free(DeviceAddress address, std::int64_t bytes) noexcept = 0;
  [[nodiscard]] inline DeviceBlock make_block(DeviceAddress address, std::int64_t bytes);

private:
  std::int64_t used_bytes_ = 0;
  std::int64_t num_allocations_ = 0;
};

/// Owns a block of device memory.
class DeviceBlock {
public:
  DeviceBlock() = default;
  DeviceBlock(DeviceBlock&& other) noexcept { swap(other); }
  DeviceBlock& operator=(DeviceBlock&& other) noexcept {
    DeviceBlock moved(std::move(other));
    swap(moved);
    return *this;
  }
  DeviceBlock(const DeviceBlock&) = delete;
  DeviceBlock& operator=(const DeviceBlock&) = delete;
  ~DeviceBlock() {
    if (memory_ != nullptr) {
      memory_->used_bytes_ -= size_;
      memory_->free(address_, size_);
    }
  }

  [[nodiscard]] DeviceAddress address() const noexcept { return address_; }
  [[nodiscard]] std::int64_t size_bytes() const noexcept { return size_; }

private:
  friend class DeviceMemory;
  DeviceBlock(DeviceMemory& memory, DeviceAddress address, std::int64_t size) noexcept
      : memory_(&memory), address_(address), size_(size) {}
  void swap(DeviceBlock& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(address_, other.address_);
    std::swap(size_, other.size_);
  }

  DeviceMemory* memory_ = nullptr;
  DeviceAddress address_;
  std::int64_t size_ = 0;
};

DeviceBlock DeviceMemory::make_block(DeviceAddress address, std::int64_t bytes) {
  used_bytes_ += bytes;
  ++num_allocations_;
  return {*this, address, bytes};
}

}  // namespace tidemill::engines
