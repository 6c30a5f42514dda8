// SPDX-License-Identifier: Apache-2.0
#include "actors/gateway/fair_limit.hpp"

#include <map>
#include <string>

#include <gtest/gtest.h>

#include "base/random.hpp"

namespace tidemill::test {
namespace {

using actors::FairLimit;
using actors::Tenancy;

// Takes one at a time as long as it fits. Returns how many `tenant` then holds.
std::size_t fill(FairLimit& limit, const std::string& tenant) {
  while (limit.fits(tenant, 1)) {
    limit.take(tenant, 1);
  }
  return limit.held_by(tenant);
}

TEST(FairLimitTest, OneTenantGetsAll) {
  FairLimit limit(100, Tenancy::kOne);
  EXPECT_TRUE(limit.fits("", 100));
  EXPECT_FALSE(limit.fits("", 101));
  EXPECT_EQ(fill(limit, ""), 100U);
  limit.give_back("", 30);
  EXPECT_TRUE(limit.fits("", 30));
  EXPECT_FALSE(limit.fits("", 31));
}

TEST(FairLimitTest, ATenantHoldsAtMostWhatIsFree) {
  FairLimit limit(120, Tenancy::kSeveral);
  EXPECT_EQ(fill(limit, "a"), 60U);
  EXPECT_TRUE(limit.fits("b", 60)) << "a has left room";
  EXPECT_EQ(fill(limit, "b"), 30U);
  EXPECT_EQ(fill(limit, "c"), 15U);
  EXPECT_EQ(fill(limit, "a"), 60U);
  // As responses of a end, others get their room.
  limit.give_back("a", 30);
  EXPECT_EQ(fill(limit, "a"), 38U);
  EXPECT_EQ(fill(limit, "b"), 34U);
}

TEST(FairLimitTest, AnAmountOf0AlwaysFits) {
  FairLimit limit(120, Tenancy::kSeveral);
  EXPECT_EQ(limit.max_share(), 60U);
  EXPECT_EQ(limit.left("a"), 120U) << "at once";
  limit.take("a", 100);
  EXPECT_EQ(limit.left("a"), 0U);
  EXPECT_TRUE(limit.fits("a", 0));
  EXPECT_FALSE(limit.fits("a", 1));
  EXPECT_EQ(limit.left("b"), 20U);
}

// Tenants that take and give back at random approach equal parts, and another one always has room.
TEST(FairLimitTest, GreedyTenantsGetEqualPartsAndLeaveOne) {
  FairLimit limit(1000, Tenancy::kSeveral);
  RandomStream random(73, 1);
  for (int i = 0; i < 200'000; ++i) {
    const std::string tenant(1, static_cast<char>('a' + random.below(3)));
    if (random.below(2) == 0 && limit.held_by(tenant) > 0) {
      limit.give_back(tenant, 1);
    }
    (void)fill(limit, tenant);
    ASSERT_TRUE(limit.fits("newcomer", 1)) << i;
  }
  for (const char* tenant : {"a", "b", "c"}) {
    EXPECT_NEAR(static_cast<double>(limit.held_by(tenant)), 250.0, 5.0) << tenant;
  }
}

TEST(FairLimitTest, ForgetsTenantsThatHoldNothing) {
  FairLimit limit(10, Tenancy::kSeveral);
  limit.take("a", 2);
  limit.take("b", 0);
  EXPECT_EQ(limit.held(), (std::map<std::string, std::size_t>{{"a", 2}}));
  limit.give_back("a", 2);
  EXPECT_TRUE(limit.held().empty());
  EXPECT_EQ(limit.total(), 0U);
}

}  // namespace
}  // namespace tidemill::test
