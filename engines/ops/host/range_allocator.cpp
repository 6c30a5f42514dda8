// SPDX-License-Identifier: Apache-2.0
#include "engines/ops/host/range_allocator.hpp"

#include <iterator>

#include "base/check.hpp"

namespace tidemill::engines::host {

void RangeAllocator::insert(std::int64_t first, std::int64_t size) {
  if (size > 0) {
    by_first_.emplace(first, size);
    by_size_.emplace(size, first);
    free_size_ += size;
  }
}

void RangeAllocator::erase(std::map<std::int64_t, std::int64_t>::iterator range) {
  by_size_.erase({range->second, range->first});
  free_size_ -= range->second;
  by_first_.erase(range);
}

std::optional<std::int64_t> RangeAllocator::allocate(std::int64_t size, std::int64_t alignment) {
  TIDEMILL_CHECK(size > 0 && alignment > 0) << size << " " << alignment;
  for (auto range = by_size_.lower_bound({size, 0}); range != by_size_.end(); ++range) {
    const auto [range_size, begin] = *range;
    const std::int64_t first = (begin + alignment - 1) / alignment * alignment;
    if (first + size > begin + range_size) {
      continue;
    }
    erase(by_first_.find(begin));
    insert(begin, first - begin);
    insert(first + size, begin + range_size - first - size);
    return first;
  }
  return std::nullopt;
}

void RangeAllocator::free(std::int64_t first, std::int64_t size) {
  TIDEMILL_CHECK(size > 0) << size;
  auto next = by_first_.lower_bound(first);
  if (next != by_first_.begin()) {
    const auto before = std::prev(next);
    TIDEMILL_CHECK(before->first + before->second <= first) << first << " is free already";
    if (before->first + before->second == first) {
      first = before->first;
      size += before->second;
      erase(before);
    }
  }
  if (next != by_first_.end()) {
    TIDEMILL_CHECK(first + size <= next->first) << next->first << " is free already";
    if (first + size == next->first) {
      size += next->second;
      erase(next);
    }
  }
  insert(first, size);
}

}  // namespace tidemill::engines::host
