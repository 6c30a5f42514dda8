// SPDX-License-Identifier: Apache-2.0
// Tests the key/value cache: limits, owners of pages, and rejected options.
#include "engines/transformer/kv_cache.hpp"

#include <algorithm>
#include <cstddef>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "tests/engines/ops/device_values.hpp"
#include "tests/engines/transformer/backends.hpp"
#include "tests/engines/transformer/random_model.hpp"

namespace tidemill::engines {
namespace {

class KvCacheTest : public ::testing::Test {
protected:
  // Returns a cache with `pages` pages. Its limit has a few more bytes, not enough for another
  // page.
  [[nodiscard]] std::unique_ptr<KvCache> cache_of(std::int64_t pages) const {
    KvCacheOptions options;
    options.byte_limit = pages * page_bytes() + 5;
    return KvCache::create(config_, options, *ops_).value();
  }
  [[nodiscard]] std::int64_t page_bytes() const {
    return config_.num_layers * ops_->kv_page_bytes(attention_shape(config_, 0, {}));
  }

  std::shared_ptr<Ops> ops_ = backends()[0].make();
  ModelConfig config_ = small_config({});
};

TEST_F(KvCacheTest, HasAsManyPagesAsFitInTheLimit) {
  const auto cache = cache_of(4);
  EXPECT_EQ(cache->num_pages(), 4);
  EXPECT_EQ(cache->size_bytes(), 4 * page_bytes());
  EXPECT_EQ(cache->pages_for(0), 0);
  EXPECT_EQ(cache->pages_for(16), 1);
  EXPECT_EQ(cache->pages_for(17), 2);
}

TEST_F(KvCacheTest, RejectsALimitBelowOnePage) {
  KvCacheOptions options;
  options.byte_limit = page_bytes() - 1;
  const auto cache = KvCache::create(config_, options, *ops_);
  EXPECT_EQ(cache.status().code(), Errc::kResourceExhausted);
  EXPECT_EQ(cache.status().message(), "a key/value cache of " + std::to_string(page_bytes() - 1) +
                                          " bytes is too small: one page of 16 tokens takes " +
                                          std::to_string(page_bytes()));
}

TEST_F(KvCacheTest, AllocatesAllOrNothing) {
  const auto cache = cache_of(4);
  std::vector<std::int32_t> pages;
  ASSERT_TRUE(cache->allocate(3, pages));
  EXPECT_FALSE(cache->allocate(2, pages));
  EXPECT_EQ(pages.size(), 3U);
  EXPECT_EQ(cache->num_free_pages(), 1);
  EXPECT_EQ(std::set(pages.begin(), pages.end()).size(), 3U);
  cache->release(pages);
  EXPECT_EQ(cache->num_free_pages(), 4);
}

TEST_F(KvCacheTest, FreesAPageWithItsLastOwner) {
  const auto cache = cache_of(2);
  std::vector<std::int32_t> pages;
  ASSERT_TRUE(cache->allocate(1, pages));
  cache->share(pages);
  cache->release(pages);
  EXPECT_EQ(cache->num_free_pages(), 1);
  cache->release(pages);
  EXPECT_EQ(cache->num_free_pages(), 2);
  EXPECT_DEATH(cache->release(pages), "owners > 0");
}

TEST_F(KvCacheTest, CopiesAPageInEveryLayer) {
  const auto cache = cache_of(3);
  const std::int64_t layer_floats = page_bytes() / config_.num_layers / 4;
  const auto pages_of = [&](std::int64_t layer) {
    return Matrix{cache->layer(layer).data, 3, layer_floats, layer_floats};
  };
  for (std::int64_t layer = 0; layer < config_.num_layers; ++layer) {
    ops_->fill(0.0F, pages_of(layer));
    ops_->fill(static_cast<float>(layer + 1), pages_of(layer).slice_rows(1, 1));
  }
  cache->copy_page(1, 2);
  cache->copy_page(1, 1);
  for (std::int64_t layer = 0; layer < config_.num_layers; ++layer) {
    const std::vector<float> values = read_values(*ops_, pages_of(layer));
    const auto first_copied = values.begin() + layer_floats;
    EXPECT_EQ(std::count(values.begin(), first_copied, 0.0F), layer_floats);
    EXPECT_EQ(std::count(first_copied, values.end(), static_cast<float>(layer + 1)),
              2 * layer_floats);
  }
}

}  // namespace
}  // namespace tidemill::engines
