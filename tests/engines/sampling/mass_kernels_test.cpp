// SPDX-License-Identifier: Apache-2.0
#include "engines/sampling/mass_kernels.hpp"

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

// The kernels compute the difference in single precision if the largest logit is a float.
TEST(MassKernels, ADifferenceOfFloatsRoundsToTheSameFloatInBothPrecisions) {
  RandomStream random(2);
  std::vector<float> logits(5000);
  for (float& logit : logits) {  // magnitudes from 1e-6 to 1e6, so that the subtraction rounds
    logit = static_cast<float>(random.normal() * std::pow(10.0, 12.0 * random.uniform() - 6.0));
  }
  for (std::size_t i = 1; i < logits.size(); ++i) {
    EXPECT_EQ(logits[i] - logits[i - 1], static_cast<float>(static_cast<double>(logits[i]) -
                                                            static_cast<double>(logits[i - 1])));
  }
}

TEST(FixedPointMass, RoundsToNearestAndHasRoomForTheVocabulary) {
  EXPECT_EQ(fixed_point_bits(151936), 44);
  EXPECT_EQ(fixed_point_bits(1), 51);
  for (const std::size_t vocabulary : {1UL, 2UL, 1000UL, 151936UL, 1UL << 20U, (1UL << 31U) - 1}) {
    const int bits = fixed_point_bits(vocabulary);
    EXPECT_LE(static_cast<double>(vocabulary) * std::ldexp(1.0, bits), 0x1p62);
    EXPECT_EQ(fixed_point_mass(1.0F, bits), std::uint64_t{1} << static_cast<unsigned>(bits));
    EXPECT_EQ(fixed_point_mass(0.0F, bits), 0U);
    RandomStream random(vocabulary);
    for (int i = 0; i < 1000; ++i) {
      const auto mass = static_cast<float>(std::exp(-60.0 * random.uniform()));
      EXPECT_EQ(
          fixed_point_mass(mass, bits),
          static_cast<std::uint64_t>(std::llrint(std::ldexp(static_cast<double>(mass), bits))));
    }
  }
  EXPECT_EQ(fixed_point_mass(std::ldexp(0.5F, -44), 44), 0U) << "ties to even";
  EXPECT_EQ(fixed_point_mass(std::ldexp(1.5F, -44), 44), 2U);
}

TEST(SampleByMass, InvertsTheCumulativeMassAcrossBlocks) {
  std::vector<float> masses(3 * kMassBlock, 0.0F);
  masses[5] = 1.0F;
  masses[kMassBlock + 7] = 2.0F;
  masses[2 * kMassBlock + 9] = 1.0F;
  const std::vector<double> sums = {1.0, 2.0, 1.0};
  const auto token = [&](double uniform) {
    return static_cast<std::size_t>(sample_by_mass(masses, sums, uniform));
  };
  EXPECT_EQ(token(0.0), 5U);
  EXPECT_EQ(token(0.2499), 5U);
  EXPECT_EQ(token(0.25), kMassBlock + 7);
  EXPECT_EQ(token(0.7499), kMassBlock + 7);
  EXPECT_EQ(token(0.75), 2 * kMassBlock + 9);
  EXPECT_EQ(token(std::nextafter(1.0, 0.0)), 2 * kMassBlock + 9);
}

// A number at the end of a token's mass chooses the next token, and tokens without mass are never
// chosen.
TEST(SampleByMass, ANumberBetweenTwoTokensChoosesTheSecond) {
  const std::vector<float> masses = {0.0F, 1.0F, 0.0F, 1.0F, 2.0F, 0.0F};
  const std::vector<double> sums = {4.0};
  EXPECT_EQ(sample_by_mass(masses, sums, 0.0), 1);
  EXPECT_EQ(sample_by_mass(masses, sums, std::nextafter(0.25, 0.0)), 1);
  EXPECT_EQ(sample_by_mass(masses, sums, 0.25), 3);
  EXPECT_EQ(sample_by_mass(masses, sums, std::nextafter(0.5, 0.0)), 3);
  EXPECT_EQ(sample_by_mass(masses, sums, 0.5), 4);
  EXPECT_EQ(sample_by_mass(masses, sums, std::nextafter(1.0, 0.0)), 4);
}

// Rounding may carry the product of the number and the sum up to the sum itself.
TEST(SampleByMass, ANumberAtTheEndChoosesTheLastTokenWithMass) {
  const std::vector<float> masses = {1.0F, 0.0F, 2.0F, 0.0F};
  EXPECT_EQ(sample_by_mass(masses, std::vector<double>{3.0}, 1.0), 2);
}

}  // namespace
}  // namespace tidemill::engines
