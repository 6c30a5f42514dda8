// SPDX-License-Identifier: Apache-2.0
#include "engines/ops/host/host_memory.hpp"

#include <algorithm>
#include <memory>
#include <string>
#include <sys/mman.h>
#include <utility>

#include "base/check.hpp"
#include "engines/ops/host/device_access.hpp"

namespace tidemill::engines::host {
namespace {

constexpr std::int64_t kLine = 64;
constexpr std::int64_t kSmallPage = 4096;
constexpr std::int64_t kLargePage = std::int64_t{2} << 20U;
// Blocks that do not fit in what is reserved share regions of at least this size.
constexpr std::int64_t kMinRegion = 2 * kLargePage;

std::int64_t rounded_up(std::int64_t size, std::int64_t unit) {
  return (size + unit - 1) / unit * unit;
}

// Returns the part of the address space that a block takes. Small blocks are followed by a line
// that belongs to none of them.
std::int64_t range_bytes(std::int64_t bytes) {
  return bytes >= kLargePage ? rounded_up(bytes, kSmallPage) : rounded_up(bytes, kLine) + kLine;
}

std::int64_t alignment_of(std::int64_t bytes, BlockUse use) {
  if (bytes < kLargePage) {
    return kLine;
  }
  return use == BlockUse::kWhole ? kLargePage : kSmallPage;
}

struct Pages {
  std::byte* first;
  std::int64_t bytes;
};

// Returns the pages that belong to a block of at least 2 MiB alone.
Pages whole_pages(std::byte* block, std::int64_t bytes) {
  const auto begin = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(block));
  const std::int64_t first = rounded_up(begin, kSmallPage);
  const std::int64_t end = (begin + range_bytes(bytes)) / kSmallPage * kSmallPage;
  return {block + (first - begin), end - first};
}

}  // namespace

Result<DeviceBlock> HostMemory::allocate(std::int64_t bytes, BlockUse use) {
  TIDEMILL_CHECK(bytes >= 0) << bytes;
  if (bytes == 0) {
    return DeviceBlock();
  }
  if (limit_bytes_ > 0 && bytes > limit_bytes_ - used_bytes()) {
    return out_of_memory(bytes);
  }
  const std::int64_t size = range_bytes(bytes);
  const std::int64_t alignment = alignment_of(bytes, use);
  auto first = ranges_.allocate(size, alignment);
  if (!first.has_value() && grow(size + (alignment > kSmallPage ? alignment : 0))) {
    first = ranges_.allocate(size, alignment);
  }
  if (!first.has_value()) {
    first = ranges_.allocate(size, kLine);  // it also works where it is less well aligned
  }
  if (!first.has_value()) {
    return out_of_memory(bytes);
  }
  const DeviceAddress address = DeviceAccess::from_number(static_cast<std::uintptr_t>(*first));
  std::byte* const block = pointer(address);
  if (bytes >= kLargePage) {
    const auto [pages, page_bytes] = whole_pages(block, bytes);
    advise(pages, page_bytes, use);
  }
  prepare(block, bytes, use);
  return make_block(address, bytes);
}

Status HostMemory::out_of_memory(std::int64_t bytes) const {
  return {Errc::kResourceExhausted,
          "device memory: " + std::to_string(bytes) + " bytes do not fit beside " +
              std::to_string(used_bytes()) +
              (limit_bytes_ > 0 ? " of " + std::to_string(limit_bytes_) : "")};
}

std::byte* HostMemory::pointer(DeviceAddress address) const noexcept {
  if (address.is_null()) {
    return nullptr;
  }
  const auto shifted = DeviceAccess::to_number(address) + static_cast<std::uintptr_t>(shift_);
  // Device addresses are numbers until here.
  return reinterpret_cast<std::byte*>(shifted);  // NOLINT(performance-no-int-to-ptr)
}

void HostMemory::free(DeviceAddress address, std::int64_t bytes) noexcept {
  if (holds_) {
    freed_.emplace_back(address, bytes);
  } else {
    release(address, bytes);
  }
}

void HostMemory::release_freed() noexcept {
  for (const auto& [address, bytes] : std::exchange(freed_, {})) {
    release(address, bytes);
  }
}

void HostMemory::release(DeviceAddress address, std::int64_t bytes) noexcept {
  if (bytes >= kLargePage) {
    const auto [pages, size] = whole_pages(pointer(address), bytes);
    discard(pages, size);
  }
  ranges_.free(static_cast<std::int64_t>(DeviceAccess::to_number(address)), range_bytes(bytes));
}

Result<std::unique_ptr<MappedMemory>> MappedMemory::create(const DeviceMemoryLimits& limits) {
  std::unique_ptr<MappedMemory> memory(new MappedMemory(limits.limit));
  if (limits.reserved > 0 && !memory->grow(limits.reserved)) {
    return Status(Errc::kResourceExhausted, "device memory: the system refuses to reserve " +
                                                std::to_string(limits.reserved) + " bytes");
  }
  return memory;
}

MappedMemory::~MappedMemory() {
  for (const auto& [region, bytes] : regions_) {
    (void)::munmap(region, bytes);
  }
}

bool MappedMemory::grow(std::int64_t bytes) {
  const auto size = static_cast<std::size_t>(rounded_up(std::max(bytes, kMinRegion), kSmallPage));
  void* region = ::mmap(nullptr, size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (region == MAP_FAILED) {
    return false;
  }
  (void)::madvise(region, size, MADV_NOHUGEPAGE);  // until a block asks for large pages
  regions_.emplace_back(region, size);
  add_region(reinterpret_cast<std::uintptr_t>(region), static_cast<std::int64_t>(size));
  return true;
}

// Only a hint: pages of both sizes work.
void MappedMemory::advise(std::byte* pages, std::int64_t bytes, BlockUse use) noexcept {
  (void)::madvise(pages, static_cast<std::size_t>(bytes),
                  use == BlockUse::kWhole ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
}

void MappedMemory::discard(std::byte* pages, std::int64_t bytes) noexcept {
  (void)::madvise(pages, static_cast<std::size_t>(bytes), MADV_DONTNEED);
  (void)::madvise(pages, static_cast<std::size_t>(bytes), MADV_NOHUGEPAGE);
}

}  // namespace tidemill::engines::host
