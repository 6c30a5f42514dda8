// SPDX-License-Identifier: Apache-2.0
// Device memory that is memory of this process: an arena whose parts are the blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "engines/ops/backend.hpp"
#include "engines/ops/device_memory.hpp"
#include "engines/ops/host/range_allocator.hpp"

namespace tidemill::engines::host {

/// The arena of a backend that computes on the processor. It divides address space that a subclass
/// maps into blocks.
///
/// The pages of a block of at least 2 MiB go back to the system when it is freed. If the block will
/// be used as a whole, it starts on a large page, unless only another place is left. If operations
/// may be pending when a block is freed, the block stays in place until `release_freed`, so that
/// they can use it.
class HostMemory : public DeviceMemory {
public:
  [[nodiscard]] Result<DeviceBlock> allocate(std::int64_t bytes, BlockUse use) final;

  /// Says whether freed blocks stay in place. At first they do not.
  void hold_freed(bool hold) noexcept { holds_ = hold; }
  /// Returns the pointer through which the backend reaches an address of this memory.
  [[nodiscard]] std::byte* pointer(DeviceAddress address) const noexcept;
  /// Releases the blocks that stayed in place.
  void release_freed() noexcept;

protected:
  /// `limit_bytes` bounds the total size of the blocks; 0: only the system does.
  explicit HostMemory(std::int64_t limit_bytes) noexcept : limit_bytes_(limit_bytes) {}
  /// Sets the difference between the pointer of a block and its address. At first it is 0.
  void set_shift(std::ptrdiff_t shift) noexcept { shift_ = shift; }
  /// Adds address space for blocks.
  void add_region(std::uintptr_t first, std::int64_t bytes) {
    ranges_.add(static_cast<std::int64_t>(first), bytes);
  }

  /// Maps address space for a block of `bytes` bytes, however it is aligned, and calls
  /// `add_region`. Returns whether it could.
  [[nodiscard]] virtual bool grow(std::int64_t bytes) = 0;
  /// Says how the pages of a new block of at least 2 MiB will be used.
  virtual void advise(std::byte* pages, std::int64_t bytes, BlockUse use) noexcept = 0;
  /// Prepares the content of a new block.
  virtual void prepare(std::byte* block, std::int64_t bytes, BlockUse use) noexcept = 0;
  /// Gives whole pages back to the system. Their content becomes undefined.
  virtual void discard(std::byte* pages, std::int64_t bytes) noexcept = 0;

private:
  void free(DeviceAddress address, std::int64_t bytes) noexcept final;
  void release(DeviceAddress address, std::int64_t bytes) noexcept;
  [[nodiscard]] Status too_little(std::int64_t bytes) const;

  std::int64_t limit_bytes_;
  std::ptrdiff_t shift_ = 0;
  RangeAllocator ranges_;  // of addresses
  bool holds_ = false;
  std::vector<std::pair<DeviceAddress, std::int64_t>> freed_;
};

/// Maps memory of the process. Addresses are pointers. Pages take no memory until they are touched.
class MappedMemory final : public HostMemory {
public:
  /// Memory that maps what it needs block by block.
  MappedMemory() noexcept : HostMemory(0) {}
  /// Maps `size.reserved` bytes at once, and more only if blocks exceed them.
  /// Errors: `kResourceExhausted` if the system refuses them.
  [[nodiscard]] static Result<std::unique_ptr<MappedMemory>> create(const DeviceSize& size);
  ~MappedMemory() override;
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

private:
  explicit MappedMemory(std::int64_t limit_bytes) noexcept : HostMemory(limit_bytes) {}
  bool grow(std::int64_t bytes) override;
  void advise(std::byte* pages, std::int64_t bytes, BlockUse use) noexcept override;
  void prepare(std::byte* /*block*/, std::int64_t /*bytes*/, BlockUse /*use*/) noexcept override {}
  void discard(std::byte* pages, std::int64_t bytes) noexcept override;

  std::vector<std::pair<void*, std::size_t>> regions_;
};

}  // namespace tidemill::engines::host
