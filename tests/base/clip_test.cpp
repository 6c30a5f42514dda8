// SPDX-License-Identifier: Apache-2.0
#include "base/text/clip.hpp"

#include <gtest/gtest.h>

namespace tidemill {
namespace {

TEST(Clipped, IsOneLine) {
  EXPECT_EQ(clipped(""), "");
  EXPECT_EQ(clipped("a\nb\x1B[31m\x7F"), "a?b?[31m?");
  EXPECT_EQ(clipped("t\xC3\xBC"), "t\xC3\xBC");
}

// A log with other bytes is not a text file, and C1 controls steer terminals like escapes do.
TEST(Clipped, IsUtf8WithoutControls) {
  EXPECT_EQ(clipped("a\xFF\xFE"
                    "b\xE2\x82"),
            "a??b?");
  EXPECT_EQ(clipped("\xC2\x9B"
                    "31m\xC2\x85\xC2\xA0"),
            "?31m?\xC2\xA0");
  EXPECT_EQ(clipped(std::string(70, '\x9B')), std::string(60, '?') + "...");
}

TEST(Clipped, IsCutAtTheLimitWithDots) {
  EXPECT_EQ(clipped(std::string(60, 'x')), std::string(60, 'x'));
  EXPECT_EQ(clipped(std::string(61, 'x')), std::string(60, 'x') + "...");
  EXPECT_EQ(clipped("abcdef", 5), "abcde...");
}

TEST(Clipped, KeepsOnlyWholeCharacters) {
  const std::string euros = "\xE2\x82\xAC\xE2\x82\xAC\xE2\x82\xAC";
  EXPECT_EQ(clipped(euros, 9), euros);
  for (const std::size_t bytes : {6U, 7U, 8U}) {
    EXPECT_EQ(clipped(euros, bytes), "\xE2\x82\xAC\xE2\x82\xAC...") << bytes;
  }
  EXPECT_EQ(clipped(euros, 2), "...");
}

}  // namespace
}  // namespace tidemill
