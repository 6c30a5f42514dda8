// SPDX-License-Identifier: Apache-2.0
#include "base/tensor/aligned_bytes.hpp"

#include <cstdlib>
#include <new>
#include <sys/mman.h>

namespace tidemill {
namespace {

constexpr std::size_t kCacheLine = 64;
constexpr std::size_t kSmallPage = 4096;
constexpr std::size_t kLargePage = std::size_t{2} << 20U;

std::size_t round_up(std::size_t size, std::size_t unit) {
  return (size + unit - 1) / unit * unit;
}

std::byte* map(std::size_t size) {
  void* pages = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) {
    throw std::bad_alloc();
  }
  return static_cast<std::byte*>(pages);
}

// Maps `size` bytes, a multiple of the small page size, starting on a large page. Maps more than
// that and gives back the parts before and after.
std::byte* map_large(std::size_t size) {
  std::byte* pages = map(size + kLargePage);
  const auto address = reinterpret_cast<std::uintptr_t>(pages);
  const std::size_t before = round_up(address, kLargePage) - address;
  if (before > 0) {
    (void)::munmap(pages, before);
  }
  if (before < kLargePage) {
    (void)::munmap(pages + before + size, kLargePage - before);
  }
  (void)::madvise(pages + before, size, MADV_HUGEPAGE);  // only a hint; small pages work too
  return pages + before;
}

}  // namespace

AlignedBytes::AlignedBytes(std::int64_t size, Pages pages) : size_(size) {
  const auto bytes = static_cast<std::size_t>(size);
  if (bytes < kLargePage) {
    // Not `aligned_alloc`: glibc before 2.38 frees the bytes that it trims off for alignment. Once
    // this block is freed too, the hole is too small for the next request of the same size.
    std::size_t space = bytes + kCacheLine;
    void* heap = std::malloc(space);
    if (heap == nullptr) {
      throw std::bad_alloc();
    }
    void* start = heap;
    data_ = {static_cast<std::byte*>(std::align(kCacheLine, bytes, start, space)), Release{heap}};
    return;
  }
  const std::size_t mapped = round_up(bytes, kSmallPage);
  data_ = {pages == Pages::kLarge ? map_large(mapped) : map(mapped), Release{mapped}};
}

void AlignedBytes::Release::operator()(std::byte* bytes) const noexcept {
  if (mapped > 0) {
    (void)::munmap(bytes, mapped);
  } else {
    std::free(heap);
  }
}

}  // namespace tidemill
