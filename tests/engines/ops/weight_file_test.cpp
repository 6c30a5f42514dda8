// SPDX-License-Identifier: Apache-2.0
// Tests weights that are prepared from a mapped file: the result is the same as from memory, and a
// truncated file is an error.
#include <filesystem>

#include "base/files/file.hpp"
#include "base/tensor/block_int8.hpp"
#include "base/tensor/block_nf4.hpp"
#include "base/tensor/float_tensor.hpp"
#include "tests/engines/ops/fixtures.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tidemill::engines::ops_test {
namespace {

class WeightFileTest : public ::testing::Test {
protected:
  // Returns `tensor` in a mapped file, with other bytes before it and none after it.
  Tensor in_file(const Tensor& tensor) {
    constexpr std::size_t kBefore = 40;
    std::vector<std::byte> bytes(kBefore, std::byte{0x7F});
    bytes.insert(bytes.end(), tensor.data.bytes().begin(), tensor.data.bytes().end());
    PosixFileSystem files;
    EXPECT_TRUE(write_file(files, path_, bytes).ok());
    const Buffer whole = ReadableFile::open(path_).value().map().value();
    return {tensor.dtype, tensor.shape,
            whole.slice(kBefore, tensor.data.size_bytes(), tensor.dtype)};
  }

  test::TemporaryDirectory directory_;
  std::filesystem::path path_ = directory_.path() / "weights";
};

Tensor random_tensor(std::int64_t out, std::int64_t in, DType dtype) {
  const Rows w = Rows::random(out, in, 1);
  std::vector<float> values;
  for (std::int64_t o = 0; o < out; ++o) {
    values.insert(values.end(), w.view().row(o), w.view().row(o) + in);
  }
  if (is_float_type(dtype)) {
    return make_float_tensor(values, {out, in}, dtype);
  }
  const Tensor floats = make_float_tensor(values, {out, in}, DType::kF32);
  if (dtype == DType::kBlockI8) {
    return quantize_blocks(floats, "w").value();
  }
  return quantize_nf4(floats, "w").value();
}

// The weights are large enough that a worker reads several pieces, and the last panel is not full.
TEST_F(WeightFileTest, GivesTheSameWeightAsMemory) {
  for (const auto& [out, in] : {std::pair{147, 1024}, std::pair{35, 69}, std::pair{1, 6000}}) {
    for (const DType stored :
         {DType::kF32, DType::kF16, DType::kBF16, DType::kBlockI8, DType::kNf4}) {
      if (!is_float_type(stored) && in % 64 != 0) {
        continue;
      }
      const Tensor memory = random_tensor(out, in, stored);
      const Tensor file = in_file(memory);
      const Rows x = Rows::random(3, in, 2);
      for (const Backend& backend : backends()) {
        for (const int threads : {1, 2}) {
          Workers workers(threads);
          const auto ops = backend.make(workers).value();
          for (const DType compute : {DType::kF32, DType::kBF16, DType::kBlockI8, DType::kNf4}) {
            if (in % 64 != 0 && compute != DType::kF32 && compute != DType::kBF16) {
              continue;
            }
            const auto use = WeightUse::kForward;
            const auto a = ops->prepare_weight(weight_view(memory), compute, use).value();
            const auto b = ops->prepare_weight(weight_view(file), compute, use);
            ASSERT_TRUE(b.ok()) << b.status().to_string();
            Rows from_memory(3, out);
            Rows from_file(3, out);
            ops->linear(x.view(), *a, {}, Store::kOverwrite, from_memory.view());
            ops->linear(x.view(), *b.value(), {}, Store::kOverwrite, from_file.view());
            const std::string what = backend.name + ' ' + std::string(dtype_name(stored)) + " in " +
                                     std::string(dtype_name(compute));
            expect_same_bits(from_memory, from_file, what);
            EXPECT_EQ(a->seen_finite(), b.value()->seen_finite()) << what;
          }
        }
      }
    }
  }
}

TEST_F(WeightFileTest, NonFiniteElementsAreDetectedInEveryPiece) {
  constexpr std::int64_t kOut = 331;
  constexpr std::int64_t kIn = 1024;
  Workers workers(1);
  const auto ops = make_cpu_host_ops(workers).value();
  const Tensor finite = random_tensor(kOut, kIn, DType::kBF16);
  for (const std::int64_t row : {0, 127, 128, 255, 256, 319, 320, 330}) {
    std::vector<std::uint16_t> bits(finite.data.as<std::uint16_t>().begin(),
                                    finite.data.as<std::uint16_t>().end());
    bits[static_cast<std::size_t>(row * kIn + 7)] = 0x7FC0;
    const Tensor file =
        in_file({DType::kBF16, {kOut, kIn}, Buffer::adopt(std::move(bits), DType::kBF16)});
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      const auto weight = ops->prepare_weight(weight_view(file), compute, WeightUse::kForward);
      EXPECT_FALSE(weight.value()->seen_finite()) << row << ' ' << dtype_name(compute);
    }
  }
}

// Reading a mapped page past the end of its file would kill the process.
TEST_F(WeightFileTest, ATruncatedFileIsAnError) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kBlockI8}) {
    for (const Backend& backend : backends()) {
      if (backend.name == "reference") {
        continue;  // reads the mapping
      }
      Workers workers(2);
      const auto ops = backend.make(workers).value();
      const Tensor file = in_file(random_tensor(331, 1024, type));
      const std::size_t left = 40 + file.data.size_bytes() / 3;
      std::filesystem::resize_file(path_, left);
      const auto weight = ops->prepare_weight(weight_view(file), type, WeightUse::kForward);
      ASSERT_FALSE(weight.ok()) << backend.name;
      EXPECT_EQ(weight.status().code(), Errc::kCorruptData);
      EXPECT_TRUE(weight.status().message().starts_with(path_.string() + ": ends at byte "))
          << weight.status().message();
    }
  }
}

}  // namespace
}  // namespace tidemill::engines::ops_test
