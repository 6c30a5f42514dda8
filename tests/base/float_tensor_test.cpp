// SPDX-License-Identifier: Apache-2.0
// Float tensors: refused tensors, and the round trip of widening and rounding.
#include "base/tensor/float_tensor.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "base/files/file.hpp"
#include "base/tensor/block_int8.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tidemill {
namespace {

TEST(FloatTensorTest, RoundTripsThroughEveryWidth) {
  const std::vector<float> exact = {0.0F, -1.5F, 0.25F, 96.0F, -0.125F, 2.0F};
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const Tensor tensor = make_float_tensor(exact, {2, 3}, dtype);
    EXPECT_EQ(tensor.dtype, dtype);
    EXPECT_EQ(tensor.data.size_bytes(), 6 * dtype_bytes(dtype));
    std::vector<float> back(6);
    widen_floats(tensor, back);
    EXPECT_EQ(back, exact) << dtype_name(dtype);
  }
}

TEST(FloatTensorTest, RoundsToNearest) {
  const std::vector<float> values = {1.0F + 1.0F / 512.0F, 1.0F + 3.0F / 512.0F};
  std::vector<float> back(2);
  widen_floats(make_float_tensor(values, {2}, DType::kBF16), back);
  EXPECT_EQ(back, (std::vector<float>{1.0F, 1.0F + 1.0F / 128.0F}));
}

TEST(FloatTensorTest, RoundsIntoMemoryAtAnyAddress) {
  const std::vector<float> values = {0.1F, -3.0F, 1e-3F};
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    std::vector<std::byte> out(1 + 3 * dtype_bytes(dtype));
    round_floats(values, dtype, std::span(out).subspan(1));
    const Tensor tensor = make_float_tensor(values, {3}, dtype);
    EXPECT_TRUE(std::ranges::equal(std::span(out).subspan(1), tensor.data.bytes()))
        << dtype_name(dtype);
  }
}

TEST(FloatTensorTest, ConvertsToTheTypesOfSameNamedTensors) {
  const std::vector<float> exact = {1.0F, -0.5F};
  const Tensor number = {
      DType::kI32, {1}, Buffer::adopt(std::vector<std::int32_t>{7}, DType::kI32)};
  const TensorMap like = {{"a", make_float_tensor(exact, {2}, DType::kBF16)},
                          {"b", make_float_tensor(exact, {2}, DType::kF32)},
                          {"n", make_float_tensor(exact, {2}, DType::kF16)},
                          {"m", number}};
  const TensorMap converted = with_types_of({{"a", make_float_tensor(exact, {2}, DType::kF32)},
                                             {"b", make_float_tensor(exact, {2}, DType::kF16)},
                                             {"m", make_float_tensor(exact, {2}, DType::kF16)},
                                             {"n", number},
                                             {"alone", make_float_tensor(exact, {2}, DType::kF16)}},
                                            like);
  ASSERT_EQ(converted.size(), 5U);
  EXPECT_EQ(converted.at("a").dtype, DType::kBF16);
  EXPECT_EQ(converted.at("b").dtype, DType::kF32);
  EXPECT_EQ(converted.at("m").dtype, DType::kF16);
  EXPECT_EQ(converted.at("n").dtype, DType::kI32);
  EXPECT_EQ(converted.at("alone").dtype, DType::kF16);
  for (const char* name : {"a", "b"}) {
    std::vector<float> back(2);
    widen_floats(converted.at(name), back);
    EXPECT_EQ(back, exact) << name;
  }
}

TEST(FloatTensorTest, FindsNonFiniteElements) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  // Two and a half of the pieces that are searched at once.
  const std::vector<std::int64_t> shape{2, 5, 1024};
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    std::vector<float> values(10'240, -60000.0F);
    EXPECT_TRUE(check_finite(make_float_tensor(values, shape, dtype)).ok()) << dtype_name(dtype);
    for (const std::size_t at : {0U, 4095U, 4096U, 10'239U}) {
      std::vector<float> spoilt = values;
      spoilt[10'239] = -infinity;
      spoilt[at] = at == 10'239 ? -infinity : nan;
      const std::string location = "[" + std::to_string(at / 5120) + ", " +
                                   std::to_string(at / 1024 % 5) + ", " +
                                   std::to_string(at % 1024) + "]";
      EXPECT_EQ(check_finite(make_float_tensor(spoilt, shape, dtype)).message(),
                "element " + location + (at == 10'239 ? " is infinite" : " is NaN"))
          << dtype_name(dtype);
    }
  }
  std::vector<BlockI8> blocks(4);
  blocks[3].scale = 0x7C01;
  const Tensor tensor{DType::kBlockI8, {2, 64}, Buffer::adopt(blocks, DType::kBlockI8)};
  EXPECT_EQ(check_finite(tensor).message(), "element [1, 32] is NaN");
  blocks[2].scale = 0xFC00;
  const Tensor infinite{DType::kBlockI8, {2, 64}, Buffer::adopt(blocks, DType::kBlockI8)};
  EXPECT_EQ(check_finite(infinite).message(), "element [1, 0] is infinite");
  EXPECT_TRUE(check_finite(make_float_tensor({}, {0, 3}, DType::kF32)).ok());
}

TEST(FloatTensorTest, SearchesAFileInPieces) {
  const test::TemporaryDirectory directory;
  const auto path = directory.path() / "weights";
  constexpr std::size_t kCount = 80'000;  // at least two pieces and a part of one
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kBlockI8}) {
    const std::size_t block = dtype_block_elements(dtype);
    for (const std::size_t at :
         {std::size_t{0}, std::size_t{16'384}, std::size_t{61'696}, std::size_t{61'664},
          std::size_t{65'536}, kCount - block, kCount}) {
      std::vector<float> values(kCount, -1.5F);
      Tensor tensor = make_float_tensor(values, {5, kCount / 5}, DType::kF32);
      if (dtype == DType::kBlockI8) {
        std::vector<BlockI8> blocks(kCount / block);
        if (at < kCount) {
          blocks[at / block].scale = 0x7C01;
        }
        tensor = {dtype, {5, kCount / 5}, Buffer::adopt(std::move(blocks), dtype)};
      } else {
        if (at < kCount) {
          values[at] = std::numeric_limits<float>::quiet_NaN();
        }
        tensor = make_float_tensor(values, {5, kCount / 5}, dtype);
      }
      PosixFileSystem files;
      ASSERT_TRUE(write_file(files, path, tensor.data.bytes()).ok());
      const Status in_memory = check_finite(tensor);
      EXPECT_EQ(in_memory.ok(), at == kCount);
      const Buffer mapped = ReadableFile::open(path).value().map().value();
      tensor.data = mapped.slice(0, mapped.size_bytes(), dtype);
      EXPECT_EQ(check_finite(tensor).message(), in_memory.message()) << dtype_name(dtype);
      if (at == kCount) {
        std::filesystem::resize_file(path, mapped.size_bytes() / 2);
        EXPECT_EQ(check_finite(tensor).code(), Errc::kCorruptData);
      }
    }
  }
}

TEST(FloatTensorTest, NamesWhatIsWrong) {
  TensorMap tensors;
  tensors["w"] = make_float_tensor(std::vector<float>(6), {2, 3}, DType::kF32);
  tensors["i"] = {DType::kI32, {1}, Buffer::adopt(std::vector<std::int32_t>{7}, DType::kI32)};
  const std::array<std::int64_t, 2> shape = {2, 3};
  const std::array<std::int64_t, 2> other = {3, 2};
  const std::array<std::int64_t, 1> one = {1};
  EXPECT_TRUE(check_float_tensor(tensors, "w", shape).ok());
  EXPECT_EQ(check_float_tensor(tensors, "v", shape).message(), "tensor v is missing");
  EXPECT_EQ(check_float_tensor(tensors, "w", other).message(),
            "tensor w has shape [2, 3], expected [3, 2]");
  EXPECT_EQ(check_float_tensor(tensors, "i", one).message(),
            "tensor i has type I32, expected F32, F16, BF16 or Q8_0");
}

}  // namespace
}  // namespace tidemill
