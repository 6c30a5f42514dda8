// SPDX-License-Identifier: Apache-2.0
#include "base/tensor/dtype.hpp"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "base/tensor/tensor.hpp"

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
  EXPECT_EQ(float_to_f16(1.0F + 0x1p-11F), 0x3C00);  // a tie goes to the even neighbor
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
  EXPECT_EQ(dtype_block_elements(DType::kBF16), 1U);
  EXPECT_EQ(dtype_block_bytes(DType::kBF16), 2U);
  EXPECT_EQ(dtype_block_elements(DType::kBlockI8), 32U);
  EXPECT_EQ(dtype_block_bytes(DType::kBlockI8), 34U);
  EXPECT_EQ(dtype_name(DType::kBlockI8), "Q8_0");
  EXPECT_FALSE(parse_dtype("Q8_0").has_value());
  EXPECT_FALSE(parse_dtype("F8_E4M3").has_value());
}

TEST(DType, TensorsHaveTheBytesOfTheirBlocks) {
  using Shape = std::vector<std::int64_t>;
  EXPECT_EQ(tensor_bytes(DType::kF16, Shape{3, 5}), 30U);
  EXPECT_EQ(tensor_bytes(DType::kF32, Shape{}), 4U);
  EXPECT_EQ(tensor_bytes(DType::kF32, Shape{3, 0}), 0U);
  EXPECT_EQ(tensor_bytes(DType::kBlockI8, Shape{3, 64}), 3U * 2U * 34U);
  EXPECT_EQ(tensor_bytes(DType::kBlockI8, Shape{3, 0}), 0U);
  EXPECT_FALSE(tensor_bytes(DType::kBlockI8, Shape{64, 33}).has_value());
  EXPECT_FALSE(tensor_bytes(DType::kBlockI8, Shape{}).has_value());
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(tensor_bytes(DType::kU8, Shape{most}), static_cast<std::uint64_t>(most));
  EXPECT_FALSE(tensor_bytes(DType::kU16, Shape{most / 2 + 1}).has_value());
  EXPECT_FALSE(tensor_bytes(DType::kU8, Shape{most, 2, 0}).has_value());
  EXPECT_FALSE(tensor_bytes(DType::kBlockI8, Shape{most / 34 + 1, 32}).has_value());
}

}  // namespace
}  // namespace tidemill
