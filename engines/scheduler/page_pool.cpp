// SPDX-License-Identifier: Apache-2.0
#include "engines/scheduler/page_pool.hpp"

#include <limits>

#include "base/check.hpp"

namespace tidemill::engines {

PagePool::PagePool(std::int64_t num_pages) {
  TIDEMILL_CHECK(num_pages >= 0 && num_pages <= std::numeric_limits<std::int32_t>::max())
      << num_pages;
  owners_.resize(static_cast<std::size_t>(num_pages));
  free_.reserve(owners_.size());
  for (std::int64_t page = num_pages; page > 0; --page) {
    free_.push_back(static_cast<std::int32_t>(page - 1));
  }
}

bool PagePool::allocate(std::int64_t count, std::vector<std::int32_t>& pages) {
  if (count > num_free()) {
    return false;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t page = free_.back();
    free_.pop_back();
    owners_[static_cast<std::size_t>(page)] = 1;
    pages.push_back(page);
  }
  return true;
}

void PagePool::share(std::span<const std::int32_t> pages) {
  for (const std::int32_t page : pages) {
    TIDEMILL_CHECK(owners_[static_cast<std::size_t>(page)] > 0) << page;
    ++owners_[static_cast<std::size_t>(page)];
  }
}

void PagePool::release(std::span<const std::int32_t> pages) {
  for (const std::int32_t page : pages) {
    std::int32_t& owners = owners_[static_cast<std::size_t>(page)];
    TIDEMILL_CHECK(owners > 0) << page;
    if (--owners == 0) {
      free_.push_back(page);
    }
  }
}

bool PagePool::set_aside(std::int64_t count, std::vector<std::int32_t>& pages) {
  if (!allocate(count, pages)) {
    return false;
  }
  num_aside_ += count;
  return true;
}

void PagePool::give_back(std::span<const std::int32_t> pages) {
  for (const std::int32_t page : pages) {
    TIDEMILL_CHECK(num_owners(page) == 1) << page;
  }
  num_aside_ -= std::ssize(pages);
  release(pages);
}

}  // namespace tidemill::engines
