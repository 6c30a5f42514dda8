// SPDX-License-Identifier: Apache-2.0
// Files that must be refused, each with the text that the error message must contain.
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <iostream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files/tensor_file.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tidemill {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string length_bytes(std::uint64_t length) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes;
}

// Returns a file with this header, padded, and `data_size` bytes of data.
std::string file(std::string header, std::size_t data_size) {
  header.resize((header.size() + 7) / 8 * 8, ' ');
  return length_bytes(header.size()) + header + std::string(data_size, 'd');
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" +
         offsets + "}";
}

// Returns a file with one F32 tensor "t" and 8 bytes of data.
std::string one(const std::string& shape, const std::string& offsets) {
  return file("{" + entry("t", "F32", shape, offsets) + "}", 8);
}

std::string two(const std::string& first_offsets, const std::string& second_offsets,
                std::size_t data_size) {
  return file("{" + entry("a", "F32", "[2]", first_offsets) + "," +
                  entry("b", "F32", "[2]", second_offsets) + "}",
              data_size);
}

std::string many(std::size_t count, const std::string& dtype) {
  std::string header = "{";
  for (std::size_t i = 0; i < count; ++i) {
    header += (i == 0 ? std::string() : std::string(",")) +
              entry(std::to_string(i), dtype, "[0]", "[0,0]");
  }
  return file(header + "}", 0);
}

std::string repeated(const std::string& text, std::size_t count) {
  std::string out;
  for (std::size_t i = 0; i < count; ++i) {
    out += text;
  }
  return out;
}

struct BadFile {
  const char* name;
  std::function<std::string()> bytes;
  const char* message;
};

const std::vector<BadFile>& bad_files() {
  static const std::vector<BadFile> kFiles{
      // the file as a whole
      {"empty", [] { return std::string(); }, "0 bytes; a tensor file has at least 8"},
      {"seven bytes", [] { return std::string(7, 'x'); }, "7 bytes; a tensor file has at least 8"},
      {"length only", [] { return length_bytes(0); }, "the header must start with '{'"},
      {"length beyond the file", [] { return length_bytes(100) + "{}"; },
       "a header of 100 bytes in a file of 10"},
      {"length of 2^64-1", [] { return length_bytes(UINT64_MAX) + "{}"; },
       "a header of 18446744073709551615 bytes; at most 1048576"},
      {"length that wraps when 8 is added", [] { return length_bytes(UINT64_MAX - 7) + "{}"; },
       "at most 1048576"},
      {"header of 100 MB, as the format allows", [] { return length_bytes(100'000'000) + "{}"; },
       "a header of 100000000 bytes; at most 1048576"},
      {"one byte over the header cap",
       [] { return file("{}" + std::string((1U << 20U) - 1, ' '), 0); }, "at most 1048576"},
      {"data without header", [] { return std::string(64, '\xFF'); }, "at most 1048576"},
      {"a zip archive (torch.save)",
       [] { return "PK\x03\x04" + std::string(4, '\0') + std::string(60, 'x'); },
       "a header of 67324752 bytes"},
      {"truncated data",
       [] {
         std::string bytes = one("[2]", "[0,8]");
         bytes.resize(bytes.size() - 5);
         return bytes;
       },
       "ends at byte 8 of a data area of 3"},
      {"trailing bytes", [] { return one("[2]", "[0,8]") + "x"; },
       "1 bytes follow the last tensor"},
      {"data without a tensor", [] { return file("{}", 8); }, "8 bytes follow the last tensor"},

      // JSON
      {"header is an array", [] { return file("[]", 0); }, "the header must start with '{'"},
      {"header starts with a space", [] { return file(" {}", 0); },
       "the header must start with '{'"},
      {"header starts with a byte order mark", [] { return file("\xEF\xBB\xBF{}", 0); },
       "the header must start with '{'"},
      {"header is cut", [] { return file(R"({"t":{"dtype":"F32")", 0); }, "not JSON at byte"},
      {"header padded with NUL", [] { return length_bytes(8) + "{}" + std::string(6, '\0'); },
       "not JSON at byte 3"},
      {"two documents", [] { return file("{}{}", 0); }, "not JSON at byte 3"},
      {"not UTF-8", [] { return file("{\"\xFF\xFE\":1}", 0); }, "not JSON"},
      {"a million brackets", [] { return file("{\"t\":" + std::string(1'000'000, '['), 0); },
       "JSON nested deeper than 3"},
      {"a long list of values",
       [] { return file("{\"t\":[" + repeated("0,", 500'000) + "0]}", 0); },
       "must be a JSON object"},
      {"a comment", [] { return file("{/* x */}", 0); }, "not JSON"},

      // names
      {"the same name twice",
       [] {
         return file("{" + entry("t", "F32", "[1]", "[0,4]") + "," +
                         entry("t", "F32", "[1]", "[4,8]") + "}",
                     8);
       },
       "the name \"t\" occurs twice"},
      {"the same name twice, once escaped",
       [] {
         return file("{" + entry("t", "F32", "[1]", "[0,4]") + "," +
                         entry("\\u0074", "F32", "[1]", "[4,8]") + "}",
                     8);
       },
       "the name \"t\" occurs twice"},
      {"the same field twice",
       [] {
         return file(R"({"t":{"dtype":"F32","shape":[1],"shape":[2],"data_offsets":[0,4]}})", 4);
       },
       "the name \"shape\" occurs twice"},
      {"metadata twice", [] { return file(R"({"__metadata__":{},"__metadata__":{}})", 0); },
       "the name \"__metadata__\" occurs twice"},
      {"empty name", [] { return file("{" + entry("", "F32", "[0]", "[0,0]") + "}", 0); },
       "tensor \"\": a name must have 1 to 512 bytes"},
      {"huge name",
       [] { return file("{" + entry(std::string(100'000, 'n'), "F32", "[0]", "[0,0]") + "}", 0); },
       "a name must have 1 to 512 bytes"},
      {"NUL in a name",
       [] { return file("{" + entry("a\\u0000b", "F32", "[0]", "[0,0]") + "}", 0); },
       R"(tensor "a\x00b": a name must not hold control characters)"},
      {"newline in a name",
       [] { return file("{" + entry("a\\nb", "F32", "[0]", "[0,0]") + "}", 0); },
       R"(tensor "a\x0ab": a name must not hold control characters)"},

      // metadata
      {"metadata is a list", [] { return file(R"({"__metadata__":[]})", 0); },
       "__metadata__: must be a JSON object"},
      {"metadata holds a number", [] { return file(R"({"__metadata__":{"a":1}})", 0); },
       "__metadata__: \"a\" must be a string"},
      {"metadata holds an object", [] { return file(R"({"__metadata__":{"a":{}}})", 0); },
       "__metadata__: \"a\" must be a string"},

      // fields of a tensor
      {"tensor is null", [] { return file(R"({"t":null})", 0); },
       "tensor \"t\": must be a JSON object"},
      {"tensor is a string", [] { return file(R"({"t":"F32"})", 0); },
       "tensor \"t\": must be a JSON object"},
      {"no dtype", [] { return file(R"({"t":{"shape":[0],"data_offsets":[0,0]}})", 0); },
       "dtype, shape and data_offsets are all required"},
      {"no shape", [] { return file(R"({"t":{"dtype":"F32","data_offsets":[0,0]}})", 0); },
       "dtype, shape and data_offsets are all required"},
      {"the old key offsets",
       [] { return file(R"({"t":{"dtype":"F32","shape":[0],"offsets":[0,0]}})", 0); },
       "unknown field \"offsets\""},
      {"an extra field",
       [] {
         return file(R"({"t":{"dtype":"F32","shape":[0],"data_offsets":[0,0],"strides":[1]}})", 0);
       },
       "unknown field \"strides\""},
      {"unknown dtype", [] { return file("{" + entry("t", "F8_E4M3", "[4]", "[0,4]") + "}", 4); },
       "tensor \"t\": dtype \"F8_E4M3\" is not supported"},
      {"dtype in lower case", [] { return file("{" + entry("t", "f32", "[1]", "[0,4]") + "}", 4); },
       "dtype \"f32\" is not supported"},
      {"dtype is a number",
       [] { return file(R"({"t":{"dtype":1,"shape":[0],"data_offsets":[0,0]}})", 0); },
       "dtype must be a string"},

      // shape
      {"shape that wraps to 4 elements",
       [] { return one("[4194305,4194305,211106198978564]", "[0,16]"); },
       "tensor \"t\": shape times element size exceeds 2^63-1 bytes"},
      {"shape that wraps to 0", [] { return one("[4294967296,4294967296]", "[0,0]"); },
       "exceeds 2^63-1 bytes"},
      {"bytes that wrap", [] { return one("[4611686018427387904]", "[0,0]"); },
       "exceeds 2^63-1 bytes"},
      {"overflow before a zero", [] { return one("[4294967296,4294967296,4,0]", "[0,0]"); },
       "exceeds 2^63-1 bytes"},
      {"negative extent", [] { return one("[-2]", "[0,8]"); }, "shape must hold integers from 0"},
      {"two negative extents", [] { return one("[-1,-2]", "[0,8]"); },
       "shape must hold integers from 0"},
      {"fractional extent", [] { return one("[2.0]", "[0,8]"); },
       "shape must hold integers from 0"},
      {"extent of 2^64", [] { return one("[18446744073709551616]", "[0,8]"); },
       "shape must hold integers from 0"},
      {"extent of 2^64-1", [] { return one("[18446744073709551615]", "[0,8]"); },
       "shape must hold integers from 0"},
      {"extent is a string", [] { return one("[\"2\"]", "[0,8]"); },
       "shape must hold integers from 0"},
      {"shape is a number", [] { return one("2", "[0,8]"); }, "shape must be a list"},
      {"nested shape", [] { return one("[[2]]", "[0,8]"); }, "JSON nested deeper than 3"},
      {"too many dimensions", [] { return one("[" + repeated("1,", 32) + "2]", "[0,8]"); },
       "33 dimensions; at most 32"},
      {"shape larger than the offsets", [] { return one("[3]", "[0,8]"); },
       "shape and dtype need 12 bytes, data_offsets give 8"},
      {"shape smaller than the offsets", [] { return one("[1]", "[0,8]"); },
       "shape and dtype need 4 bytes, data_offsets give 8"},

      // offsets
      {"reversed offsets", [] { return one("[2]", "[8,0]"); },
       "data_offsets end before they begin"},
      {"negative offset", [] { return one("[2]", "[-8,0]"); }, "data_offsets must be two integers"},
      {"one offset", [] { return one("[2]", "[8]"); }, "data_offsets must be two integers"},
      {"three offsets", [] { return one("[2]", "[0,8,8]"); }, "data_offsets must be two integers"},
      {"offsets beyond 2^63",
       [] { return one("[2]", "[9223372036854775808,9223372036854775816]"); },
       "data_offsets must be two integers"},
      {"fractional offset", [] { return one("[2]", "[0.0,8]"); },
       "data_offsets must be two integers"},
      {"offsets beyond the file", [] { return one("[1099511627776]", "[0,4398046511104]"); },
       "tensor \"t\": ends at byte 4398046511104 of a data area of 8"},
      {"hole before the first tensor",
       [] { return file("{" + entry("t", "F32", "[1]", "[4,8]") + "}", 8); },
       "tensor \"t\": leaves a gap: starts at 4, expected 0"},
      {"hole between tensors", [] { return two("[0,8]", "[12,20]", 20); },
       "tensor \"b\": leaves a gap: starts at 12, expected 8"},
      {"overlap", [] { return two("[0,8]", "[4,12]", 12); },
       "tensor \"b\": overlaps the tensor before it: starts at 4, expected 8"},
      {"two tensors on the same bytes", [] { return two("[0,8]", "[0,8]", 8); },
       "tensor \"b\": overlaps the tensor before it"},
      {"an empty tensor inside another",
       [] {
         return file("{" + entry("a", "F32", "[2]", "[0,8]") + "," +
                         entry("z", "F32", "[0]", "[4,4]") + "}",
                     8);
       },
       "tensor \"z\": overlaps the tensor before it"},
      {"an empty tensor beyond the file",
       [] {
         return file("{" + entry("a", "F32", "[2]", "[0,8]") + "," +
                         entry("z", "F32", "[0]", "[64,64]") + "}",
                     8);
       },
       "tensor \"z\": leaves a gap"},

      // size
      {"100,000 entries", [] { return many(100'000, "F32"); }, "at most 1048576"},
  };
  return kFiles;
}

class BadTensorFile : public ::testing::Test {
protected:
  Status refusal(std::string_view bytes, TensorPlacement placement,
                 const TensorFileLimits& limits = {}) {
    const auto path = directory_.path() / "bad.safetensors";
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    return read_tensor_file(path, placement, limits).status();
  }
  std::string location() const { return (directory_.path() / "bad.safetensors").string() + ": "; }

  test::TemporaryDirectory directory_;
};

TEST_F(BadTensorFile, IsRefusedInOneLineThatNamesFileAndTensor) {
  int num_cases = 0;
  for (const BadFile& bad : bad_files()) {
    for (const auto placement : {TensorPlacement::kMapped, TensorPlacement::kCopied}) {
      const Status status = refusal(bad.bytes(), placement);
      ASSERT_FALSE(status.ok()) << bad.name;
      EXPECT_THAT(status.message(), StartsWith(location())) << bad.name;
      EXPECT_THAT(status.message(), HasSubstr(bad.message)) << bad.name;
      EXPECT_EQ(status.message().find('\n'), std::string::npos) << bad.name;
      EXPECT_LT(status.message().size(), location().size() + 250) << bad.name;
    }
    ++num_cases;
  }
  EXPECT_EQ(num_cases, 72);
  RecordProperty("cases", num_cases);
  std::cout << num_cases << " bad tensor files refused\n";
}

// Cutting a good file anywhere, or flipping any bit of its header, never crashes the reader. A cut
// is always detected.
TEST_F(BadTensorFile, EveryCutIsDetected) {
  const std::string good = two("[0,8]", "[8,16]", 16);
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(refusal(std::string_view(good).substr(0, size), TensorPlacement::kCopied).ok())
        << size;
  }
  EXPECT_TRUE(refusal(good, TensorPlacement::kCopied).ok());
}

TEST_F(BadTensorFile, EveryFlippedHeaderBitIsRefusedOrReadAsAnotherWholeFile) {
  const std::string good = two("[0,8]", "[8,16]", 16);
  const auto path = directory_.path() / "flipped.safetensors";
  for (std::size_t bit = 0; bit < (good.size() - 16) * 8; ++bit) {
    std::string bytes = good;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1U << (bit % 8)));
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    const auto read = read_tensor_file(path, TensorPlacement::kMapped);
    if (read.ok()) {  // e.g. a letter of a name changed
      std::size_t total = 0;
      for (const auto& [name, tensor] : read.value().tensors) {
        total += tensor.data.size_bytes();
      }
      EXPECT_EQ(total, 16U) << bit;
    }
  }
}

TEST_F(BadTensorFile, TheNumberOfTensorsIsCapped) {
  TensorFileLimits limits;
  limits.max_tensors = 9;
  EXPECT_TRUE(refusal(many(9, "F32"), TensorPlacement::kMapped, limits).ok());
  EXPECT_THAT(refusal(many(10, "F32"), TensorPlacement::kMapped, limits).message(),
              HasSubstr("10 tensors; at most 9"));
  limits.max_header_bytes = std::uint64_t{64} << 20U;
  limits.max_tensors = 100'000;
  EXPECT_THAT(refusal(many(100'001, "F32"), TensorPlacement::kMapped, limits).message(),
              HasSubstr("100001 tensors; at most 100000"));
}

TEST_F(BadTensorFile, EmptyTensorsMayBeAtABoundary) {
  const std::string bytes = file(
      "{" + entry("z1", "F32", "[0]", "[0,0]") + "," + entry("a", "F32", "[2]", "[0,8]") + "," +
          entry("z2", "I64", "[5,0]", "[8,8]") + "," + entry("s", "U8", "[]", "[8,9]") + "}",
      9);
  EXPECT_TRUE(refusal(bytes, TensorPlacement::kMapped).ok());
}

}  // namespace
}  // namespace tidemill
