// SPDX-License-Identifier: Apache-2.0
#include "engines/transformer/kv_cache.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "base/check.hpp"

namespace tidemill::engines {

AttentionShape attention_shape(const ModelConfig& config, std::int64_t layer,
                               const KvCacheOptions& options) {
  AttentionShape shape;
  shape.num_heads = config.num_heads;
  shape.num_kv_heads = config.num_kv_heads;
  shape.head_dim = config.head_dim;
  shape.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_dim)));
  shape.window = config.sliding_windows[static_cast<std::size_t>(layer)];
  shape.page_tokens = options.page_tokens;
  shape.kv_dtype = options.dtype;
  return shape;
}

Result<std::unique_ptr<KvCache>> KvCache::create(const ModelConfig& config,
                                                 const KvCacheOptions& options, Ops& ops) {
  TIDEMILL_CHECK(options.page_tokens > 0 && options.byte_limit >= 0);
  const std::int64_t page_bytes = ops.kv_page_bytes(attention_shape(config, 0, options));
  const std::int64_t all_layers_bytes = page_bytes * config.num_layers;
  const std::int64_t num_pages = std::min<std::int64_t>(options.byte_limit / all_layers_bytes,
                                                        std::numeric_limits<std::int32_t>::max());
  if (num_pages == 0) {
    return Status(Errc::kResourceExhausted,
                  "a key/value cache of " + std::to_string(options.byte_limit) +
                      " bytes is too small: one page of " + std::to_string(options.page_tokens) +
                      " tokens takes " + std::to_string(all_layers_bytes));
  }
  std::unique_ptr<KvCache> cache(new KvCache(ops));
  cache->options_ = options;
  cache->num_pages_ = num_pages;
  cache->num_layers_ = config.num_layers;
  cache->layer_bytes_ = num_pages * page_bytes;
  TIDEMILL_ASSIGN_OR_RETURN(
      cache->data_,
      ops.memory().allocate(cache->num_layers_ * cache->layer_bytes_, BlockUse::kSparse));
  cache->pool_ = PagePool(num_pages);  // its records take memory at once
  return cache;
}

void KvCache::copy_page(std::int32_t from, std::int32_t to) {
  TIDEMILL_CHECK(from >= 0 && from < num_pages() && to >= 0 && to < num_pages())
      << from << " " << to;
  if (from == to) {
    return;
  }
  const std::int64_t page_bytes = layer_bytes_ / num_pages();
  for (std::int64_t index = 0; index < num_layers_; ++index) {
    ops_.copy_page(layer(index), page_bytes, from, to);
  }
}

KvLayer KvCache::layer(std::int64_t index) const {
  TIDEMILL_CHECK(index >= 0 && index < num_layers_) << index;
  return {data_.address().offset(index * layer_bytes_)};
}

std::int64_t KvCache::size_bytes() const noexcept {
  return num_layers_ * layer_bytes_;
}

}  // namespace tidemill::engines
