// SPDX-License-Identifier: Apache-2.0
#include "base/dtype.hpp"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace tidemill {
namespace {

TEST(F16, EveryFiniteValueSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float wide = f16_to_float(half);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(f16_to_float(float_to_f16(wide))));
    } else {
      ASSERT_EQ(float_to_f16(wide), half) << bits;
    }
  }
}

TEST(F16, RoundsToNearestEvenAndOverflowsToInfinity) {
  EXPECT_EQ(float_to_f16(1.0F + 0x1p-11F), 0x3C00);  // a tie goes to the even neighbour
  EXPECT_EQ(float_to_f16(1.0F + 3 * 0x1p-11F), 0x3C02);
  EXPECT_EQ(float_to_f16(65519.0F), 0x7BFF);
  EXPECT_EQ(float_to_f16(65520.0F), 0x7C00);
  EXPECT_EQ(float_to_f16(-std::numeric_limits<float>::infinity()), 0xFC00);
  EXPECT_EQ(float_to_f16(0x1p-25F), 0x0000);
  EXPECT_EQ(float_to_f16(0x1.8p-25F), 0x0001);
}

TEST(BF16, EveryFiniteValueSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float wide = bf16_to_float(half);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(wide))));
    } else {
      ASSERT_EQ(float_to_bf16(wide), half) << bits;
    }
  }
}

TEST(BF16, RoundsToNearestEven) {
  EXPECT_EQ(float_to_bf16(1.0F + 0x1p-8F), 0x3F80);
  EXPECT_EQ(float_to_bf16(1.0F + 3 * 0x1p-8F), 0x3F82);
}

TEST(DType, NamesAndSizesAgree) {
  for (const DType dtype : {DType::kBool, DType::kF16, DType::kBF16, DType::kF32, DType::kU64}) {
    EXPECT_EQ(parse_dtype(dtype_name(dtype)), dtype);
  }
  EXPECT_EQ(dtype_bytes(DType::kBF16), 2U);
  EXPECT_FALSE(parse_dtype("F8_E4M3").has_value());
}

}  // namespace
}  // namespace tidemill
