// SPDX-License-Identifier: Apache-2.0
// Block int8: rounding errors, extreme scales, and tensors that cannot be quantized.
#include "base/tensor/block_int8.hpp"

#include <cmath>
#include <fstream>
#include <limits>
#include <new>
#include <string>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/random.hpp"
#include "base/tensor/float_tensor.hpp"
#include "tests/support/widened.hpp"

namespace tidemill {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kBlock = BlockI8::kElements;

Tensor floats(const std::vector<float>& values, std::vector<std::int64_t> shape) {
  return make_float_tensor(values, std::move(shape), DType::kF32);
}

std::vector<float> normals(std::size_t count, double deviation) {
  RandomStream random(5, 0);
  std::vector<float> values(count);
  for (float& value : values) {
    value = static_cast<float>(deviation * random.normal());
  }
  return values;
}

// Returns the private writable memory of this process, which RLIMIT_DATA limits, or 0.
rlim_t data_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (rlim_t kibibytes = 0; word == "VmData:" && status >> kibibytes) {
      return kibibytes << 10U;
    }
  }
  return 0;
}

// The embedding table of a large vocabulary is widened in pieces. As a whole it would need more
// memory than a run over the quantized base.
TEST(BlockInt8Test, NeedsLittleMemoryBesideTheResult) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the address sanitizer reserves more memory than any limit allows";
#endif
  constexpr std::int64_t kElements = std::int64_t{32} << 20U;  // widened 128 MiB, in blocks 34 MiB
  const Tensor large = make_float_tensor(
      std::vector<float>(static_cast<std::size_t>(kElements), 0.5F), {kElements}, DType::kBF16);
  const pid_t child = ::fork();
  if (child == 0) {
    const rlim_t bytes = data_bytes() + (rlim_t{64} << 20U);
    const rlimit limit{bytes, bytes};
    int code = 2;
    try {
      code = ::setrlimit(RLIMIT_DATA, &limit) == 0 && quantize_blocks(large, "w").ok() ? 7 : 1;
    } catch (const std::bad_alloc&) {
    }
    ::_exit(code);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 7);
}

TEST(BlockInt8Test, RoundTripStaysWithinTheBound) {
  for (const double deviation : {1e-7, 1e-3, 0.02, 1.0, 3000.0}) {
    const std::vector<float> values = normals(64 * kBlock, deviation);
    const auto tensor = quantize_blocks(floats(values, {4, 16 * kBlock}), "w");
    ASSERT_TRUE(tensor.ok()) << tensor.status().to_string();
    EXPECT_EQ(tensor.value().dtype, DType::kBlockI8);
    EXPECT_EQ(tensor.value().shape, (std::vector<std::int64_t>{4, 16 * kBlock}));
    EXPECT_EQ(tensor.value().data.size_bytes(), 64U * 34U);
    const std::vector<float> back = widened(tensor.value());
    for (std::size_t block = 0; block < 64; ++block) {
      double most = 0.0;
      for (std::size_t i = 0; i < kBlock; ++i) {
        most = std::max(most, std::abs(double{values[block * kBlock + i]}));
      }
      const double scale = double{static_cast<float>(most) / 127.0F};
      const double stored = f16_to_float(float_to_f16(static_cast<float>(scale)));
      // A few units in the last place for x * (1 / d) in float32.
      const double bound = scale * (0.5 + 1e-4) + 127.0 * std::abs(stored - scale);
      for (std::size_t i = 0; i < kBlock; ++i) {
        const std::size_t at = block * kBlock + i;
        EXPECT_LE(std::abs(double{values[at]} - double{back[at]}), bound) << deviation;
      }
    }
  }
}

TEST(BlockInt8Test, IntegersSurvive) {
  std::vector<float> values(kBlock);
  for (std::size_t i = 0; i < kBlock; ++i) {
    values[i] = static_cast<float>(8 * static_cast<int>(i) - 127) * 0.25F;
  }
  values[31] = 127.0F * 0.25F;  // the scale is a quarter
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const Tensor tensor = make_float_tensor(values, {kBlock}, dtype);
    EXPECT_EQ(widened(quantize_blocks(tensor, "w").value()), values) << dtype_name(dtype);
  }
}

TEST(BlockInt8Test, ZerosStayZeros) {
  const std::vector<float> zeros(2 * kBlock, -0.0F);
  const Tensor tensor = quantize_blocks(floats(zeros, {2, kBlock}), "w").value();
  EXPECT_THAT(widened(tensor), ::testing::Each(0.0F));
  EXPECT_THAT(tensor.data.as<std::uint16_t>(), ::testing::Each(0));
}

TEST(BlockInt8Test, OneLargeElementRoundsTheSmallOnesToZero) {
  std::vector<float> values(2 * kBlock, 0.01F);
  values[3] = -127.0F;
  const std::vector<float> back =
      widened(quantize_blocks(floats(values, {2 * kBlock}), "w").value());
  EXPECT_EQ(back[3], -127.0F);
  EXPECT_EQ(back[0], 0.0F);                          // 0.01 of a scale of 1
  EXPECT_NEAR(back[kBlock], 0.01F, 0.01F * 0.001F);  // the other block keeps its own scale
}

TEST(BlockInt8Test, HalvesRoundAwayFromZero) {
  std::vector<float> values(kBlock, 0.0F);
  values[0] = 127.0F;
  values[1] = 0.5F;
  values[2] = -0.5F;
  values[3] = 2.5F;
  const std::vector<float> back = widened(quantize_blocks(floats(values, {kBlock}), "w").value());
  EXPECT_EQ(back[1], 1.0F);
  EXPECT_EQ(back[2], -1.0F);
  EXPECT_EQ(back[3], 3.0F);
}

TEST(BlockInt8Test, SmallestAndLargestMagnitudes) {
  for (const float tiny : {std::numeric_limits<float>::denorm_min(), 1e-38F, 1e-10F}) {
    const std::vector<float> back =
        widened(quantize_blocks(floats(std::vector<float>(kBlock, tiny), {kBlock}), "w").value());
    EXPECT_THAT(back, ::testing::Each(0.0F)) << tiny;  // no half is that small
  }
  std::vector<float> values(kBlock, 65504.0F * 127.0F);
  EXPECT_EQ(widened(quantize_blocks(floats(values, {kBlock}), "w").value()), values);
  values[7] = 65520.0F * 127.0F;
  EXPECT_THAT(quantize_blocks(floats(values, {kBlock}), "w").status().message(),
              HasSubstr("tensor w: block 0 holds 8321040"));
}

TEST(BlockInt8Test, NamesWhatCannotBeQuantized) {
  std::vector<float> values(4 * kBlock, 1.0F);
  values[kBlock + 5] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(quantize_blocks(floats(values, {2, 2 * kBlock}), "mlp.up").status().message(),
            "tensor mlp.up: element [0, 37] is NaN");
  values[kBlock + 5] = 0.0F;
  values[3 * kBlock] = -std::numeric_limits<float>::infinity();
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    EXPECT_EQ(
        quantize_blocks(make_float_tensor(values, {2, 2 * kBlock}, dtype), "w").status().message(),
        "tensor w: element [1, 32] is infinite");
  }
  EXPECT_EQ(quantize_blocks(floats(std::vector<float>(48), {2, 24}), "w").status().message(),
            "tensor w: rows of 24 elements cannot be cut into blocks of 32");
  EXPECT_EQ(quantize_blocks(floats({1.0F}, {}), "w").status().message(),
            "tensor w: rows of 1 elements cannot be cut into blocks of 32");
  const Tensor blocks = quantize_blocks(floats(std::vector<float>(kBlock), {kBlock}), "w").value();
  EXPECT_EQ(quantize_blocks(blocks, "w").status().message(),
            "tensor w: type Q8_0 cannot be quantized; only F32, F16 and BF16 can");
}

TEST(BlockInt8Test, SingleElementsEqualThoseOfTheWholeTensor) {
  const Tensor tensor =
      quantize_blocks(floats(normals(8 * kBlock, 0.02), {2, 4 * kBlock}), "w").value();
  const std::vector<float> values = widened(tensor);
  const BlockI8* row = tensor.data.as<BlockI8>().data();
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(block_element(row, static_cast<std::int64_t>(i)), values[i]) << i;
  }
}

TEST(BlockInt8Test, WidensToFloatsAndNeverBackToBlocks) {
  const Tensor blocks = quantize_blocks(floats(normals(2 * kBlock, 1.0), {2, kBlock}), "w").value();
  const Tensor wide = to_float_type(blocks, DType::kF32);
  EXPECT_EQ(widened(wide), widened(blocks));
  const TensorMap both{{"a", blocks}, {"b", wide}};
  const TensorMap plain = without_blocks(both);
  EXPECT_EQ(plain.at("a").dtype, DType::kF32);
  EXPECT_EQ(plain.at("b").data.bytes().data(), wide.data.bytes().data());
  // Trained weights are not converted back to the blocks that they came from.
  EXPECT_EQ(with_types_of({{"a", wide}}, both).at("a").dtype, DType::kF32);
  EXPECT_EQ(with_types_of({{"b", blocks}}, both).at("b").dtype, DType::kF32);
}

}  // namespace
}  // namespace tidemill
