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

TEST(PagePoolTest, PagesThatAreSetAsideAreNotPartOfThePool) {
  PagePool pool(5);
  std::vector<std::int32_t> pages;
  EXPECT_FALSE(pool.set_aside(6, pages));
  EXPECT_EQ(pool.num_pages(), 5);
  ASSERT_TRUE(pool.set_aside(3, pages));
  EXPECT_EQ(pool.num_pages(), 2);
  EXPECT_EQ(pool.num_free(), 2);
  pool.share(pages);
  EXPECT_DEATH(pool.give_back(pages), "num_owners");
  pool.release(pages);
  EXPECT_EQ(pool.num_free(), 2) << "they belong to their owner";
  pool.give_back(pages);
  EXPECT_EQ(pool.num_pages(), 5);
  EXPECT_EQ(pool.num_free(), 5);
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
