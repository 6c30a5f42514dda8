// SPDX-License-Identifier: Apache-2.0
// NF4: comparison with bitsandbytes on the same weights, edge cases, and inconsistent parts.
#include "base/tensor/block_nf4.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files/tensor_file.hpp"
#include "base/random.hpp"
#include "base/tensor/float_tensor.hpp"
#include "tests/support/widened.hpp"

namespace tidemill {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using Shape = std::vector<std::int64_t>;

std::vector<std::uint32_t> bits_of(std::span<const float> values) {
  std::vector<std::uint32_t> bits(values.size());
  std::memcpy(bits.data(), values.data(), values.size_bytes());
  return bits;
}

Tensor random_tensor(Shape shape, double deviation = 0.02) {
  Tensor tensor{DType::kF32, shape, {}};
  RandomStream random(3, 0);
  std::vector<float> values(static_cast<std::size_t>(tensor.num_elements()));
  for (float& value : values) {
    value = static_cast<float>(deviation * random.normal());
  }
  return make_float_tensor(values, std::move(shape), DType::kF32);
}

// -- golden --------------------------------------------------------------------------------------

const char* const kCases[] = {"normal_f32", "normal_bf16", "one_block", "spread",
                              "zeros",      "all_zero",    "outliers",  "equal_scales"};

class BlockNf4GoldenTest : public ::testing::Test {
protected:
  void SetUp() override {
    auto file = read_tensor_file(std::string(TIDEMILL_TEST_DIR) + "/golden/nf4/nf4.safetensors",
                                 TensorPlacement::kCopied);
    ASSERT_TRUE(file.ok()) << file.status().to_string();
    tensors_ = std::move(file).value().tensors;
  }

  [[nodiscard]] const Tensor& tensor(const std::string& name) const { return tensors_.at(name); }
  [[nodiscard]] std::span<const float> floats(const std::string& name) const {
    return tensor(name).data.as<float>();
  }
  [[nodiscard]] std::span<const std::uint8_t> bytes(const std::string& name) const {
    return tensor(name).data.as<std::uint8_t>();
  }
  [[nodiscard]] Nf4Parts parts(const std::string& name) const {
    return {floats(name + ".group_scales"), floats(name + ".offset")[0], bytes(name + ".codes"),
            bytes(name + ".block_codes")};
  }
  // Compares with the reference values of `name`, widened and rounded.
  void expect_values(const Tensor& made, const std::string& name) const {
    const std::vector<float> wide = widened(made);
    if (const auto found = tensors_.find(name + ".f32"); found != tensors_.end()) {
      EXPECT_EQ(bits_of(wide), bits_of(found->second.data.as<float>())) << name;
    }
    const Tensor rounded = to_float_type(made, DType::kBF16);
    EXPECT_THAT(rounded.data.as<std::uint16_t>(),
                ElementsAreArray(tensor(name + ".bf16").data.as<std::uint16_t>()))
        << name;
  }

  TensorMap tensors_;
};

TEST_F(BlockNf4GoldenTest, ValuesAreThePublishedOnes) {
  EXPECT_EQ(bits_of(kNf4Values), bits_of(floats("values")));
  EXPECT_EQ(bits_of(nf4_scale_values()), bits_of(floats("scale_values")));
}

TEST_F(BlockNf4GoldenTest, WidensBitsandbytesTensorsToTheSameBits) {
  for (const std::string name : kCases) {
    const auto made = make_nf4_tensor(parts(name), tensor(name + ".weight").shape, name);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    expect_values(made.value(), name);
    const Nf4Parts kept = nf4_parts(made.value());
    std::vector<float> scales;
    for (std::size_t block = 0; block < kept.block_codes.size(); ++block) {
      scales.push_back(nf4_block_scale(kept, static_cast<std::int64_t>(block)));
    }
    EXPECT_EQ(bits_of(scales), bits_of(floats(name + ".scales"))) << name;
    const std::vector<float> wide = widened(made.value());
    for (std::size_t i = 0; i < wide.size(); ++i) {
      ASSERT_EQ(nf4_element(kept, static_cast<std::int64_t>(i)), wide[i]) << name << " " << i;
    }
  }
}

TEST_F(BlockNf4GoldenTest, QuantizesToTheSameBytes) {
  for (const std::string name : kCases) {
    const auto made = quantize_nf4(tensor(name + ".weight"), name);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    const Nf4Parts ours = nf4_parts(made.value());
    const Nf4Parts theirs = parts(name);
    EXPECT_THAT(ours.codes, ElementsAreArray(theirs.codes)) << name;
    if (name == "equal_scales") {
      // bitsandbytes sums the mean in float32, so it is one unit off the scales, which are all
      // equal. Only that unit remains of them.
      EXPECT_EQ(ours.offset, 0.05F);
      EXPECT_NEAR(theirs.offset, 0.05F, 4e-9);
      EXPECT_EQ(ours.group_scales[0], 0.0F);
      continue;
    }
    EXPECT_EQ(bits_of({&ours.offset, 1}), bits_of({&theirs.offset, 1})) << name;
    EXPECT_EQ(bits_of(ours.group_scales), bits_of(theirs.group_scales)) << name;
    EXPECT_THAT(ours.block_codes, ElementsAreArray(theirs.block_codes)) << name;
    expect_values(made.value(), name);
  }
}

// -- edges ---------------------------------------------------------------------------------------

TEST(BlockNf4Test, TakesLessThanAThirdOfBf16) {
  // 33 bytes for 64 elements, a float for each 256 blocks, and the offset.
  EXPECT_EQ(tensor_bytes(DType::kNf4, Shape{1024, 1024}), 16384U * 33U + 64U * 4U + 4U);
  EXPECT_EQ(tensor_bytes(DType::kNf4, Shape{3, 0}), 4U);
  EXPECT_FALSE(tensor_bytes(DType::kNf4, Shape{64, 96}).has_value());
  EXPECT_FALSE(tensor_bytes(DType::kNf4, Shape{}).has_value());
  // The number of elements overflows, although the number of bytes does not.
  EXPECT_FALSE(tensor_bytes(DType::kNf4, Shape{std::int64_t{1} << 57U, 64}).has_value());
  EXPECT_TRUE(tensor_bytes(DType::kNf4, Shape{std::int64_t{1} << 56U, 64}).has_value());
}

TEST(BlockNf4Test, ErrsByAtMostHalfAStepOfItsBlock) {
  const Tensor tensor = random_tensor({12, 256});
  const std::vector<float> values = widened(tensor);
  const Tensor made = quantize_nf4(tensor, "w").value();
  const std::vector<float> back = widened(made);
  const Nf4Parts parts = nf4_parts(made);
  // The widest step is 0.3038, between -1 and -0.6962. A scale is off by at most half of 0.0141
  // times its group's float.
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float scale = nf4_block_scale(parts, static_cast<std::int64_t>(i / 64));
    const float off = parts.group_scales[0] * 0.0071F;
    EXPECT_LE(std::abs(values[i] - back[i]), 0.152F * (scale + off) + off) << i;
  }
}

TEST(BlockNf4Test, RefusesWhatItCannotHold) {
  EXPECT_EQ(quantize_nf4(random_tensor({4, 96}), "w").status().message(),
            "tensor w: rows of 96 elements cannot be cut into blocks of 64");
  std::vector<float> values(128, 1.0F);
  values[70] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(quantize_nf4(make_float_tensor(values, {2, 64}, DType::kF32), "w").status().message(),
            "tensor w: element [1, 6] is NaN");
  values[70] = 2e38F;
  EXPECT_EQ(quantize_nf4(make_float_tensor(values, {2, 64}, DType::kF32), "w").status().message(),
            "tensor w: element 70 is too large for NF4; the limit is 1e38");
  values[70] = -1e38F;
  const auto largest = quantize_nf4(make_float_tensor(values, {2, 64}, DType::kF32), "w");
  ASSERT_TRUE(largest.ok());
  EXPECT_TRUE(check_finite(largest.value()).ok());
  const Tensor whole{DType::kI32, {64}, Buffer::adopt(std::vector<std::int32_t>(64), DType::kI32)};
  EXPECT_THAT(quantize_nf4(whole, "w").status().message(), HasSubstr("type I32"));
}

TEST(BlockNf4Test, TensorsWithTheWrongCountsAreRefused) {
  const Tensor good = quantize_nf4(random_tensor({5, 4096}), "w").value();  // 320 blocks, 2 groups
  const auto refusal = [&](auto change, Shape shape = {5, 4096}) {
    Nf4Parts parts = nf4_parts(good);
    change(parts);
    const Status status = make_nf4_tensor(parts, std::move(shape), "w").status();
    EXPECT_TRUE(status.ok() || status.code() == Errc::kCorruptData);
    return status.message();
  };
  const auto same = [](Nf4Parts&) {};
  EXPECT_EQ(refusal(same), "");
  EXPECT_EQ(refusal([](Nf4Parts& p) { p.codes = p.codes.first(10239); }),
            "tensor w: 10239 bytes of codes; its shape needs 10240");
  EXPECT_EQ(refusal([](Nf4Parts& p) { p.block_codes = p.block_codes.first(319); }),
            "tensor w: 319 blocks; its shape needs 320");
  EXPECT_EQ(refusal([](Nf4Parts& p) { p.group_scales = p.group_scales.first(1); }),
            "tensor w: 1 groups of blocks; its shape needs 2");
  EXPECT_EQ(refusal(same, {5, 4160}), "tensor w: 10240 bytes of codes; its shape needs 10400");
  const std::string uncut = "tensor w: its rows cannot be cut into blocks of 64";
  EXPECT_EQ(refusal(same, {320, 63}), uncut);
  EXPECT_EQ(refusal(same, {}), uncut);
  EXPECT_EQ(refusal(same, {-5, -4096}), uncut);
  EXPECT_EQ(refusal(same, {std::int64_t{1} << 62U, 4096}), uncut);
  EXPECT_EQ(refusal([](Nf4Parts& p) { p.offset = std::numeric_limits<float>::infinity(); }),
            "tensor w: element [0, 0] is infinite");
  std::vector<float> groups(2, 1.0F);
  groups[1] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(refusal([&](Nf4Parts& p) { p.group_scales = groups; }),
            "tensor w: element [4, 0] is NaN");
  groups[1] = 3e38F;  // each is finite, but their sum is not
  EXPECT_THAT(refusal([&](Nf4Parts& p) {
                p.group_scales = groups;
                p.offset = 3e38F;
              }),
              HasSubstr("is infinite"));
}

TEST(BlockNf4Test, TensorsOfNoElementsHaveNoBlocks) {
  const Tensor none = quantize_nf4(random_tensor({3, 0}), "w").value();
  EXPECT_EQ(none.data.size_bytes(), 4U);
  const auto again = make_nf4_tensor(nf4_parts(none), {3, 0}, "w");
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_TRUE(widened(again.value()).empty());
}

TEST(BlockNf4Test, WidensToOtherTypes) {
  const Tensor made = quantize_nf4(random_tensor({2, 64}), "w").value();
  EXPECT_TRUE(is_weight_type(made.dtype));
  EXPECT_FALSE(is_float_type(made.dtype));
  const TensorMap wide = without_blocks({{"w", made}});
  EXPECT_EQ(wide.at("w").dtype, DType::kF32);
  EXPECT_EQ(bits_of(widened(wide.at("w"))), bits_of(widened(made)));
  EXPECT_EQ(dtype_name(DType::kNf4), "NF4");
  EXPECT_FALSE(parse_dtype("NF4").has_value());
}

}  // namespace
}  // namespace tidemill
