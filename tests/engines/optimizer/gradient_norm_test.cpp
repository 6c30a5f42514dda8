// SPDX-License-Identifier: Apache-2.0
#include "engines/optimizer/gradient_norm.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"

namespace tidemill::engines {
namespace {

TEST(GradientNorm, EverySplitIntoBlocksAddsUpToTheSameBits) {
  RandomStream random(6);
  std::vector<float> values(3 * kNormBlock + 77);
  for (float& value : values) {
    value = static_cast<float>(random.normal());
  }
  const std::span<const float> all(values);
  std::vector<double> sums(norm_blocks(all.size()));
  ASSERT_EQ(sums.size(), 4U);
  for (std::size_t cut = 0; cut <= 3; ++cut) {
    const std::span<double> out(sums);
    block_squares(all.first(cut * kNormBlock), out.first(cut));
    block_squares(all.subspan(cut * kNormBlock), out.subspan(cut));
    double total = 0.0;
    for (const double sum : sums) {
      total += sum;
    }
    EXPECT_EQ(total, squared_norm(all)) << cut;
  }
}

TEST(GradientNorm, IsExactForSmallNumbersAndFiniteForLargeOnes) {
  const std::vector<float> values = {3.0F, -4.0F};
  EXPECT_EQ(squared_norm<float>(values), 25.0);
  EXPECT_EQ(squared_norm<float>({}), 0.0);
  const std::vector<float> large(100, std::numeric_limits<float>::max());
  EXPECT_TRUE(std::isfinite(squared_norm<float>(large)));
  const std::vector<float> bad = {1.0F, std::numeric_limits<float>::quiet_NaN()};
  EXPECT_TRUE(std::isnan(squared_norm<float>(bad)));
}

TEST(ClipScale, NeverExceedsOneAndZeroDisablesClipping) {
  EXPECT_EQ(clip_scale(0.5, 1.0), 1.0);
  EXPECT_EQ(clip_scale(0.0, 1.0), 1.0);
  EXPECT_EQ(clip_scale(4.0, 1.0), 1.0 / (4.0 + 1e-6));
  EXPECT_EQ(clip_scale(4.0, 0.0), 1.0);
}

}  // namespace
}  // namespace tidemill::engines
