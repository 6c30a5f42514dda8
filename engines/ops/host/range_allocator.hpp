// SPDX-License-Identifier: Apache-2.0
// Divides address space into ranges, without touching the memory behind it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace tidemill::engines::host {

/// Allocates and frees ranges of integers, such as addresses (best fit).
///
/// Allocation uses the smallest free range that is large enough, and the lowest of several equal
/// ones, so that large ranges stay whole. Freeing a range merges it with its free neighbors.
/// Threads: one call at a time.
class RangeAllocator {
public:
  /// Adds the range [first, first + size), which is free at first. It must not overlap any range
  /// that was added before.
  void add(std::int64_t first, std::int64_t size) { free(first, size); }
  /// Allocates `size` numbers and returns the first, a multiple of `alignment`. Returns nothing if
  /// no free range has room for them. Requires `size` > 0 and `alignment` > 0.
  [[nodiscard]] std::optional<std::int64_t> allocate(std::int64_t size, std::int64_t alignment);
  /// Frees an allocated range.
  void free(std::int64_t first, std::int64_t size);

  /// Returns the total size of the free ranges.
  [[nodiscard]] std::int64_t free_size() const noexcept { return free_size_; }
  /// Returns the size of the largest free range, or 0 if there is none.
  [[nodiscard]] std::int64_t largest() const noexcept {
    return by_size_.empty() ? 0 : by_size_.rbegin()->first;
  }

private:
  void insert(std::int64_t first, std::int64_t size);
  void erase(std::map<std::int64_t, std::int64_t>::iterator range);

  std::map<std::int64_t, std::int64_t> by_first_;            // sizes of the free ranges
  std::set<std::pair<std::int64_t, std::int64_t>> by_size_;  // (size, first) of the same
  std::int64_t free_size_ = 0;
};

}  // namespace tidemill::engines::host
