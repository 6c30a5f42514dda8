// SPDX-License-Identifier: Apache-2.0
#include "base/random.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

namespace tidemill {
namespace {

// Known answers of Philox-4x32-10 from Random123's kat_vectors, with counter and key all zeros and
// all ones. The 64 bits are the first two words of the output.
TEST(KeyedBits, MatchesPublishedVectors) {
  constexpr std::uint64_t kOnes = ~std::uint64_t{0};
  EXPECT_EQ(keyed_bits(0, 0, 0), 0xE169C58D6627E8D5ULL);
  EXPECT_EQ(keyed_bits(kOnes, kOnes, kOnes), 0x41C83B0E408F276DULL);
}

TEST(KeyedUniform, StaysInTheHalfOpenUnitIntervalWithTheRightMean) {
  double sum = 0.0;
  for (std::uint64_t i = 0; i < 10000; ++i) {
    const double draw = keyed_uniform(7, 3, i);
    ASSERT_GE(draw, 0.0);
    ASSERT_LT(draw, 1.0);
    sum += draw;
  }
  EXPECT_NEAR(sum / 10000.0, 0.5, 0.015);  // five standard errors
}

TEST(RandomStream, ContinuesFromItsCounter) {
  RandomStream first(11, 2);
  for (int i = 0; i < 5; ++i) {
    first.bits();
  }
  RandomStream second(11, 2, first.counter());
  EXPECT_EQ(first.bits(), second.bits());
}

TEST(RandomStream, BelowIsUniform) {
  RandomStream random(1);
  std::vector<int> counts(6, 0);
  for (int i = 0; i < 6000; ++i) {
    ++counts[random.below(6)];
  }
  for (const int count : counts) {
    EXPECT_NEAR(count, 1000, 150);
  }
}

// The bound does not divide 2^64: without rejection, the lowest third would be drawn half of the
// time.
TEST(RandomStream, BelowIsUniformForBoundsNearTheWholeRange) {
  constexpr std::uint64_t kThird = std::uint64_t{1} << 62U;
  RandomStream random(3);
  int lowest = 0;
  for (int i = 0; i < 3000; ++i) {
    const std::uint64_t draw = random.below(3 * kThird);
    ASSERT_LT(draw, 3 * kThird);
    lowest += draw < kThird ? 1 : 0;
  }
  EXPECT_NEAR(lowest, 1000, 130);  // five standard deviations
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(random.below(1), 0U);
  }
}

// Both ends of a shuffle move: each element reaches each place.
TEST(Shuffle, EveryOrderOfThreeElementsIsEquallyLikely) {
  RandomStream random(4);
  std::map<std::vector<int>, int> counts;
  for (int i = 0; i < 6000; ++i) {
    std::vector<int> values = {0, 1, 2};
    shuffle(std::span<int>(values), random);
    ++counts[values];
  }
  EXPECT_EQ(counts.size(), 6U);
  for (const auto& [order, count] : counts) {
    EXPECT_NEAR(count, 1000, 145);  // five standard deviations
  }
}

TEST(Shuffle, KeepsEveryElementAndReplaysFromItsSeed) {
  std::vector<int> a(100);
  std::iota(a.begin(), a.end(), 0);
  std::vector<int> b = a;
  const std::vector<int> sorted = a;
  RandomStream first(5);
  RandomStream second(5);
  shuffle(std::span<int>(a), first);
  shuffle(std::span<int>(b), second);
  EXPECT_EQ(a, b);
  EXPECT_NE(a, sorted);
  std::sort(a.begin(), a.end());
  EXPECT_EQ(a, sorted);
}

}  // namespace
}  // namespace tidemill
