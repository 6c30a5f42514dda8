// SPDX-License-Identifier: Apache-2.0
#include "engines/ops/guarded/guarded_memory.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <sys/mman.h>
#include <system_error>
#include <unistd.h>

#include "base/check.hpp"

namespace tidemill::engines::host {
namespace {

// How much of a new block is filled. The largest blocks hold the memory of passes, which use it
// from the start.
constexpr std::int64_t kMaxFilled = std::int64_t{16} << 20U;

Status refused(std::int64_t bytes) {
  return {Errc::kResourceExhausted, "guarded memory of " + std::to_string(bytes) +
                                        " bytes: " + std::generic_category().message(errno)};
}

}  // namespace

Result<std::unique_ptr<GuardedMemory>> GuardedMemory::create(std::int64_t limit_bytes) {
  TIDEMILL_CHECK(limit_bytes > 0) << limit_bytes;
  std::unique_ptr<GuardedMemory> memory(new GuardedMemory(limit_bytes));
  // More than the limit, because blocks are aligned and freed blocks may stay for a while.
  memory->size_bytes_ = limit_bytes + limit_bytes / 8 + (std::int64_t{32} << 20U);
  const auto size = static_cast<std::size_t>(memory->size_bytes_);
  memory->file_ = UniqueFd(memfd_create("tidemill-guarded", MFD_CLOEXEC));
  if (memory->file_.get() < 0 || ftruncate(memory->file_.get(), memory->size_bytes_) != 0) {
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
  memory->add_region(reinterpret_cast<std::uintptr_t>(device), memory->size_bytes_);
  return memory;
}

GuardedMemory::~GuardedMemory() {
  for (std::byte* mapping : {host_, device_}) {
    if (mapping != nullptr) {
      munmap(mapping, static_cast<std::size_t>(size_bytes_));
    }
  }
}

void GuardedMemory::prepare(std::byte* block, std::int64_t bytes, BlockUse use) noexcept {
  if (use == BlockUse::kWhole) {
    std::memset(block, 0xFF, static_cast<std::size_t>(std::min(bytes, kMaxFilled)));
  }
}

void GuardedMemory::discard(std::byte* pages, std::int64_t bytes) noexcept {
  (void)::madvise(pages, static_cast<std::size_t>(bytes), MADV_REMOVE);
}

}  // namespace tidemill::engines::host
