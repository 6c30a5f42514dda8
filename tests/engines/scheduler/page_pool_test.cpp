// SPDX-License-Identifier: Apache-2.0
// Tests allocation and the counting of owners.
#include "engines/scheduler/page_pool.hpp"

#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace tidemill::engines {
namespace {

TEST(PagePoolTest, AllocatesAllOrNothing) {
  PagePool pool(4);
  std::vector<std::int32_t> pages;
  ASSERT_TRUE(pool.allocate(3, pages));
  EXPECT_FALSE(pool.allocate(2, pages));
  EXPECT_EQ(pages.size(), 3U);
  EXPECT_EQ(pool.num_free(), 1);
  EXPECT_EQ(std::set(pages.begin(), pages.end()).size(), 3U);
  pool.release(pages);
  EXPECT_EQ(pool.num_free(), 4);
}

TEST(PagePoolTest, FreesAPageWithItsLastOwner) {
  PagePool pool(2);
  std::vector<std::int32_t> pages;
  ASSERT_TRUE(pool.allocate(1, pages));
  pool.share(pages);
  EXPECT_EQ(pool.num_owners(pages[0]), 2);
  pool.release(pages);
  EXPECT_EQ(pool.num_free(), 1);
  pool.release(pages);
  EXPECT_EQ(pool.num_free(), 2);
  EXPECT_DEATH(pool.release(pages), "owners > 0");
  EXPECT_DEATH(pool.share(pages), "> 0");
}

}  // namespace
}  // namespace tidemill::engines
