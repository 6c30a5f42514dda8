// SPDX-License-Identifier: Apache-2.0
#include "engines/ops/guarded/guarded_memory.hpp"

#include <cerrno>
#include <cstring>
#include <iterator>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

#include "base/check.hpp"
#include "engines/ops/host/device_access.hpp"

namespace tidemill::engines::host {
namespace {

constexpr std::int64_t kLine = 64;

// Rounds up to whole cache lines, with a line between blocks that belongs to none of them.
std::int64_t range_bytes(std::int64_t bytes) {
  return (bytes + kLine - 1) / kLine * kLine + kLine;
}

Status refused(std::int64_t bytes) {
  return {Errc::kResourceExhausted,
          "guarded memory of " + std::to_string(bytes) + " bytes: " + std::strerror(errno)};
}

}  // namespace

Result<std::unique_ptr<GuardedMemory>> GuardedMemory::create(std::int64_t limit_bytes) {
  TIDEMILL_CHECK(limit_bytes > 0) << limit_bytes;
  std::unique_ptr<GuardedMemory> memory(new GuardedMemory);
  memory->limit_bytes_ = limit_bytes;
  const auto size = static_cast<std::size_t>(limit_bytes);
  memory->file_ = UniqueFd(memfd_create("tidemill-guarded", MFD_CLOEXEC));
  if (memory->file_.get() < 0 || ftruncate(memory->file_.get(), limit_bytes) != 0) {
    return refused(limit_bytes);
  }
  void* host = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                    memory->file_.get(), 0);
  if (host == MAP_FAILED) {
    return refused(limit_bytes);
  }
  memory->host_ = static_cast<std::byte*>(host);
  void* device = mmap(nullptr, size, PROT_NONE, MAP_SHARED | MAP_NORESERVE, memory->file_.get(), 0);
  if (device == MAP_FAILED) {
    return refused(limit_bytes);
  }
  memory->device_ = static_cast<std::byte*>(device);
  memory->set_shift(memory->host_ - memory->device_);
  memory->free_.emplace(0, limit_bytes);
  return memory;
}

GuardedMemory::~GuardedMemory() {
  for (std::byte* mapping : {host_, device_}) {
    if (mapping != nullptr) {
      munmap(mapping, static_cast<std::size_t>(limit_bytes_));
    }
  }
}

Result<DeviceBlock> GuardedMemory::allocate(std::int64_t bytes, BlockUse use) {
  TIDEMILL_CHECK(bytes >= 0) << bytes;
  if (bytes == 0) {
    return DeviceBlock();
  }
  const std::int64_t needed = range_bytes(bytes);
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    if (range->second < needed) {
      continue;
    }
    const std::int64_t offset = range->first;
    if (range->second > needed) {
      free_.emplace(offset + needed, range->second - needed);
    }
    free_.erase(range);
    if (use == BlockUse::kWhole) {
      std::memset(host_ + offset, 0xFF, static_cast<std::size_t>(bytes));
    }
    return make_block(DeviceAccess::from_number(reinterpret_cast<std::uintptr_t>(device_ + offset)),
                      bytes);
  }
  return Status(Errc::kResourceExhausted,
                "guarded memory: " + std::to_string(bytes) + " bytes do not fit beside " +
                    std::to_string(used_bytes()) + " of " + std::to_string(limit_bytes_));
}

void GuardedMemory::release(DeviceAddress address, std::int64_t bytes) noexcept {
  const auto offset = static_cast<std::int64_t>(DeviceAccess::to_number(address) -
                                                reinterpret_cast<std::uintptr_t>(device_));
  auto range = free_.emplace(offset, range_bytes(bytes)).first;
  if (const auto next = std::next(range);
      next != free_.end() && range->first + range->second == next->first) {
    range->second += next->second;
    free_.erase(next);
  }
  if (range != free_.begin()) {
    const auto before = std::prev(range);
    if (before->first + before->second == range->first) {
      before->second += range->second;
      free_.erase(range);
    }
  }
}

}  // namespace tidemill::engines::host
