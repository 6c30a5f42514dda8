// SPDX-License-Identifier: Apache-2.0
// The pages of the cache that a training job holds for its whole life.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.hpp"
#include "engines/runtime/runtime_context.hpp"

namespace tidemill::engines {

/// Pages that are set aside for one job. Its micro-batches take them one at a time, so a job never
/// waits for pages and takes none from generation.
///
/// Threads: one call at a time over the runtime, its rollout view and its jobs.
class ReservedPages {
public:
  /// Sets aside the pages of `tokens` positions, at least one. Preempts generation for them.
  /// `context` must outlive them.
  /// Errors: `kResourceExhausted` if the cache would not have enough pages left for a request or a
  /// batch that was accepted before; `kUnavailable` if other jobs hold too many pages now.
  [[nodiscard]] static Result<std::unique_ptr<ReservedPages>> create(RuntimeContext& context,
                                                                     std::int64_t tokens);
  ReservedPages(const ReservedPages&) = delete;
  ReservedPages& operator=(const ReservedPages&) = delete;
  ~ReservedPages();

  /// Returns the number of positions that the pages hold.
  [[nodiscard]] std::int64_t tokens() const noexcept;
  /// Appends `count` pages that no micro-batch uses to `pages` and makes their caller an owner.
  /// Returns false, changing nothing, if fewer are left.
  [[nodiscard]] bool take(std::int64_t count, std::vector<std::int32_t>& pages);
  /// Says that the micro-batch which took pages has released them.
  void reset() noexcept { used_ = 0; }

private:
  explicit ReservedPages(RuntimeContext& context) : context_(context) {}

  RuntimeContext& context_;
  std::vector<std::int32_t> pages_;
  std::size_t used_ = 0;  // the first ones
};

}  // namespace tidemill::engines
