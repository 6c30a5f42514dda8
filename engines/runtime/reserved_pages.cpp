// SPDX-License-Identifier: Apache-2.0
#include "engines/runtime/reserved_pages.hpp"

#include <algorithm>
#include <span>
#include <string>

namespace tidemill::engines {

Result<std::unique_ptr<ReservedPages>> ReservedPages::create(RuntimeContext& context,
                                                             std::int64_t tokens) {
  KvCache& cache = *context.cache;
  // More tokens than the cache has need one page more than the cache has, however many they are.
  const std::int64_t pages =
      cache.pages_for(std::min(tokens, cache.num_pages() * cache.options().page_tokens + 1));
  const std::int64_t longest_batch =
      context.batch_needs.empty() ? 0 : *context.batch_needs.rbegin();
  const std::int64_t needed = std::max(context.largest_request(), longest_batch);
  if (pages > cache.num_shared_pages() - needed) {
    const std::int64_t page_tokens = cache.options().page_tokens;
    return Status(Errc::kResourceExhausted,
                  "reserved_tokens: " + std::to_string(tokens) +
                      " tokens cannot be reserved: the cache shares pages for " +
                      std::to_string(cache.num_shared_pages() * page_tokens) +
                      ", and accepted work needs " + std::to_string(needed * page_tokens));
  }
  if (pages > cache.num_shared_pages() - context.job_pages) {
    return Status(Errc::kUnavailable, "other jobs hold the pages of the cache");
  }
  if (pages > cache.num_free_pages()) {
    context.make_room(pages, ReclaimFrom::kRunning);
  }
  std::unique_ptr<ReservedPages> reserved(new ReservedPages(context));
  if (!cache.pool().set_aside(pages, reserved->pages_)) {
    return Status(Errc::kUnavailable, "other jobs hold the pages of the cache");
  }
  return reserved;
}

ReservedPages::~ReservedPages() {
  context_.cache->pool().give_back(pages_);
}

std::int64_t ReservedPages::tokens() const noexcept {
  return std::ssize(pages_) * context_.cache->options().page_tokens;
}

bool ReservedPages::take(std::int64_t count, std::vector<std::int32_t>& pages) {
  const auto left = std::span(pages_).subspan(used_);
  if (count > std::ssize(left)) {
    return false;
  }
  const auto taken = left.first(static_cast<std::size_t>(count));
  context_.cache->share(taken);
  pages.insert(pages.end(), taken.begin(), taken.end());
  used_ += taken.size();
  return true;
}

}  // namespace tidemill::engines
