// SPDX-License-Identifier: Apache-2.0
// The page numbers of a cache: which pages are free, and how many owners each other page has.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tidemill::engines {

/// Counts the owners of pages. A page without owners is free.
///
/// Pages may be set aside. They then belong to the pool no more, until they are given back.
///
/// Threads: one call at a time.
class PagePool {
public:
  /// Requires 0 <= `num_pages` <= 2^31 - 1.
  explicit PagePool(std::int64_t num_pages);

  /// Returns the number of pages that are not set aside.
  [[nodiscard]] std::int64_t num_pages() const noexcept {
    return static_cast<std::int64_t>(owners_.size()) - num_aside_;
  }
  [[nodiscard]] std::int64_t num_free() const noexcept {
    return static_cast<std::int64_t>(free_.size());
  }
  [[nodiscard]] std::int32_t num_owners(std::int32_t page) const {
    return owners_[static_cast<std::size_t>(page)];
  }

  /// Appends `count` free pages to `pages` and gives each one owner. Returns false and changes
  /// nothing if fewer pages are free.
  [[nodiscard]] bool allocate(std::int64_t count, std::vector<std::int32_t>& pages);
  /// Adds an owner to each of `pages`. None of them may be free.
  void share(std::span<const std::int32_t> pages);
  /// Removes an owner from each of `pages`. A page that loses its last owner becomes free.
  void release(std::span<const std::int32_t> pages);

  /// Does the same as `allocate`, and takes the pages out of the pool. Like other pages, they may
  /// have further owners.
  [[nodiscard]] bool set_aside(std::int64_t count, std::vector<std::int32_t>& pages);
  /// Puts pages that were set aside back and releases them. They may have no other owner.
  void give_back(std::span<const std::int32_t> pages);

private:
  std::vector<std::int32_t> free_;    // allocated from the back
  std::vector<std::int32_t> owners_;  // number per page
  std::int64_t num_aside_ = 0;
};

}  // namespace tidemill::engines
