// SPDX-License-Identifier: Apache-2.0
// UTF-8: decoding, repair and white space.
#include "base/text/utf8.hpp"

#include <gtest/gtest.h>

namespace tidemill {
namespace {

TEST(Utf8, RoundTripsEveryScalarValue) {
  int count = 0;
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    append_utf8(c, text);
    const Utf8Step step = read_utf8(text, 0);
    ASSERT_EQ(step.kind, Utf8Step::Kind::kCharacter) << static_cast<std::uint32_t>(c);
    ASSERT_EQ(step.length, text.size());
    ASSERT_EQ(step.code_point, c);
    ++count;
  }
  EXPECT_EQ(count, 0x110000 - 0x800);
}

TEST(Utf8, FindsTheFirstInvalidByte) {
  EXPECT_EQ(find_invalid_utf8("caf\xC3\xA9"), std::nullopt);
  EXPECT_EQ(find_invalid_utf8("ab\xFF"), 2U);
  EXPECT_EQ(find_invalid_utf8("a\xC0\x80"), 1U) << "overlong";
  EXPECT_EQ(find_invalid_utf8("\xED\xA0\x80"), 0U) << "surrogate";
  EXPECT_EQ(find_invalid_utf8("\xF4\x90\x80\x80"), 0U) << "beyond U+10FFFF";
  EXPECT_EQ(find_invalid_utf8("abc\xE2\x82"), 3U) << "cut";
}

TEST(Utf8, RepairsByMaximalPrefixAndKeepsTheTail) {
  std::string out;
  // The example of the Unicode standard, table 3-8.
  const std::string_view bytes =
      "a\xF1\x80\x80\xE1\x80\xC2"
      "b\x80"
      "c\x80\xBF"
      "d";
  EXPECT_EQ(append_repaired_utf8(bytes, out), bytes.size());
  EXPECT_EQ(out, "a\uFFFD\uFFFD\uFFFDb\uFFFDc\uFFFD\uFFFDd");
  out.clear();
  EXPECT_EQ(append_repaired_utf8("x\xF0\x9F\x91", out), 1U);
  EXPECT_EQ(out, "x");
}

TEST(Utf8, CountsCodePoints) {
  EXPECT_EQ(count_code_points("a\u00E9\u6C34\U0001F680"), 4U);
}

TEST(Utf8, WhiteSpaceMatchesTheUnicodeProperty) {
  for (const char32_t c : {0x20, 0x85, 0xA0, 0x1680, 0x2009, 0x2028, 0x202F, 0x205F, 0x3000}) {
    EXPECT_TRUE(is_white_space(c)) << static_cast<std::uint32_t>(c);
  }
  for (const char32_t c : {0x1C, 0x1F, 0x180E, 0x200B, 0xFEFF}) {
    EXPECT_FALSE(is_white_space(c)) << static_cast<std::uint32_t>(c);
  }
}

}  // namespace
}  // namespace tidemill
