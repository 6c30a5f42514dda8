// SPDX-License-Identifier: Apache-2.0
// Device memory that is memory of this process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/tensor/aligned_bytes.hpp"
#include "engines/ops/device_memory.hpp"

namespace tidemill::engines::host {

/// Memory of a backend that computes on the processor.
///
/// If operations may be pending when a block is freed, the block stays in place until
/// `release_freed`, so that they can use it.
class HostMemory : public DeviceMemory {
public:
  /// Says whether freed blocks stay in place. At first they do not.
  void hold_freed(bool hold) noexcept { holds_ = hold; }
  /// Returns the pointer through which the backend reaches an address of this memory.
  [[nodiscard]] std::byte* pointer(DeviceAddress address) const noexcept;
  /// Releases the blocks that stayed in place.
  void release_freed() noexcept;

protected:
  /// `shift` is the difference between a block's pointer and its address.
  explicit HostMemory(std::ptrdiff_t shift = 0) noexcept : shift_(shift) {}
  void set_shift(std::ptrdiff_t shift) noexcept { shift_ = shift; }
  /// Makes the memory of a block available again.
  virtual void release(DeviceAddress address, std::int64_t bytes) noexcept = 0;

private:
  void free(DeviceAddress address, std::int64_t bytes) noexcept final;

  std::ptrdiff_t shift_;
  bool holds_ = false;
  std::vector<std::pair<DeviceAddress, std::int64_t>> freed_;
};

/// Takes each block from the system. Addresses are pointers.
class HeapMemory final : public HostMemory {
public:
  [[nodiscard]] Result<DeviceBlock> allocate(std::int64_t bytes, BlockUse use) override;

private:
  void release(DeviceAddress address, std::int64_t bytes) noexcept override;

  std::unordered_map<std::uintptr_t, AlignedBytes> blocks_;
};

}  // namespace tidemill::engines::host
