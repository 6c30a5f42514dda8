// SPDX-License-Identifier: Apache-2.0
// Compares drawn curves character by character.
#include "launcher/inspect/chart.hpp"

#include <array>
#include <sstream>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/text/utf8.hpp"

namespace tidemill::launcher {
namespace {

using ::testing::HasSubstr;

TEST(ChartTest, DrawsARisingLineInPlainCharacters) {
  const std::array<ChartPoint, 3> points{{{1, 0.0}, {2, 0.5}, {3, 1.0}}};
  EXPECT_EQ(draw_chart("reward", points, {32, 3, ChartGlyphs::kAscii}),
            "reward\n"
            "         1 +               *****\n"
            "       0.5 +     **********\n"
            "         0 +*****\n"
            "           +--------------------\n"
            "            1                  3\n");
}

TEST(ChartTest, ABrailleCharacterHoldsEightDots) {
  const std::array<ChartPoint, 2> points{{{0, 0.0}, {1, 1.0}}};
  const std::string chart = draw_chart("x", points, {30, 2, ChartGlyphs::kBraille});
  EXPECT_FALSE(find_invalid_utf8(chart).has_value());
  EXPECT_THAT(chart, HasSubstr("         1 ┤         ⣀⣀⡠⠤⠤⠒⠒⠊⠉\n"
                               "         0 ┤⣀⡠⠤⠤⠒⠒⠊⠉⠉\n"));
  EXPECT_EQ(chart.find('*'), std::string::npos);
}

TEST(ChartTest, EveryLineFitsForAnyNumbers) {
  std::vector<ChartPoint> points;
  for (int i = 0; i < 5000; ++i) {
    points.push_back({static_cast<double>(i), (i % 7) * -1.23456789e-12 + (i == 9 ? 1e300 : 0)});
  }
  for (const std::size_t columns : {30U, 80U, 200U}) {
    for (const ChartGlyphs glyphs : {ChartGlyphs::kAscii, ChartGlyphs::kBraille}) {
      std::istringstream lines(draw_chart("y", points, {columns, 8, glyphs}));
      std::size_t count = 0;
      for (std::string line; std::getline(lines, line); ++count) {
        EXPECT_LE(count_code_points(line), columns) << line;
      }
      EXPECT_EQ(count, 1U + 8U + 2U);
    }
  }
}

TEST(ChartTest, DrawsAHorizontalLineOnePointAndNoPoints) {
  const std::array<ChartPoint, 2> flat{{{1, 5.0}, {9, 5.0}}};
  EXPECT_THAT(draw_chart("x", flat, {30, 3, ChartGlyphs::kAscii}),
              HasSubstr("         5 +******************\n"));
  const std::array<ChartPoint, 1> one{{{7, 0.0}}};
  EXPECT_THAT(draw_chart("x", one, {30, 3, ChartGlyphs::kAscii}), HasSubstr("         0 +*\n"));
  EXPECT_EQ(draw_chart("x", {}, {30, 3, ChartGlyphs::kAscii}), "x\n no points\n");
}

}  // namespace
}  // namespace tidemill::launcher
