// SPDX-License-Identifier: Apache-2.0
#include "engines/sampling/softmax_weights.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"

namespace tidemill::engines {
namespace {

TEST(ExpNonpositive, IsWithinTwoUlpOfExp) {
  double worst = 0.0;
  for (int i = 0; i <= 870000; ++i) {
    const float x = -static_cast<float>(i) * 1e-4F;
    const double want = std::exp(static_cast<double>(x));
    const auto nearest = static_cast<float>(want);
    const double ulp = std::nextafter(nearest, 2.0F) - nearest;
    worst = std::max(worst, std::abs(static_cast<double>(exp_nonpositive(x)) - want) / ulp);
  }
  EXPECT_LE(worst, 2.0);
}

TEST(ExpNonpositive, IsExactAtTheEndsAndPropagatesNan) {
  EXPECT_EQ(exp_nonpositive(0.0F), 1.0F);
  EXPECT_EQ(exp_nonpositive(-0.0F), 1.0F);
  EXPECT_EQ(exp_nonpositive(-87.5F), 0.0F);
  EXPECT_EQ(exp_nonpositive(-std::numeric_limits<float>::infinity()), 0.0F);
  EXPECT_TRUE(std::isnan(exp_nonpositive(std::numeric_limits<float>::quiet_NaN())));
}

TEST(SoftmaxWeights, ADoubleHoldingAFloatGivesTheSameBits) {
  RandomStream random(2);
  std::vector<float> narrow(5000);
  for (float& logit : narrow) {  // magnitudes from 1e-6 to 1e6, so that the subtraction rounds
    logit = static_cast<float>(random.normal() * std::pow(10.0, 12.0 * random.uniform() - 6.0));
  }
  const std::vector<double> wide(narrow.begin(), narrow.end());
  const Largest largest = largest_of(narrow);
  EXPECT_EQ(largest.value, largest_of(wide).value);
  std::vector<float> from_narrow(narrow.size());
  std::vector<float> from_wide(narrow.size());
  for (const float temperature : {0.1F, 0.7F, 1.0F, 1e6F}) {
    softmax_weights(narrow, static_cast<float>(largest.value), temperature, from_narrow);
    softmax_weights(wide, largest.value, temperature, from_wide);
    EXPECT_EQ(from_narrow, from_wide);
  }
}

TEST(LargestOf, FindsTheLargestAtAnyPositionAndReportsNan) {
  for (const std::size_t size : {1UL, 15UL, 16UL, 17UL, 100UL}) {
    for (std::size_t at = 0; at < size; ++at) {
      std::vector<float> values(size, -1.0F);
      values[at] = 2.0F;
      EXPECT_EQ(largest_of(values).value, 2.0);
      EXPECT_FALSE(largest_of(values).has_nan);
      values[at] = std::numeric_limits<float>::quiet_NaN();
      EXPECT_TRUE(largest_of(values).has_nan);
    }
  }
}

TEST(SampleByWeight, InvertsTheCumulativeMassAcrossBlocks) {
  std::vector<float> weights(3 * kWeightBlock, 0.0F);
  weights[5] = 1.0F;
  weights[kWeightBlock + 7] = 2.0F;
  weights[2 * kWeightBlock + 9] = 1.0F;
  std::vector<double> sums(3);
  EXPECT_EQ(sum_weights(weights, sums), 4.0);
  const auto token = [&](double uniform) {
    return static_cast<std::size_t>(sample_by_weight(weights, sums, uniform));
  };
  EXPECT_EQ(token(0.0), 5U);
  EXPECT_EQ(token(0.2499), 5U);
  EXPECT_EQ(token(0.25), kWeightBlock + 7);
  EXPECT_EQ(token(0.7499), kWeightBlock + 7);
  EXPECT_EQ(token(0.75), 2 * kWeightBlock + 9);
  EXPECT_EQ(token(std::nextafter(1.0, 0.0)), 2 * kWeightBlock + 9);
}

// A number at the end of a token's mass chooses the next token, and tokens without mass are never
// chosen.
TEST(SampleByWeight, ANumberBetweenTwoTokensChoosesTheSecond) {
  const std::vector<float> weights = {0.0F, 1.0F, 0.0F, 1.0F, 2.0F, 0.0F};
  std::vector<double> sums(1);
  ASSERT_EQ(sum_weights(weights, sums), 4.0);
  EXPECT_EQ(sample_by_weight(weights, sums, 0.0), 1);
  EXPECT_EQ(sample_by_weight(weights, sums, std::nextafter(0.25, 0.0)), 1);
  EXPECT_EQ(sample_by_weight(weights, sums, 0.25), 3);
  EXPECT_EQ(sample_by_weight(weights, sums, std::nextafter(0.5, 0.0)), 3);
  EXPECT_EQ(sample_by_weight(weights, sums, 0.5), 4);
  EXPECT_EQ(sample_by_weight(weights, sums, std::nextafter(1.0, 0.0)), 4);
}

}  // namespace
}  // namespace tidemill::engines
