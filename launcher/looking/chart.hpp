// SPDX-License-Identifier: Apache-2.0
// Curves drawn with characters.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace tidemill::launcher {

/// One point of a curve.
struct ChartPoint {
  double x = 0.0;
  double y = 0.0;  // finite
};

enum class ChartGlyphs : std::uint8_t { kBraille, kAscii };

struct ChartStyle {
  std::size_t columns = 80;  // with the axis's numbers; at least 30
  std::size_t rows = 8;      // of the curve alone; at least 2
  ChartGlyphs glyphs = ChartGlyphs::kAscii;
};

/// Draws a curve through `points`, whose x rise: a title, `rows` lines with numbers at the left, an
/// axis with the first and last x below. Points that fall into one column are drawn by their mean;
/// the numbers of the axis are those of what is drawn. Every line ends with a newline.
[[nodiscard]] std::string draw_chart(const std::string& title, std::span<const ChartPoint> points,
                                     const ChartStyle& style);

}  // namespace tidemill::launcher
