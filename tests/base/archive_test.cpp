// SPDX-License-Identifier: Apache-2.0
#include "base/archive.hpp"

#include <gtest/gtest.h>

namespace tidemill {
namespace {

enum class Color : std::uint8_t { kRed, kBlue };

struct Inner {
  double x = 0.0;
  std::string name;
};
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, Inner& value) {
  return f(value.x, value.name);
}

struct Outer {
  std::uint64_t count = 0;
  Color color = Color::kRed;
  std::vector<Inner> inners;
  Buffer payload;
};
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, Outer& value) {
  return f(value.count, value.color, value.inners, value.payload);
}

std::vector<std::byte> example() {
  Outer outer;
  outer.count = 7;
  outer.color = Color::kBlue;
  outer.inners = {{1.5, "a"}, {-2.0, ""}};
  outer.payload = Buffer::adopt(std::vector<float>{1.0F, 2.0F}, DType::kF32);
  ArchiveWriter writer;
  writer(outer);
  return writer.take();
}

TEST(Archive, ReadsBackWhatWasWritten) {
  const auto bytes = example();
  Outer outer;
  ArchiveReader reader(bytes);
  reader(outer);
  ASSERT_TRUE(reader.finish().ok()) << reader.finish().to_string();
  EXPECT_EQ(outer.count, 7U);
  EXPECT_EQ(outer.color, Color::kBlue);
  ASSERT_EQ(outer.inners.size(), 2U);
  EXPECT_EQ(outer.inners[0].name, "a");
  EXPECT_EQ(outer.inners[1].x, -2.0);
  EXPECT_EQ(outer.payload.as<float>()[1], 2.0F);
  EXPECT_EQ(outer.payload.identity().dtype, DType::kF32);
}

TEST(Archive, RefusesEveryTruncationAndTrailingBytes) {
  auto bytes = example();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    Outer outer;
    const auto part = std::span<const std::byte>(bytes).first(size);
    ArchiveReader reader(part);
    reader(outer);
    EXPECT_EQ(reader.finish().code(), Errc::kCorruptData) << size;
  }
  bytes.push_back(std::byte{0});
  Outer outer;
  ArchiveReader reader(bytes);
  reader(outer);
  EXPECT_EQ(reader.finish().message(), "archive has 1 bytes too many");
}

TEST(Archive, AWrongLengthAllocatesNothing) {
  ArchiveWriter writer;
  std::uint64_t length = ~std::uint64_t{0} / 2;
  writer(length);
  const auto bytes = writer.take();
  std::vector<std::uint64_t> values;
  ArchiveReader reader(bytes);
  reader(values);
  EXPECT_FALSE(reader.finish().ok());
  EXPECT_TRUE(values.empty());
}

}  // namespace
}  // namespace tidemill
