// SPDX-License-Identifier: Apache-2.0
#include "transport/segments/segment_memory.hpp"

#include <bit>
#include <cerrno>
#include <fcntl.h>
#include <limits>
#include <string>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <system_error>
#include <utility>

#include "base/check.hpp"
#include "transport/segments/segment_pool.hpp"

namespace tidemill::transport {
namespace {

constexpr std::uint64_t kLoanPageBytes = 4096;
static_assert(kMaxSegmentReaders * sizeof(std::uint64_t) <= kLoanPageBytes);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(sizeof(std::atomic<std::uint64_t>) == sizeof(std::uint64_t));

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

Status no_memory(std::uint64_t capacity, std::string_view action, int error) {
  return {Errc::kResourceExhausted, "segment of " + std::to_string(capacity) + " bytes: cannot " +
                                        std::string(action) + ": " +
                                        std::generic_category().message(error)};
}

std::atomic<std::uint64_t>& word_at(std::byte* data, std::uint64_t capacity, std::size_t index) {
  TIDEMILL_DCHECK(index < kMaxSegmentReaders) << index;
  return reinterpret_cast<std::atomic<std::uint64_t>*>(data + capacity)[index];
}

}  // namespace

Result<SegmentMemory> SegmentMemory::make(std::uint64_t capacity) {
  // A file beyond RLIMIT_FSIZE raises SIGXFSZ, which kills the process.
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || capacity > limit.rlim_cur ||
      kLoanPageBytes > limit.rlim_cur - capacity ||
      capacity > std::numeric_limits<std::int64_t>::max() - kLoanPageBytes) {
    return no_memory(capacity, "allocate it", EFBIG);
  }
  const std::uint64_t size = capacity + kLoanPageBytes;
  UniqueFd descriptor(::memfd_create("tidemill_segment", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!descriptor.is_open()) {
    return no_memory(capacity, "create it", errno);
  }
  int allocated = 0;
  do {
    allocated = ::fallocate(descriptor.get(), 0, 0, static_cast<off_t>(size));
  } while (allocated != 0 && errno == EINTR);
  if (allocated != 0) {
    return no_memory(capacity, "allocate it", errno);
  }
  void* data =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor.get(), 0);
  if (data == MAP_FAILED) {
    return no_memory(capacity, "map it", errno);
  }
  SegmentMemory memory(std::move(descriptor), static_cast<std::byte*>(data), capacity);
  // Seals come after the only mapping that may write.
  if (::fcntl(memory.descriptor(), F_ADD_SEALS, kSeals) != 0) {
    return no_memory(capacity, "seal it", errno);
  }
  return memory;
}

Result<SegmentMemory> SegmentMemory::map(UniqueFd descriptor, std::uint64_t capacity) {
  if (capacity % kLoanPageBytes != 0) {  // the words of the loans would not be aligned
    return corrupt_data("segment of " + std::to_string(capacity) + " bytes: not whole pages");
  }
  struct stat found {};
  if (::fstat(descriptor.get(), &found) != 0 || !S_ISREG(found.st_mode) ||
      capacity > std::numeric_limits<std::int64_t>::max() - kLoanPageBytes ||
      static_cast<std::uint64_t>(found.st_size) != capacity + kLoanPageBytes) {
    return corrupt_data("segment of " + std::to_string(capacity) +
                        " bytes: the descriptor has another size (" +
                        std::to_string(found.st_size) + " bytes)");
  }
  const int seals = ::fcntl(descriptor.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) {
    return corrupt_data("segment of " + std::to_string(capacity) +
                        " bytes: the descriptor is not sealed");
  }
  void* data =
      ::mmap(nullptr, capacity + kLoanPageBytes, PROT_READ, MAP_SHARED, descriptor.get(), 0);
  if (data == MAP_FAILED) {
    return no_memory(capacity, "map it", errno);
  }
  return SegmentMemory(UniqueFd(), static_cast<std::byte*>(data), capacity);
}

SegmentMemory::SegmentMemory(SegmentMemory&& other) noexcept
    : descriptor_(std::move(other.descriptor_)),
      data_(std::exchange(other.data_, nullptr)),
      capacity_(other.capacity_) {}

SegmentMemory::~SegmentMemory() {
  if (data_ != nullptr) {
    (void)::munmap(data_, capacity_ + kLoanPageBytes);
  }
}

std::span<std::byte> SegmentMemory::writable_bytes() const noexcept {
  TIDEMILL_CHECK(descriptor_.is_open()) << "the memory of a reader is read-only";
  return {data_, capacity_};
}

LoanWord SegmentMemory::loan_word(std::size_t index) const noexcept {
  return std::bit_cast<LoanWord>(word_at(data_, capacity_, index).load(std::memory_order_acquire));
}

void SegmentMemory::set_loan_word(std::size_t index, LoanWord word) const noexcept {
  TIDEMILL_CHECK(descriptor_.is_open()) << "the memory of a reader is read-only";
  word_at(data_, capacity_, index)
      .store(std::bit_cast<std::uint64_t>(word), std::memory_order_release);
}

}  // namespace tidemill::transport
