// SPDX-License-Identifier: Apache-2.0
// Divides address space into ranges, without touching the memory behind it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace tidemill::engines::host {

/// Gives out ranges of numbers and takes them back.
///
/// A request takes the smallest free range that holds it, and of equal ones the lowest, so that
/// large ranges stay whole. A range that is given back is joined with its free neighbors.
/// Threads: one call at a time.
class RangeAllocator {
public:
  /// Adds the free range [first, first + size). It must not overlap with others.
  void add(std::int64_t first, std::int64_t size) { give_back(first, size); }
  /// Returns the first number of a range of `size` numbers that starts at a multiple of
  /// `alignment`, or nothing if no free range holds one. Requires both to be positive.
  [[nodiscard]] std::optional<std::int64_t> take(std::int64_t size, std::int64_t alignment);
  /// Gives back a range that was taken.
  void give_back(std::int64_t first, std::int64_t size);

  [[nodiscard]] std::int64_t num_free() const noexcept { return num_free_; }
  /// Returns the size of the largest free range, or 0.
  [[nodiscard]] std::int64_t largest() const noexcept {
    return by_size_.empty() ? 0 : by_size_.rbegin()->first;
  }

private:
  void insert(std::int64_t first, std::int64_t size);
  void erase(std::map<std::int64_t, std::int64_t>::iterator range);

  std::map<std::int64_t, std::int64_t> by_first_;            // sizes of the free ranges
  std::set<std::pair<std::int64_t, std::int64_t>> by_size_;  // (size, first) of the same
  std::int64_t num_free_ = 0;
};

}  // namespace tidemill::engines::host
