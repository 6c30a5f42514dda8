// SPDX-License-Identifier: Apache-2.0
#include "base/files/tensor_file.hpp"

#include <cstring>
#include <iostream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/tensor/block_int8.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tidemill {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <class T>
Tensor tensor(DType dtype, std::vector<std::int64_t> shape, std::vector<T> values) {
  return {dtype, std::move(shape), Buffer::adopt(std::move(values), dtype)};
}

std::string file_bytes(const TensorMap& tensors, const TensorMetadata& metadata) {
  std::string bytes;
  const Status status =
      stream_tensor_file(tensors, metadata, [&bytes](std::span<const std::byte> piece) {
        bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
        return Status();
      });
  EXPECT_TRUE(status.ok()) << status.to_string();
  return bytes;
}

TensorMap mixed_tensors() {
  TensorMap tensors;
  tensors["scalar"] = tensor<float>(DType::kF32, {}, {1.5F});
  tensors["empty"] = tensor<float>(DType::kF32, {3, 0}, {});
  tensors["bytes"] = tensor<std::uint8_t>(DType::kU8, {3}, {1, 2, 3});
  tensors["half"] = tensor<std::uint16_t>(DType::kBF16, {2, 1}, {0x3F80, 0x4000});
  tensors["ids"] = tensor<std::int64_t>(DType::kI64, {2}, {-1, 7});
  tensors["gr\"\xC3\xBC"] = tensor<double>(DType::kF64, {1}, {2.5});
  return tensors;
}

void expect_equal(const TensorMap& actual, const TensorMap& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(actual.contains(name)) << name;
    const Tensor& other = actual.at(name);
    EXPECT_EQ(other.dtype, tensor.dtype) << name;
    EXPECT_EQ(other.shape, tensor.shape) << name;
    ASSERT_EQ(other.data.size_bytes(), tensor.data.size_bytes()) << name;
    EXPECT_TRUE(std::ranges::equal(other.data.bytes(), tensor.data.bytes())) << name;
  }
}

class TensorFileTest : public ::testing::Test {
protected:
  std::filesystem::path write(std::string_view bytes) {
    const std::filesystem::path path = directory_.path() / "x.safetensors";
    EXPECT_TRUE(write_file(files_, path, bytes).ok());
    return path;
  }

  PosixFileSystem files_;
  test::TemporaryDirectory directory_;
};

TEST_F(TensorFileTest, RoundTripsInBothPlacements) {
  const TensorMap tensors = mixed_tensors();
  const TensorMetadata metadata{{"format", "pt"}, {"note", "two\nlines"}};
  const std::filesystem::path path = directory_.path() / "x.safetensors";
  ASSERT_TRUE(write_tensor_file(files_, path, tensors, metadata).ok());
  for (const TensorPlacement placement : {TensorPlacement::kMapped, TensorPlacement::kCopied}) {
    const auto file = read_tensor_file(path, placement);
    ASSERT_TRUE(file.ok()) << file.status().to_string();
    EXPECT_EQ(file.value().metadata, metadata);
    expect_equal(file.value().tensors, tensors);
    EXPECT_EQ(file.value().tensors.at("ids").data.as<std::int64_t>()[1], 7);
  }
}

// A tensor that outlives the others must not hold their memory.
TEST_F(TensorFileTest, CopiedTensorsShareNoMemory) {
  const std::filesystem::path path = directory_.path() / "x.safetensors";
  ASSERT_TRUE(write_tensor_file(files_, path, mixed_tensors()).ok());
  const auto segments = [&](TensorPlacement placement) {
    const TensorMap tensors = read_tensor_file(path, placement).value().tensors;
    std::set<std::uint64_t> found;
    for (const auto& [name, tensor] : tensors) {
      found.insert(tensor.data.identity().segment);
    }
    return found.size();
  };
  EXPECT_EQ(segments(TensorPlacement::kMapped), 1U);
  EXPECT_EQ(segments(TensorPlacement::kCopied), mixed_tensors().size());
}

TEST_F(TensorFileTest, MappedTensorsOutliveTheirFile) {
  const std::filesystem::path path = directory_.path() / "x.safetensors";
  ASSERT_TRUE(write_tensor_file(files_, path, mixed_tensors()).ok());
  const Tensor kept = read_tensor_file(path, TensorPlacement::kMapped).value().tensors.at("scalar");
  std::filesystem::remove(path);
  EXPECT_EQ(kept.data.as<float>()[0], 1.5F);
}

TEST_F(TensorFileTest, WritesTheLayoutOfTheReferenceWriter) {
  TensorMap tensors;
  tensors["b"] = tensor<std::uint16_t>(DType::kBF16, {1}, {1});
  tensors["a"] = tensor<std::uint8_t>(DType::kU8, {1}, {2});
  tensors["d"] = tensor<float>(DType::kF32, {1}, {0.0F});
  tensors["c"] = tensor<float>(DType::kF32, {}, {0.0F});
  const std::string bytes = file_bytes(tensors, default_tensor_metadata());
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"c":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
      R"("d":{"dtype":"F32","shape":[1],"data_offsets":[4,8]},)"
      R"("b":{"dtype":"BF16","shape":[1],"data_offsets":[8,10]},)"
      R"("a":{"dtype":"U8","shape":[1],"data_offsets":[10,11]}})";
  EXPECT_EQ(bytes.substr(8, header.size()), header);
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  EXPECT_EQ(length % 8, 0U);
  EXPECT_EQ(bytes.size(), 8 + length + 11);
  const std::string padding = bytes.substr(8 + header.size(), length - header.size());
  EXPECT_EQ(padding.find_first_not_of(' '), std::string::npos);
}

// The safetensors library (version 0.8) wrote every file of the fixtures.
TEST_F(TensorFileTest, WritesEveryFixtureAsTheReferenceWriterDid) {
  int num_files = 0;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(TIDEMILL_TEST_DIR "/golden/engine")) {
    if (entry.path().extension() != ".safetensors") {
      continue;
    }
    const auto file = read_tensor_file(entry.path(), TensorPlacement::kMapped);
    ASSERT_TRUE(file.ok()) << file.status().to_string();
    const auto original = read_text_file(entry.path(), std::uint64_t{1} << 30U);
    EXPECT_TRUE(file_bytes(file.value().tensors, file.value().metadata) == original.value())
        << entry.path();
    ++num_files;
  }
  EXPECT_EQ(num_files, 49);
  std::cout << num_files << " tensor files written bit for bit\n";
}

TEST_F(TensorFileTest, WritesNoTensorsAndNoMetadata) {
  const auto path = write(file_bytes({}, {}));
  const auto file = read_tensor_file(path, TensorPlacement::kMapped);
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  EXPECT_TRUE(file.value().tensors.empty());
}

TEST_F(TensorFileTest, RefusesToWriteBlocks) {
  TensorMap tensors;
  tensors["w"] = {DType::kBlockI8, {32}, Buffer::adopt(std::vector<BlockI8>(1), DType::kBlockI8)};
  const auto path = directory_.path() / "blocks.safetensors";
  EXPECT_EQ(write_tensor_file(files_, path, tensors).message(),
            "tensor \"w\": type Q8_0 cannot be stored in a safetensors file");
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(TensorFileTest, RefusesToWriteBadNames) {
  const auto refusal = [](const std::string& name) {
    TensorMap tensors;
    tensors[name] = tensor<float>(DType::kF32, {1}, {0.0F});
    return stream_tensor_file(tensors, {}, [](std::span<const std::byte>) { return Status(); });
  };
  EXPECT_THAT(refusal("").message(), HasSubstr("cannot write a tensor named \"\""));
  EXPECT_THAT(refusal("__metadata__").message(), HasSubstr("__metadata__"));
  EXPECT_THAT(refusal("\xFF").message(), HasSubstr("not UTF-8"));
  EXPECT_THAT(refusal(std::string(513, 'a')).message(), HasSubstr("cannot write a tensor named"));
}

TEST_F(TensorFileTest, RefusesToWriteAHeaderThatIsNotRead) {
  const TensorFileLimits limits;
  const auto refusal = [](const TensorMetadata& metadata) {
    return stream_tensor_file({}, metadata, [](std::span<const std::byte>) { return Status(); });
  };
  // {"__metadata__":{"k":""}} has 25 bytes without the value.
  EXPECT_TRUE(refusal({{"k", std::string(limits.max_header_bytes - 25, 'x')}}).ok());
  EXPECT_EQ(refusal({{"k", std::string(limits.max_header_bytes - 24, 'x')}}).message(),
            "a header of " + std::to_string(limits.max_header_bytes + 8) + " bytes; at most " +
                std::to_string(limits.max_header_bytes) + " are written");
}

TEST_F(TensorFileTest, APointerOfGitLfsIsNamed) {
  const auto path = write("version https://git-lfs.github.com/spec/v1\n");
  const auto read = read_tensor_file(path, TensorPlacement::kCopied);
  EXPECT_EQ(read.status().code(), Errc::kInvalidArgument);
  EXPECT_EQ(read.status().message(),
            path.string() + ": is a Git LFS pointer, not the file itself; run git lfs pull");
}

TEST_F(TensorFileTest, CopiesMisalignedTensors) {
  // A header whose length is not a multiple of 8, as old writers made them.
  const std::string header = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  std::string bytes(8, '\0');
  bytes[0] = static_cast<char>(header.size());
  ASSERT_NE(header.size() % 4, 0U);
  bytes += header;
  const float value = 3.25F;
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
  const auto file = read_tensor_file(write(bytes), TensorPlacement::kMapped);
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  EXPECT_EQ(file.value().tensors.at("a").data.as<float>()[0], 3.25F);
}

TEST_F(TensorFileTest, DetectsAFileThatShrinksAfterItWasOpened) {
  for (const TensorPlacement placement : {TensorPlacement::kMapped, TensorPlacement::kCopied}) {
    const auto path = write(file_bytes(mixed_tensors(), {}));
    const auto file = ReadableFile::open(path);
    ASSERT_TRUE(file.ok());
    std::filesystem::resize_file(path, file.value().size_bytes() - 3);
    const auto read = read_tensor_file(file.value(), placement);
    ASSERT_FALSE(read.ok());
    EXPECT_EQ(read.status().code(), Errc::kCorruptData);
    EXPECT_THAT(read.status().message(),
                HasSubstr(placement == TensorPlacement::kMapped ? "bytes while being read"
                                                                : "bytes early"));
  }
}

TEST_F(TensorFileTest, AFailingSinkStopsTheWriter) {
  int calls = 0;
  const Status status = stream_tensor_file(mixed_tensors(), {}, [&](std::span<const std::byte>) {
    return ++calls == 3 ? Status(Errc::kResourceExhausted, "full") : Status();
  });
  EXPECT_EQ(status.message(), "full");
  EXPECT_EQ(calls, 3);
}

}  // namespace
}  // namespace tidemill
