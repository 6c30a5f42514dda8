// SPDX-License-Identifier: Apache-2.0
// Malformed GGUF files: each is refused in one line that names the file, the location and the
// problem.
#include <functional>
#include <iostream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engines/formats/gguf.hpp"
#include "tests/support/gguf_writer.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tidemill::engines {
namespace {

using test::gguf_bytes;
using test::gguf_text;
using test::GgufWriter;
using test::kGgufList;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::uint64_t kMaxU64 = ~std::uint64_t{0};
constexpr std::uint64_t kMaxSigned = kMaxU64 >> 1U;
const std::string kFour(16, '\0');  // the data of four F32 values

struct Case {
  const char* name;
  std::function<std::string()> bytes;
  const char* message;
};

std::string list(std::uint32_t type, std::uint64_t size, const std::string& values = "") {
  return gguf_bytes(type) + gguf_bytes(size) + values;
}

// Returns a file with one key.
std::string with_key(std::string_view name, std::uint32_t type, const std::string& value) {
  GgufWriter writer;
  writer.key(name, type, value);
  return writer.bytes();
}

// Returns a file with one tensor.
std::string with_tensor(std::string_view name, const std::vector<std::uint64_t>& dimensions,
                        std::uint32_t type, std::string_view data = kFour,
                        std::optional<std::uint64_t> offset = std::nullopt) {
  GgufWriter writer;
  writer.tensor(name, dimensions, type, data, offset);
  return writer.bytes();
}

// Returns a file with two tensors of four F32 values each, at the given offsets.
std::string two_at(std::uint64_t first, std::uint64_t second, std::string_view second_name = "b") {
  GgufWriter writer;
  writer.tensor("a", {4}, 0, kFour, first);
  writer.tensor(second_name, {4}, 0, kFour, second);
  return writer.bytes();
}

std::string aligned_to(std::uint32_t type, const std::string& value) {
  GgufWriter writer;
  writer.key("general.alignment", type, value);
  writer.tensor("a", {4}, 0, kFour);
  return writer.bytes();
}

std::vector<Case> cases() {
  const auto counts = [](std::uint64_t tensors, std::uint64_t keys) {
    GgufWriter writer;
    writer.num_tensors = tensors;
    writer.num_keys = keys;
    return writer.bytes();
  };
  const auto cut = [](std::size_t size) {
    GgufWriter writer;
    writer.text("key", "value");
    writer.tensor("a", {4}, 0, kFour);
    return writer.bytes().substr(0, size);
  };
  const auto version = [](std::uint32_t number) {
    GgufWriter writer;
    writer.version = number;
    return writer.bytes();
  };
  std::vector<Case> all{
      // -- the header
      {"empty", [] { return std::string(); }, "0 bytes; not a GGUF file"},
      {"three bytes", [] { return std::string("GGU"); }, "3 bytes; not a GGUF file"},
      {"wrong magic", [] { return "GGML" + std::string(60, '\0'); },
       "not a GGUF file: begins with \"GGML\""},
      {"bytes reversed", [] { return "FUGG" + std::string(60, '\0'); }, "begins with \"FUGG\""},
      {"Git LFS",
       [] { return "version https://git-lfs.github.com/spec/v1" + std::string(60, '\n'); },
       "is a Git LFS pointer, not the file itself; run git lfs pull"},
      {"version 1", [=] { return version(1); }, "version 1 is not supported; only 2 and 3"},
      {"version 4", [=] { return version(4); }, "version 4 is not supported; only 2 and 3"},
      {"big-endian", [=] { return version(0x03000000); },
       "version 50331648 is not supported; only 2 and 3 (little-endian)"},
      {"magic alone", [=] { return cut(4); }, "byte 4: needs 4 bytes, but only 0 remain"},
      {"ends in the counts", [=] { return cut(20); },
       "1 tensors do not fit in the remaining 4 bytes"},
      {"more tensors than fit", [=] { return counts(2, 0); },
       "2 tensors do not fit in the remaining 8 bytes"},
      {"maximal number of tensors", [=] { return counts(kMaxU64, 0); },
       "18446744073709551615 tensors do not fit in the remaining 8 bytes"},
      {"more keys than fit", [=] { return counts(0, 7); },
       "7 keys do not fit in the remaining 0 bytes"},
      {"maximal number of keys", [=] { return counts(0, kMaxU64); },
       "18446744073709551615 keys do not fit in the remaining 0 bytes"},
      {"more tensors than the limit",
       [=] { return counts(100'001, 0) + std::string(std::size_t{100'001} * 33, '\0'); },
       "100001 tensors; at most 100000 are read"},
      {"more keys than the limit",
       [=] { return counts(0, 4097) + std::string(std::size_t{4097} * 13, '\0'); },
       "4097 keys; at most 4096 are read"},
      // -- keys
      {"empty key", [] { return with_key("", 0, "x"); }, "key 0: a name must not be empty"},
      {"key beyond the file",
       [] {
         GgufWriter writer;
         writer.num_keys = 1;
         return writer.bytes() + gguf_bytes(kMaxSigned) + std::string(20, 'x');
       },
       "key 0: byte 32: needs 21 bytes, but only 20 remain"},
      {"key too long", [] { return with_key(std::string(513, 'k'), 0, "x"); },
       "key 0: a string of 513 bytes; at most 512 are read"},
      {"key not UTF-8", [] { return with_key("k\xFF", 0, "x"); },
       "key 0: a string with invalid UTF-8 at byte 1"},
      {"key with a newline", [] { return with_key("k\n", 0, "x"); },
       "key 0: a name must not contain control characters"},
      {"key twice",
       [] {
         GgufWriter writer;
         writer.u32("k", 1);
         writer.u32("k", 1);
         return writer.bytes();
       },
       "key \"k\": appears twice"},
      {"value of type 13", [] { return with_key("k", 13, "xxxx"); },
       "key \"k\": unknown value type 13; the types are 0 to 12"},
      {"truncated value", [] { return with_key("k", 12, "xxxx"); },
       "key \"k\": byte 37: needs 8 bytes, but only 4 remain"},
      {"neither true nor false", [] { return with_key("k", 7, "\2"); },
       "key \"k\": a boolean must be 0 or 1, not 2"},
      {"string beyond the file", [] { return with_key("k", 8, gguf_bytes(kMaxU64)); },
       "key \"k\": byte 45: needs 1 bytes, but only 0 remain"},
      {"string too long",
       [] { return with_key("k", 8, gguf_text(std::string((4U << 20U) + 1, 'x'))); },
       "key \"k\": a string of 4194305 bytes; at most 4194304 are read"},
      {"string not UTF-8", [] { return with_key("k", 8, gguf_text("ab\xC0")); },
       "key \"k\": a string with invalid UTF-8 at byte 2"},
      {"list of an unknown type", [] { return with_key("k", kGgufList, list(99, 0)); },
       "key \"k\": unknown value type 99"},
      {"list beyond the file", [] { return with_key("k", kGgufList, list(5, 1000, "xxxx")); },
       "key \"k\": 1000 values do not fit in the remaining 4 bytes"},
      {"list of maximal size", [] { return with_key("k", kGgufList, list(0, kMaxU64, "xxxx")); },
       "key \"k\": 18446744073709551615 values do not fit in the remaining 4 bytes"},
      {"more values than the limit",
       [] {
         const std::uint64_t size = (2U << 20U) + 1;
         return with_key("k", kGgufList, list(0, size, std::string(size, '\0')));
       },
       "key \"k\": 2097153 values; at most 2097152 are read"},
      {"more values than the limit, in two lists",
       [] {
         GgufWriter writer;
         const std::uint64_t size = 3U << 19U;
         writer.key("a", kGgufList, list(0, size, std::string(size, '\0')));
         writer.key("b", kGgufList, list(0, size, std::string(size, '\0')));
         return writer.bytes();
       },
       "key \"b\": 1572864 values; at most 524288 are read"},
      {"truncated string in a list",
       [] { return with_key("k", kGgufList, list(8, 2, gguf_text("a") + gguf_bytes(kMaxU64))); },
       "key \"k\": value 1: byte 66: needs 1 bytes, but only 0 remain"},
      {"lists too deep",
       [] {
         std::string value = list(0, 0);
         for (int depth = 0; depth < 4; ++depth) {
           value = list(kGgufList, 1, value);
         }
         return with_key("k", kGgufList, value);
       },
       "lists nested deeper than 4"},
      {"one of several files",
       [] { return with_key("split.count", 2, gguf_bytes<std::uint16_t>(3)); },
       "key \"split.count\": split files are not supported"},
      // -- alignment
      {"alignment 0", [] { return aligned_to(4, gguf_bytes(0U)); },
       "key \"general.alignment\": must be a power of two from 8 to 65536"},
      {"alignment 48", [] { return aligned_to(4, gguf_bytes(48U)); }, "must be a power of two"},
      {"alignment 4", [] { return aligned_to(4, gguf_bytes(4U)); }, "must be a power of two"},
      {"huge alignment", [] { return aligned_to(10, gguf_bytes(std::uint64_t{1} << 63U)); },
       "must be a power of two"},
      {"alignment is a string", [] { return aligned_to(8, gguf_text("32")); },
       "must be a power of two"},
      // -- tensors
      {"empty name", [] { return with_tensor("", {4}, 0); }, "tensor 0: a name must not be empty"},
      {"name too long", [] { return with_tensor(std::string(65, 't'), {4}, 0); },
       "tensor 0: a string of 65 bytes; at most 64 are read"},
      {"name not UTF-8", [] { return with_tensor("\xED\xA0\x80", {4}, 0); },
       "tensor 0: a string with invalid UTF-8 at byte 0"},
      {"name with a NUL", [] { return with_tensor(std::string("a\0b", 3), {4}, 0); },
       "tensor 0: a name must not contain control characters"},
      {"name twice", [] { return two_at(0, 32, "a"); }, "tensor \"a\": appears twice"},
      {"no dimensions", [] { return with_tensor("a", {}, 0) + kFour; },
       "tensor \"a\": 0 dimensions; there must be 1 to 4"},
      {"five dimensions",
       [] {
         return with_tensor("a", {1, 1, 1, 1, 4}, 0);
       },
       "tensor \"a\": 5 dimensions; there must be 1 to 4"},
      {"dimension 0",
       [] {
         return with_tensor("a", {4, 0}, 0);
       },
       "tensor \"a\": dimension 1 must be 1 to 2^63-1"},
      {"maximal dimension", [] { return with_tensor("a", {kMaxU64}, 0); },
       "tensor \"a\": dimension 0 must be 1 to 2^63-1"},
      {"dimensions whose product wraps to 4",
       [] {
         return with_tensor("a", {4194305, 4194305, 211106198978564}, 0);
       },
       "tensor \"a\": its dimensions need more than 2^63-1 bytes"},
      {"number of bytes that overflows",
       [] { return with_tensor("a", {std::uint64_t{1} << 62U}, 0); },
       "tensor \"a\": its dimensions need more than 2^63-1 bytes"},
      {"more data than in the file", [] { return with_tensor("a", {5}, 0); },
       "tensor \"a\": needs 20 bytes at offset 0, but the data area has 16"},
      {"unsupported type", [] { return with_tensor("blk.0.attn_q.weight", {256}, 12); },
       "tensor \"blk.0.attn_q.weight\": type Q4_K; only F32, F16, BF16 and Q8_0 are supported"},
      {"integers", [] { return with_tensor("a", {4}, 26); }, "tensor \"a\": type I32; only F32"},
      {"type that was removed", [] { return with_tensor("a", {32}, 4); },
       "tensor \"a\": type 4 is unknown"},
      {"maximal type", [] { return with_tensor("a", {4}, ~0U); },
       "tensor \"a\": type 4294967295 is unknown"},
      {"rows that end inside a block",
       [] {
         return with_tensor("a", {33, 32}, 8);
       },
       "tensor \"a\": rows of 33 elements; Q8_0 needs a multiple of 32"},
      {"too few blocks", [] { return with_tensor("a", {64}, 8, std::string(34, '\0')); },
       "tensor \"a\": needs 68 bytes at offset 0, but the data area has 34"},
      {"size of blocks that overflows", [] { return with_tensor("a", {kMaxSigned - 31}, 8); },
       "tensor \"a\": its dimensions need more than 2^63-1 bytes"},
      {"misaligned offset", [] { return with_tensor("a", {4}, 0, kFour, 8); },
       "tensor \"a\": offset 8 is not a multiple of the alignment, 32"},
      {"gap at the beginning", [] { return two_at(32, 64); },
       "tensor \"a\": leaves a gap before it: begins at 32, expected 0"},
      {"gap between", [] { return two_at(0, 64); },
       "tensor \"b\": leaves a gap before it: begins at 64, expected 32"},
      {"both at one offset", [] { return two_at(0, 0); },
       "tensor \"b\": overlaps the tensor before it: begins at 0, expected 32"},
      {"begins inside another",
       [] {
         GgufWriter writer;
         writer.tensor("a", {16}, 0, kFour + kFour + kFour + kFour, 0);
         writer.tensor("b", {4}, 0, kFour, 32);
         return writer.bytes();
       },
       "tensor \"b\": overlaps the tensor before it: begins at 32, expected 64"},
      {"maximal offset", [] { return with_tensor("a", {4}, 0, kFour, kMaxU64 - 31); },
       "tensor \"a\": leaves a gap before it: begins at 18446744073709551584"},
      {"truncated data", [=] { return cut(96 + 15); },
       "tensor \"a\": needs 16 bytes at offset 0, but the data area has 15"},
      {"no data", [=] { return cut(96); }, "tensor \"a\": needs 16 bytes"},
      {"truncated padding",
       [] {
         const std::string bytes = with_tensor("a", {4}, 0);
         return bytes.substr(0, bytes.size() - 16 - 1);
       },
       "data begins at byte 64, but the file has 63 bytes"},
      {"bytes after the end", [] { return with_tensor("a", {4}, 0) + std::string(17, '\0'); },
       "17 bytes follow the last tensor"},
  };
  return all;
}

TEST(GgufBadInputTest, EveryMalformedFileIsRefusedInOneLine) {
  test::TemporaryDirectory directory(test::memory_directory_path());
  const std::filesystem::path path = directory.path() / "x.gguf";
  PosixFileSystem files;
  for (const Case& c : cases()) {
    ASSERT_TRUE(write_file(files, path, c.bytes()).ok());
    const ReadableFile file = ReadableFile::open(path).value();
    for (const GgufLists lists : {GgufLists::kRead, GgufLists::kSkip}) {
      const Status status = read_gguf_header(file, lists).status();
      EXPECT_FALSE(status.ok()) << c.name;
      EXPECT_THAT(status.message(), HasSubstr(c.message)) << c.name;
      EXPECT_THAT(status.message(), StartsWith(path.string() + ": ")) << c.name;
      EXPECT_EQ(status.message().find('\n'), std::string::npos) << c.name;
    }
  }
  EXPECT_EQ(cases().size(), 70U);
  std::cout << cases().size() << " bad GGUF files refused\n";
}

TEST(GgufBadInputTest, HeaderSizeIsLimited) {
  test::TemporaryDirectory directory(test::memory_directory_path());
  const std::filesystem::path path = directory.path() / "x.gguf";
  PosixFileSystem files;
  ASSERT_TRUE(write_file(files, path, with_key("k", 8, gguf_text(std::string(100, 'x')))).ok());
  GgufLimits limits;
  limits.max_header_bytes = 100;
  const ReadableFile file = ReadableFile::open(path).value();
  EXPECT_THAT(read_gguf_header(file, GgufLists::kRead, limits).status().message(),
              HasSubstr("key \"k\": byte 45: the header exceeds the limit of 100 bytes"));
}

// A file that is truncated at any byte is refused.
TEST(GgufBadInputTest, EveryTruncationIsRefused) {
  GgufWriter writer;
  writer.text("general.architecture", "llama");
  writer.texts("tokens", {"a", "b"});
  writer.tensor("a", {4}, 0, kFour);
  writer.tensor("b", {32, 2}, 8, std::string(68, '\0'));
  const std::string whole = writer.bytes();
  test::TemporaryDirectory directory(test::memory_directory_path());
  const std::filesystem::path path = directory.path() / "x.gguf";
  PosixFileSystem files;
  for (std::size_t size = 0; size < whole.size(); ++size) {
    ASSERT_TRUE(write_file(files, path, whole.substr(0, size)).ok());
    const ReadableFile file = ReadableFile::open(path).value();
    EXPECT_FALSE(read_gguf_header(file, GgufLists::kRead).ok()) << size;
  }
}

}  // namespace
}  // namespace tidemill::engines
