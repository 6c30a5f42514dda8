// SPDX-License-Identifier: Apache-2.0
// The pool of pages that hold cached keys and values of all layers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "base/tensor/dtype.hpp"
#include "engines/formats/model_config.hpp"
#include "engines/ops/ops.hpp"
#include "engines/scheduler/page_pool.hpp"

namespace tidemill::engines {

/// Options of a cache.
struct KvCacheOptions {
  std::int64_t byte_limit = 0;  // for all pages of all layers
  std::int64_t page_tokens = 16;
  DType dtype = DType::kF32;  // kF32 or kBF16: the type that keys and values are stored in
};

/// Returns the constants of attention in decoder layer `layer` over a cache with `options`.
[[nodiscard]] AttentionShape attention_shape(const ModelConfig& config, std::int64_t layer,
                                             const KvCacheOptions& options);

/// Holds pages of `page_tokens` positions. A page number denotes one page in every layer.
///
/// A sequence owns its page table: position p is stored in pages[p / page_tokens]. Sequences with a
/// common prefix may share their first pages. They share only full pages, since a page that is not
/// full is written by one sequence; another sequence may copy its content. Which pages a sequence
/// gets never changes a bit of its results. The cache reserves its memory on creation and touches
/// it when pages are first used.
/// Threads: one call at a time.
class KvCache {
public:
  /// Creates a cache with as many pages as fit in the byte limit.
  /// `ops` must outlive the cache.
  /// Errors: `kResourceExhausted` if not even one page fits, naming both sizes; those of
  /// `DeviceMemory::allocate`.
  [[nodiscard]] static Result<std::unique_ptr<KvCache>> create(const ModelConfig& config,
                                                               const KvCacheOptions& options,
                                                               Ops& ops);
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;
  ~KvCache() = default;

  [[nodiscard]] const KvCacheOptions& options() const noexcept { return options_; }
  [[nodiscard]] std::int64_t num_pages() const noexcept { return num_pages_; }
  /// Returns the number of pages that no owner has set aside (`PagePool::set_aside`).
  [[nodiscard]] std::int64_t num_shared_pages() const noexcept { return pool_.num_pages(); }
  [[nodiscard]] std::int64_t num_free_pages() const noexcept { return pool_.num_free(); }
  /// Returns the record of page ownership. The scheduler of generation uses it without the cache.
  [[nodiscard]] PagePool& pool() noexcept { return pool_; }
  /// Returns the number of pages that `tokens` positions need.
  [[nodiscard]] std::int64_t pages_for(std::int64_t tokens) const noexcept {
    return (tokens + options_.page_tokens - 1) / options_.page_tokens;
  }

  /// Appends `count` free pages to `pages`. Returns false, changing nothing, if fewer are free.
  [[nodiscard]] bool allocate(std::int64_t count, std::vector<std::int32_t>& pages) {
    return pool_.allocate(count, pages);
  }
  /// Adds an owner to each of `pages`.
  void share(std::span<const std::int32_t> pages) { pool_.share(pages); }
  /// Removes an owner from each of `pages`. A page without owners becomes free.
  void release(std::span<const std::int32_t> pages) { pool_.release(pages); }
  /// Copies the content of page `from` to page `to` in every layer.
  void copy_page(std::int32_t from, std::int32_t to);

  /// Returns the memory of one layer.
  [[nodiscard]] KvLayer layer(std::int64_t index) const;
  [[nodiscard]] std::int64_t size_bytes() const noexcept;

private:
  explicit KvCache(Ops& ops) : ops_(ops) {}

  Ops& ops_;
  KvCacheOptions options_;
  std::int64_t num_pages_ = 0;
  PagePool pool_{0};
  std::int64_t num_layers_ = 0;
  std::int64_t layer_bytes_ = 0;
  DeviceBlock data_;
};

}  // namespace tidemill::engines
