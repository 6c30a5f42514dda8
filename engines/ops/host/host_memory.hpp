// SPDX-License-Identifier: Apache-2.0
// Device memory in the address space of this process: an arena that blocks are allocated from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "engines/ops/backend.hpp"
#include "engines/ops/device_memory.hpp"
#include "engines/ops/host/range_allocator.hpp"

namespace tidemill::engines::host {

/// The arena of a backend that computes on the processor. Subclasses map address space; this class
/// divides it into blocks.
///
/// A freed block of at least 2 MiB returns its pages to the system. Such a block starts on a large
/// page if it will be used as a whole (`BlockUse::kWhole`) and an aligned range is free. After
/// `hold_freed(true)`, freed blocks stay mapped and unused until `release_freed`, because pending
/// operations may still access them.
class HostMemory : public DeviceMemory {
public:
  [[nodiscard]] Result<DeviceBlock> allocate(std::int64_t bytes, BlockUse use) final;

  /// Sets whether freed blocks are kept until `release_freed`. The default is false.
  void hold_freed(bool hold) noexcept { holds_ = hold; }
  /// Returns the host pointer of a device address.
  [[nodiscard]] std::byte* pointer(DeviceAddress address) const noexcept;
  /// Releases the freed blocks that were kept.
  void release_freed() noexcept;

protected:
  /// `limit_bytes` is the maximum total size of the blocks. 0: no limit but that of the system.
  explicit HostMemory(std::int64_t limit_bytes) noexcept : limit_bytes_(limit_bytes) {}
  /// Sets the value that is added to a device address to get a host pointer. The default is 0.
  void set_shift(std::ptrdiff_t shift) noexcept { shift_ = shift; }
  /// Adds address space for blocks.
  void add_region(std::uintptr_t first, std::int64_t bytes) {
    ranges_.add(static_cast<std::int64_t>(first), bytes);
  }

  /// Maps at least `bytes` bytes of address space, of any alignment, and passes them to
  /// `add_region`. Returns false if the system refuses.
  [[nodiscard]] virtual bool grow(std::int64_t bytes) = 0;
  /// Tells the system how the pages of a new block of at least 2 MiB will be used.
  virtual void advise(std::byte* pages, std::int64_t bytes, BlockUse use) noexcept = 0;
  /// Initializes the content of a new block.
  virtual void prepare(std::byte* block, std::int64_t bytes, BlockUse use) noexcept = 0;
  /// Returns whole pages to the system. Their content becomes undefined.
  virtual void discard(std::byte* pages, std::int64_t bytes) noexcept = 0;

private:
  void free(DeviceAddress address, std::int64_t bytes) noexcept final;
  void release(DeviceAddress address, std::int64_t bytes) noexcept;
  [[nodiscard]] Status out_of_memory(std::int64_t bytes) const;

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
  /// Maps `limits.reserved` bytes at once, and more only if blocks exceed them.
  /// Errors: `kResourceExhausted` if the system refuses them.
  [[nodiscard]] static Result<std::unique_ptr<MappedMemory>> create(
      const DeviceMemoryLimits& limits);
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
