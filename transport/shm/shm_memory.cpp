// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/shm_memory.hpp"

#include <cerrno>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <utility>

#include "base/check.hpp"
#include "base/files/file.hpp"

namespace tidemill::transport::shm {
namespace {

constexpr int kRequiredSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

constexpr std::size_t memory_bytes(std::size_t ring_bytes) {
  return kControlBytes + 2 * ring_bytes;
}

Status memory_error(std::string_view action) {
  return system_error(errno, action, "shared memory");
}

// Allocates all pages of the memory that have none.
Status allocate(int descriptor, std::size_t ring_bytes) {
  int result = 0;
  do {
    result = ::fallocate(descriptor, 0, 0, static_cast<off_t>(memory_bytes(ring_bytes)));
  } while (result != 0 && errno == EINTR);
  return result == 0 ? Status() : memory_error("allocate");
}

}  // namespace

SharedMemory::SharedMemory(UniqueFd descriptor, std::byte* mapping, std::size_t ring_bytes) noexcept
    : descriptor_(std::move(descriptor)), mapping_(mapping), ring_bytes_(ring_bytes) {}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : descriptor_(std::move(other.descriptor_)),
      mapping_(std::exchange(other.mapping_, nullptr)),
      ring_bytes_(other.ring_bytes_) {}

SharedMemory::~SharedMemory() {
  if (mapping_ != nullptr) {
    ::munmap(mapping_, memory_bytes(ring_bytes_));
  }
}

Result<SharedMemory> SharedMemory::map(UniqueFd descriptor, std::size_t ring_bytes) {
  void* mapping = ::mmap(nullptr, memory_bytes(ring_bytes), PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_POPULATE, descriptor.get(), 0);
  if (mapping == MAP_FAILED) {
    return memory_error("map");
  }
  return SharedMemory(std::move(descriptor), static_cast<std::byte*>(mapping), ring_bytes);
}

Result<SharedMemory> SharedMemory::create(std::size_t ring_bytes) {
  TIDEMILL_CHECK(is_ring_size(ring_bytes)) << ring_bytes;
  UniqueFd descriptor(::memfd_create("tidemill-connection", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!descriptor.is_open()) {
    return memory_error("create");
  }
  if (::ftruncate(descriptor.get(), static_cast<off_t>(memory_bytes(ring_bytes))) != 0) {
    return memory_error("size");
  }
  TIDEMILL_RETURN_IF_ERROR(allocate(descriptor.get(), ring_bytes));
  if (::fcntl(descriptor.get(), F_ADD_SEALS, kRequiredSeals) != 0) {
    return memory_error("seal");
  }
  return map(std::move(descriptor), ring_bytes);
}

Result<SharedMemory> SharedMemory::open(UniqueFd descriptor, std::uint64_t ring_bytes) {
  if (!is_ring_size(ring_bytes)) {
    return corrupt_data("shared memory: bad size of a ring");
  }
  const auto size = static_cast<std::size_t>(ring_bytes);
  // Access to pages of a huge-page file can fail even inside its size, so only tmpfs is accepted.
  struct statfs system {};
  if (::fstatfs(descriptor.get(), &system) != 0 || system.f_type != TMPFS_MAGIC) {
    return corrupt_data("shared memory: the descriptor is not one of memory");
  }
  const int seals = ::fcntl(descriptor.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kRequiredSeals) != kRequiredSeals) {
    return corrupt_data("shared memory: its size is not sealed");
  }
  struct stat info {};
  if (::fstat(descriptor.get(), &info) != 0 ||
      info.st_size != static_cast<off_t>(memory_bytes(size))) {
    return corrupt_data("shared memory: its size does not match its rings");
  }
  TIDEMILL_RETURN_IF_ERROR(allocate(descriptor.get(), size));
  return map(std::move(descriptor), size);
}

Control& SharedMemory::control() const noexcept {
  return *reinterpret_cast<Control*>(mapping_);
}

std::span<std::byte> SharedMemory::ring(Role writer) const noexcept {
  return {mapping_ + kControlBytes + static_cast<std::size_t>(writer) * ring_bytes_, ring_bytes_};
}

}  // namespace tidemill::transport::shm
