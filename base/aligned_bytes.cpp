// SPDX-License-Identifier: Apache-2.0
#include "base/aligned_bytes.hpp"

#include <new>
#include <sys/mman.h>

namespace tidemill {
namespace {

constexpr std::int64_t kCacheLine = 64;
constexpr std::int64_t kLargePage = std::int64_t{2} << 20U;

}  // namespace

AlignedBytes::AlignedBytes(std::int64_t size) : size_(size) {
  const std::int64_t alignment = size >= kLargePage ? kLargePage : kCacheLine;
  const auto rounded = static_cast<std::size_t>((size + kCacheLine - 1) / kCacheLine * kCacheLine);
  data_.reset(
      static_cast<std::byte*>(std::aligned_alloc(static_cast<std::size_t>(alignment), rounded)));
  if (data_ == nullptr) {
    throw std::bad_alloc();  // as `new` would
  }
  if (size >= kLargePage) {
    (void)madvise(data_.get(), rounded, MADV_HUGEPAGE);  // a wish; small pages serve as well
  }
}

}  // namespace tidemill
