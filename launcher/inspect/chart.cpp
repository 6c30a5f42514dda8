// SPDX-License-Identifier: Apache-2.0
#include "launcher/inspect/chart.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <vector>

#include "base/text/utf8.hpp"

namespace tidemill::launcher {
namespace {

constexpr std::size_t kLabelColumns = 10;

std::string label(double value, int digits = 4) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.*g", digits, value);
  return text.data();
}

std::string padded(const std::string& text, std::size_t columns) {
  return std::string(columns - std::min(columns, text.size()), ' ') + text;
}

// A grid of dots, of which each character shows several.
class Canvas {
public:
  explicit Canvas(const ChartStyle& style)
      : glyphs_(style.glyphs),
        across_(style.glyphs == ChartGlyphs::kBraille ? 2 : 1),
        down_(style.glyphs == ChartGlyphs::kBraille ? 4 : 1),
        columns_(style.columns - kLabelColumns - 2),
        rows_(style.rows),
        cells_(columns_ * rows_, 0) {}

  [[nodiscard]] std::size_t width() const { return columns_ * across_; }
  [[nodiscard]] std::size_t height() const { return rows_ * down_; }

  /// Sets the dot in column `x` from the left and row `y` from the bottom.
  void set(std::size_t x, std::size_t y) {
    // The dots of a Braille pattern are numbered 1 2 3 7 down the left column and 4 5 6 8 down the
    // right one. Bit n - 1 stands for dot n. Source: Unicode 15, section 21.1.
    constexpr std::array<std::array<std::uint8_t, 4>, 2> kDots{
        {{0x01, 0x02, 0x04, 0x40}, {0x08, 0x10, 0x20, 0x80}}};
    const std::size_t from_top = height() - 1 - y;
    std::uint8_t& cell = cells_.at(from_top / down_ * columns_ + x / across_);
    cell |= kDots.at(x % across_).at(from_top % down_);
  }

  [[nodiscard]] std::string row(std::size_t from_top) const {
    std::string line;
    for (std::size_t column = 0; column < columns_; ++column) {
      const std::uint8_t cell = cells_.at(from_top * columns_ + column);
      if (cell == 0) {
        line += ' ';
      } else if (glyphs_ == ChartGlyphs::kAscii) {
        line += '*';
      } else {
        append_utf8(U'\u2800' + cell, line);
      }
    }
    line.erase(line.find_last_not_of(' ') + 1);
    return line;
  }

private:
  ChartGlyphs glyphs_;
  std::size_t across_;
  std::size_t down_;
  std::size_t columns_;
  std::size_t rows_;
  std::vector<std::uint8_t> cells_;
};

// Returns the mean of the points in each of `columns` columns, or nothing for a column without
// points.
std::vector<std::optional<double>> columns_of(std::span<const ChartPoint> points,
                                              std::size_t columns) {
  std::vector<double> sums(columns, 0.0);
  std::vector<std::size_t> counts(columns, 0);
  const double first = points.front().x;
  const double range = points.back().x - first;
  for (const ChartPoint& point : points) {
    const double share = range > 0.0 ? (point.x - first) / range : 0.0;
    const auto column = static_cast<std::size_t>(
        std::lround(std::clamp(share, 0.0, 1.0) * static_cast<double>(columns - 1)));
    sums[column] += point.y;
    ++counts[column];
  }
  std::vector<std::optional<double>> means(columns);
  for (std::size_t i = 0; i < columns; ++i) {
    if (counts[i] > 0) {
      means[i] = sums[i] / static_cast<double>(counts[i]);
    }
  }
  return means;
}

// The position of a dot, from the left and from the bottom.
struct Dot {
  std::size_t x = 0;
  std::size_t y = 0;
};

// Draws a line between two dots. `from` is left of `to` and has been set already.
void join(Canvas& canvas, const Dot& from, const Dot& to) {
  const auto between = [](std::size_t first, std::size_t last, double share) {
    return static_cast<std::size_t>(
        std::lround(static_cast<double>(first) +
                    (static_cast<double>(last) - static_cast<double>(first)) * share));
  };
  const std::size_t height = to.y > from.y ? to.y - from.y : from.y - to.y;
  const std::size_t steps = std::max(to.x - from.x, height);
  for (std::size_t i = 1; i <= steps; ++i) {
    const double share = static_cast<double>(i) / static_cast<double>(steps);
    canvas.set(between(from.x, to.x, share), between(from.y, to.y, share));
  }
}

struct Range {
  double low = 0.0;
  double high = 0.0;
};

Range range_of(const std::vector<std::optional<double>>& columns) {
  std::optional<Range> range;
  for (const std::optional<double>& value : columns) {
    if (value) {
      range = range ? Range{std::min(range->low, *value), std::max(range->high, *value)}
                    : Range{*value, *value};
    }
  }
  if (range->low == range->high) {  // puts a horizontal line in the middle
    const double margin = range->low == 0.0 ? 1.0 : std::abs(range->low) / 2.0;
    return {range->low - margin, range->high + margin};
  }
  return *range;
}

void draw(Canvas& canvas, const std::vector<std::optional<double>>& columns, const Range& range) {
  std::optional<Dot> last;
  for (std::size_t x = 0; x < columns.size(); ++x) {
    if (!columns[x]) {
      continue;
    }
    const double share = (*columns[x] - range.low) / (range.high - range.low);
    const auto y =
        static_cast<std::size_t>(std::lround(share * static_cast<double>(canvas.height() - 1)));
    canvas.set(x, y);
    if (last) {
      join(canvas, *last, {x, y});
    }
    last = Dot{x, y};
  }
}

}  // namespace

std::string draw_chart(const std::string& title, std::span<const ChartPoint> points,
                       const ChartStyle& style) {
  std::string out = title + '\n';
  if (points.empty()) {
    return out + padded("no points", kLabelColumns) + '\n';
  }
  const bool braille = style.glyphs == ChartGlyphs::kBraille;
  Canvas canvas(style);
  const auto columns = columns_of(points, canvas.width());
  const Range range = range_of(columns);
  draw(canvas, columns, range);
  for (std::size_t row = 0; row < style.rows; ++row) {
    const bool labeled = row == 0 || row + 1 == style.rows || row == (style.rows - 1) / 2;
    const double share = static_cast<double>(row) / static_cast<double>(style.rows - 1);
    const std::string number =
        labeled ? label(range.high + (range.low - range.high) * share) : std::string();
    out += padded(number, kLabelColumns) +
           (labeled ? (braille ? " ┤" : " +") : (braille ? " │" : " |")) + canvas.row(row) + '\n';
  }
  const std::size_t across = style.columns - kLabelColumns - 2;
  out += std::string(kLabelColumns, ' ') + (braille ? " └" : " +");
  for (std::size_t i = 0; i < across; ++i) {
    out += braille ? "─" : "-";
  }
  constexpr int kAllDigits = 12;  // enough for every step number
  const std::string first = label(points.front().x, kAllDigits);
  const std::string last = label(points.back().x, kAllDigits);
  return out + '\n' + std::string(kLabelColumns + 2, ' ') + first +
         padded(last, across - std::min(across, first.size())) + '\n';
}

}  // namespace tidemill::launcher
