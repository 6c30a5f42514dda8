// SPDX-License-Identifier: Apache-2.0
// Valid GGUF files, and one from another writer.
#include "engines/formats/gguf.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/digest.hpp"
#include "base/tensor/block_int8.hpp"
#include "base/tensor/float_tensor.hpp"
#include "tests/support/gguf_writer.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tidemill::engines {
namespace {

using test::gguf_bytes;
using test::gguf_text;
using test::GgufWriter;

class GgufTest : public ::testing::Test {
protected:
  ReadableFile file(const std::string& bytes) {
    const std::filesystem::path path = directory_.path() / "x.gguf";
    PosixFileSystem files;
    EXPECT_TRUE(write_file(files, path, bytes).ok());
    return ReadableFile::open(path).value();
  }
  static GgufHeader read(const ReadableFile& file, GgufLists lists = GgufLists::kRead) {
    auto header = read_gguf_header(file, lists);
    EXPECT_TRUE(header.ok()) << header.status().to_string();
    return std::move(header).value();
  }

  test::TemporaryDirectory directory_;
};

Tensor floats(std::vector<std::int64_t> shape, DType dtype) {
  Tensor tensor{DType::kF32, shape, {}};
  std::vector<float> values(static_cast<std::size_t>(tensor.num_elements()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = std::sin(static_cast<float>(i));
  }
  return make_float_tensor(values, std::move(shape), dtype);
}

TensorMap every_type() {
  TensorMap tensors{{"a", floats({3, 5}, DType::kF32)},
                    {"b", floats({7}, DType::kF16)},
                    {"c", floats({2, 3, 1, 4}, DType::kBF16)}};
  tensors["d"] = quantize_blocks(floats({3, 64}, DType::kF32), "d").value();
  return tensors;
}

TEST_F(GgufTest, ReadsEveryTypeInBothVersionsAndPlacements) {
  const TensorMap tensors = every_type();
  for (const std::uint32_t version : {2U, 3U}) {
    for (const std::uint64_t alignment : {8U, 32U, 4096U}) {
      GgufWriter writer;
      writer.version = version;
      writer.alignment = alignment;
      writer.u32("general.alignment", static_cast<std::uint32_t>(alignment));
      for (const auto& [name, tensor] : tensors) {
        writer.tensor(name, tensor);
      }
      std::string bytes = writer.bytes();
      for (const bool padded : {false, true}) {
        bytes.resize(padded ? (bytes.size() + alignment - 1) / alignment * alignment
                            : bytes.size());
        const ReadableFile x = file(bytes);
        const GgufHeader header = read(x);
        EXPECT_EQ(header.version, version);
        for (const auto placement : {TensorPlacement::kMapped, TensorPlacement::kCopied}) {
          const auto back = read_gguf_tensors(x, header, placement);
          ASSERT_TRUE(back.ok()) << back.status().to_string();
          EXPECT_EQ(digest_tensors(back.value()), digest_tensors(tensors));
        }
      }
    }
  }
}

TEST_F(GgufTest, ReadsEveryTypeOfValue) {
  GgufWriter writer;
  writer.key("u8", 0, gguf_bytes(std::uint8_t{200}));
  writer.key("i8", 1, gguf_bytes(std::int8_t{-100}));
  writer.key("u16", 2, gguf_bytes(std::uint16_t{60000}));
  writer.key("i16", 3, gguf_bytes(std::int16_t{-30000}));
  writer.key("u32", 4, gguf_bytes(std::uint32_t{4000000000}));
  writer.key("i32", 5, gguf_bytes(std::int32_t{-2000000000}));
  writer.key("f32", 6, gguf_bytes(1e-5F));
  writer.key("true", 7, std::string(1, '\1'));
  writer.key("false", 7, std::string(1, '\0'));
  writer.key("text", 8, gguf_text("gr\xC3\xBC\xC3\x9F\n"));
  writer.key("u64", 10, gguf_bytes(std::uint64_t{1} << 62U));
  writer.key("huge", 10, gguf_bytes(std::uint64_t{1} << 63U));
  writer.key("i64", 11, gguf_bytes(std::numeric_limits<std::int64_t>::min()));
  writer.key("f64", 12, gguf_bytes(0.1));
  writer.texts("texts", {"a", ""});
  const std::string inner = gguf_bytes(std::uint32_t{0}) + gguf_bytes(std::uint64_t{2}) + "\1\2";
  writer.key("lists", 9,
             gguf_bytes(std::uint32_t{9}) + gguf_bytes(std::uint64_t{2}) + inner + inner);
  const ReadableFile x = file(writer.bytes());
  const GgufHeader header = read(x);
  const Json& keys = header.keys;
  EXPECT_EQ(keys.if_object()->size(), 16U);
  EXPECT_EQ(*keys.find("u8")->if_integer(), 200);
  EXPECT_EQ(*keys.find("i8")->if_integer(), -100);
  EXPECT_EQ(*keys.find("u16")->if_integer(), 60000);
  EXPECT_EQ(*keys.find("i16")->if_integer(), -30000);
  EXPECT_EQ(*keys.find("u32")->if_integer(), 4000000000);
  EXPECT_EQ(*keys.find("i32")->if_integer(), -2000000000);
  EXPECT_EQ(keys.find("f32")->number(), 1e-5);  // as written in decimal, not as rounded to float
  EXPECT_TRUE(*keys.find("true")->if_bool());
  EXPECT_FALSE(*keys.find("false")->if_bool());
  EXPECT_EQ(*keys.find("text")->if_string(), "gr\xC3\xBC\xC3\x9F\n");
  EXPECT_EQ(*keys.find("u64")->if_integer(), std::int64_t{1} << 62U);
  EXPECT_EQ(keys.find("huge")->number(), 0x1p63);
  EXPECT_EQ(*keys.find("i64")->if_integer(), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(keys.find("f64")->number(), 0.1);
  EXPECT_EQ(keys.find("texts")->if_array()->size(), 2U);
  EXPECT_EQ(*(*(*keys.find("lists")->if_array())[1].if_array())[1].if_integer(), 2);
  const GgufHeader skipped = read(x, GgufLists::kSkip);
  EXPECT_EQ(skipped.keys.if_object()->size(), 16U);
  EXPECT_TRUE(skipped.keys.find("texts")->if_array()->empty());
  EXPECT_TRUE(skipped.keys.find("lists")->if_array()->empty());
  EXPECT_EQ(skipped.keys.find("f64")->number(), 0.1);
}

// More data than the cursor reads at once, so that some values cross the ends of its pieces.
TEST_F(GgufTest, ReadsLongLists) {
  std::vector<std::string> words;
  std::vector<std::int32_t> kinds;
  for (int i = 0; i < 30'000; ++i) {
    words.push_back("word" + std::to_string(i));
    kinds.push_back(i);
  }
  GgufWriter writer;
  writer.texts("words", words);
  writer.integers("kinds", kinds);
  writer.tensor("t", floats({5, 5}, DType::kF32));
  const ReadableFile x = file(writer.bytes());
  for (const GgufLists lists : {GgufLists::kRead, GgufLists::kSkip}) {
    const GgufHeader header = read(x, lists);
    EXPECT_EQ(header.tensors.size(), 1U);
    EXPECT_EQ(digest_tensors(read_gguf_tensors(x, header, TensorPlacement::kCopied).value()),
              digest_tensors({{"t", floats({5, 5}, DType::kF32)}}));
  }
  const GgufHeader header = read(x);
  EXPECT_EQ(*(*header.keys.find("words")->if_array())[29'999].if_string(), "word29999");
  EXPECT_EQ(*(*header.keys.find("kinds")->if_array())[29'999].if_integer(), 29'999);
}

TEST_F(GgufTest, TensorsMayBeInAnyOrderOrAbsent) {
  GgufWriter writer;
  const std::string four(16, 'x');
  writer.tensor("second", {4}, 0, four, 32);
  writer.tensor("first", {8}, 0, four + four, 0);
  // The writer writes data in the order of the calls: 16 bytes, padding, 32 bytes. The offsets say
  // otherwise, and both tensors fit either way.
  const ReadableFile x = file(writer.bytes());
  EXPECT_EQ(read(x).tensors[0].begin, read(x).tensors[1].begin + 32);
  const ReadableFile empty = file(GgufWriter().bytes());
  EXPECT_TRUE(read(empty).tensors.empty());
  EXPECT_TRUE(read_gguf_tensors(empty, read(empty), TensorPlacement::kMapped).value().empty());
}

// gguf.GGUFWriter of the Python package gguf 0.19.0 wrote the file; see make_gguf_py.py.
TEST_F(GgufTest, ReadsAFileOfTheReferenceWriter) {
  const std::filesystem::path path = TIDEMILL_TEST_DIR "/engines/formats/gguf_py.gguf";
  const ReadableFile x = ReadableFile::open(path).value();
  const GgufHeader header = read(x);
  EXPECT_EQ(header.version, 3U);
  EXPECT_EQ(*header.keys.find("general.architecture")->if_string(), "llama");
  EXPECT_EQ(*header.keys.find("llama.block_count")->if_integer(), 2);
  EXPECT_EQ(header.keys.find("llama.attention.layer_norm_rms_epsilon")->number(), 1e-5);
  EXPECT_EQ(header.keys.find("tokenizer.ggml.tokens")->if_array()->size(), 3U);
  const TensorMap tensors = read_gguf_tensors(x, header, TensorPlacement::kCopied).value();
  ASSERT_EQ(tensors.size(), 4U);
  // (i - 40) / 8 with every 7th element times 9: exact in float32.
  std::vector<float> values(3 * 64);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = (static_cast<float>(i) - 40.0F) / 8.0F * (i % 7 == 0 ? 9.0F : 1.0F);
  }
  const Tensor expected = make_float_tensor(values, {3, 64}, DType::kF32);
  for (const auto& [name, dtype] : {std::pair{"f32", DType::kF32}, std::pair{"f16", DType::kF16},
                                    std::pair{"bf16", DType::kBF16}}) {
    const Tensor& tensor = tensors.at(name);
    EXPECT_EQ(tensor.dtype, dtype);
    EXPECT_EQ(tensor.shape, (std::vector<std::int64_t>{3, 64}));
    EXPECT_TRUE(
        std::ranges::equal(tensor.data.bytes(), to_float_type(expected, dtype).data.bytes()))
        << name;
  }
  // Its quantizer agrees with `quantize_blocks` bit for bit.
  EXPECT_TRUE(std::ranges::equal(tensors.at("q8_0").data.bytes(),
                                 quantize_blocks(expected, "").value().data.bytes()));
}

}  // namespace
}  // namespace tidemill::engines
