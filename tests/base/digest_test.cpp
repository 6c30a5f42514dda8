// SPDX-License-Identifier: Apache-2.0
#include "base/digest.hpp"

#include <gtest/gtest.h>

#include "base/files/tensor_file.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tidemill {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

TEST(Digest, IsXxh3Of128Bits) {
  // The published value of the empty input, and the output of `xxhsum -H2` for the others.
  EXPECT_EQ(digest_bytes({}), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(digest_bytes(bytes_of("a")), "a96faf705af16834e6c632b61e964e1f");
  EXPECT_EQ(digest_bytes(bytes_of("abc")), "06b05ab6733a618578af5f94892f3950");
}

TEST(Digest, DoesNotDependOnTheCuts) {
  std::string text;
  for (int i = 0; i < 3000; ++i) {
    text += static_cast<char>('a' + i % 26);
  }
  for (const std::size_t cut : {0U, 1U, 240U, 1024U, 2999U, 3000U}) {
    DigestHasher hasher;
    hasher.update(bytes_of(text).first(cut));
    hasher.update(bytes_of(text).subspan(cut));
    EXPECT_EQ(hasher.digest(), digest_bytes(bytes_of(text))) << cut;
  }
}

Tensor floats(std::vector<std::int64_t> shape, std::vector<float> values) {
  return {DType::kF32, std::move(shape), Buffer::adopt(std::move(values), DType::kF32)};
}

TEST(TensorDigest, CoversEveryPart) {
  const TensorMap base{{"a", floats({2}, {1.0F, 2.0F})}, {"b", floats({}, {3.0F})}};
  std::vector<TensorMap> others(8, base);
  others[0].erase("b");
  others[1]["c"] = floats({0}, {});
  others[2] = {{"a", base.at("a")}, {"bb", base.at("b")}};
  others[3]["a"] = floats({1, 2}, {1.0F, 2.0F});
  others[4]["a"] = floats({2}, {2.0F, 1.0F});
  others[5]["b"] = floats({1}, {3.0F});
  others[6]["b"].dtype = DType::kI32;
  others[7] = {{"a", base.at("b")}, {"b", base.at("a")}};
  for (std::size_t i = 0; i < others.size(); ++i) {
    EXPECT_NE(digest_tensors(others[i]), digest_tensors(base)) << i;
  }
  EXPECT_EQ(digest_tensors(TensorMap(base)), digest_tensors(base));
}

TEST(TensorDigest, PartsOfATensorGiveItsDigest) {
  const TensorMap tensors{{"a", floats({3, 2}, {1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.0F})},
                          {"b", floats({}, {3.0F})}};
  for (std::size_t cut = 0; cut <= 24; cut += 4) {
    TensorHasher hasher(2);
    const auto bytes = tensors.at("a").data.bytes();
    hasher.begin("a", DType::kF32, tensors.at("a").shape, bytes.size());
    hasher.append(bytes.first(cut));
    hasher.append(bytes.subspan(cut));
    hasher.add("b", tensors.at("b"));
    EXPECT_EQ(hasher.digest(), digest_tensors(tensors)) << cut;
  }
}

// Pins the format, because checkpoints of other builds contain digests.
TEST(TensorDigest, NeverChanges) {
  std::string canonical = "tidemill tensors 1";
  const auto integer = [&canonical](char value) { canonical += value + std::string(7, '\0'); };
  integer(1);
  integer(2);
  canonical += "ab";
  integer(2);
  canonical += "U8";
  integer(1);
  integer(3);
  integer(3);
  canonical += "xyz";
  const TensorMap tensors{{"ab", {DType::kU8, {3}, Buffer::copy_of(bytes_of("xyz"))}}};
  EXPECT_EQ(digest_tensors(tensors), digest_bytes(bytes_of(canonical)));
}

TEST(TensorDigest, DoesNotDependOnTheFile) {
  const test::TemporaryDirectory directory;
  PosixFileSystem files;
  const TensorMap tensors{{"a", floats({2}, {1.0F, 2.0F})},
                          {"b", {DType::kU8, {1}, Buffer::copy_of(bytes_of("x"))}}};
  const auto path = directory.path() / "t.safetensors";
  ASSERT_TRUE(write_tensor_file(files, path, tensors, {{"any", "thing"}}).ok());
  const auto file = read_tensor_file(path, TensorPlacement::kMapped);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(digest_tensors(file.value().tensors), digest_tensors(tensors));
}

}  // namespace
}  // namespace tidemill
