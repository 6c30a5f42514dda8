// SPDX-License-Identifier: Apache-2.0
// Which pages of a cache are free, and how many owners each of the others has: numbers, no memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tidemill::engines {

/// Counts the owners of pages. A page that loses its last owner is free.
///
/// Threads: one call at a time.
class PagePool {
public:
  /// Requires 0 <= `num_pages` <= 2^31 - 1.
  explicit PagePool(std::int64_t num_pages);

  [[nodiscard]] std::int64_t num_pages() const noexcept {
    return static_cast<std::int64_t>(owners_.size());
  }
  [[nodiscard]] std::int64_t num_free() const noexcept {
    return static_cast<std::int64_t>(free_.size());
  }
  [[nodiscard]] std::int32_t num_owners(std::int32_t page) const {
    return owners_[static_cast<std::size_t>(page)];
  }

  /// Appends `count` free pages, with one owner each, to `pages`. Returns false, changing nothing,
  /// when fewer are free.
  [[nodiscard]] bool allocate(std::int64_t count, std::vector<std::int32_t>& pages);
  /// Counts one more owner for each of `pages`, none of which is free.
  void share(std::span<const std::int32_t> pages);
  /// Counts one owner less for each of `pages`; the last one frees the page.
  void release(std::span<const std::int32_t> pages);

private:
  std::vector<std::int32_t> free_;    // the next to hand out at the back
  std::vector<std::int32_t> owners_;  // of each page
};

}  // namespace tidemill::engines
