// SPDX-License-Identifier: Apache-2.0
// Draws curves with characters.
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

/// Which characters a curve is drawn with.
enum class ChartGlyphs : std::uint8_t { kBraille, kAscii };

/// The size and the characters of a chart.
struct ChartStyle {
  std::size_t columns = 80;  // including the labels of the axis; at least 30
  std::size_t rows = 8;      // of the curve alone; at least 2
  ChartGlyphs glyphs = ChartGlyphs::kAscii;
};

/// Draws a curve through `points`, which must be sorted by x. The result has the title, `rows`
/// lines with labels on the left, and an axis with the first and last x at the bottom. Points in
/// the same column are drawn as their mean, and the labels show the range of these means. Every
/// line ends with a newline.
[[nodiscard]] std::string draw_chart(const std::string& title, std::span<const ChartPoint> points,
                                     const ChartStyle& style);

}  // namespace tidemill::launcher
