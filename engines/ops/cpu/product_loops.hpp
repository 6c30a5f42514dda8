// SPDX-License-Identifier: Apache-2.0
// How a product walks rows and panels, whatever its elements are.
//
// `Elements` says what a tile of them is: `kMostRows`, the rows of the tallest;
// `panels_beside(rows)`, panels side by side in a tile of so many rows; `kStreamRows`, so few rows
// that memory is waited for: a tile of them has one panel, so that all panels are one stream, of
// which it asks for `kStreamLines` lines in a step; `kRowBytes` and `kPanelBytes` of one element of
// x and of a panel; and `tile<kRows, kPanels, kLines>(job, row, panel, next)`, which computes one
// and asks for `kLines` lines from `next` on in each step of the depth.
#pragma once

#include <cstdint>

#include "engines/ops/cpu/kernels.hpp"
#include "engines/ops/cpu/vec.hpp"

namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA {

// Bytes of x that stay in the second-level cache while the panels pass by; or of panels, when these
// are so few that the rows of x pass by instead, and y is written row after row.
inline constexpr std::int64_t kRowBlockBytes = std::int64_t{512} * 1024;
inline constexpr std::int64_t kPanelBlockBytes = std::int64_t{256} * 1024;

// How far ahead a stream of panels is asked for, in bytes: the processor's own look-ahead ends with
// a page.
inline constexpr std::int64_t kStreamAhead = std::int64_t{8} * 1024;

// Asks for `kLines` lines from `next` on, to the second-level cache, and moves it past them. One
// pointer leaves the other registers to the rows of a tall tile.
template <int kLines>
inline void fetch_lines(const std::byte*& next) {
  constexpr std::int64_t kLine = 64;
#pragma GCC unroll 16
  for (int i = 0; i < kLines; ++i) {
    __builtin_prefetch(next + i * kLine, 0, 2);
  }
  next += kLines * kLine;
}

// Adds bias and old value to 16 sums and stores those that have a column.
inline void finish(const ProductJob& job, std::int64_t row, std::int64_t panel, Vec value) {
  const std::int64_t column = panel * kPanel;
  const std::int64_t count = job.cols - column;
  float* y = job.y + row * job.y_stride + column;
  if (job.bias != nullptr) {
    value = value + load_some(job.bias + column, count);
  }
  if (job.store == Store::kAdd) {
    value = load_some(y, count) + value;
  }
  store_some(y, value, count);
}

// Whether all columns of a tile exist and nothing but an old value is added: then storing it is a
// fixed run of loads, adds and stores, which is a few per cent of a tile of depth 300.
template <int kPanels>
inline bool is_plain(const ProductJob& job, std::int64_t panel) {
  return job.bias == nullptr && (panel + kPanels) * kPanel <= job.cols;
}

// Asks for the place of a tile's results, to be written.
template <int kRows, int kPanels>
inline void fetch_results(const ProductJob& job, std::int64_t row, std::int64_t panel) {
  const float* y = job.y + row * job.y_stride + panel * kPanel;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int p = 0; p < kPanels; ++p) {
      __builtin_prefetch(y + p * kPanel, 1, 3);
    }
    y += job.y_stride;
  }
}

template <int kRows, int kPanels, Store kStore>
inline void store_plain(const ProductJob& job, std::int64_t row, std::int64_t panel,
                        const Register (&sums)[kRows][kPanels * kRegisters]) {
  float* y = job.y + row * job.y_stride + panel * kPanel;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kPanels * kRegisters; ++v) {
      Register value = sums[r][v];
      if constexpr (kStore == Store::kAdd) {
        value = load_register(y + v * kRegisterFloats) + value;
      }
      store_register(y + v * kRegisterFloats, value);
    }
    y += job.y_stride;
  }
}

// Stores a tile of sums, `kPanels` sixteens a row, of which some have no column or get a bias.
template <int kRows, int kPanels>
[[gnu::noinline]] void finish_each(const ProductJob& job, std::int64_t row, std::int64_t panel,
                                   const float* sums) {
  for (int r = 0; r < kRows; ++r) {
    for (int p = 0; p < kPanels; ++p) {
      finish(job, row + r, panel + p, load(sums + (r * kPanels + p) * kPanel));
    }
  }
}

// Stores a tile of sums. Where they are not plain they are copied, so that for the others they can
// stay in registers.
template <int kRows, int kPanels>
inline void finish_tile(const ProductJob& job, std::int64_t row, std::int64_t panel,
                        const Register (&sums)[kRows][kPanels * kRegisters]) {
  if (!is_plain<kPanels>(job, panel)) {
    constexpr std::int64_t kRegistersOfRow = std::int64_t{kPanels} * kRegisters;
    float copy[kRows * kRegistersOfRow * kRegisterFloats];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < kPanels * kRegisters; ++v) {
        store_register(copy + (r * kRegistersOfRow + v) * kRegisterFloats, sums[r][v]);
      }
    }
    finish_each<kRows, kPanels>(job, row, panel, copy);
  } else if (job.store == Store::kAdd) {
    store_plain<kRows, kPanels, Store::kAdd>(job, row, panel, sums);
  } else {
    store_plain<kRows, kPanels, Store::kOverwrite>(job, row, panel, sums);
  }
}

// Calls f.template operator()<n>() with the compile-time constant `n` in [1, kMost].
template <int kMost, class F>
void with_number(std::int64_t n, F f) {
  if constexpr (kMost > 1) {
    if (n < kMost) {
      with_number<kMost - 1>(n, f);
      return;
    }
  }
  f.template operator()<kMost>();
}

// Which tiles of a column ask for the panels behind their own while they compute: the last ones,
// each for its share, so that a line is asked for in each step of the depth as long as there are
// tiles enough. Asked for at once, panels come no faster than memory gives them, and the tile
// waits.
struct Ahead {
  const std::byte* next = nullptr;  // none: nothing is asked for
  std::int64_t tile_bytes = 0;      // what a tile asks for
  std::int64_t waiting = 0;         // tiles before the first that asks
  int lines = 0;                    // in a step

  template <int kPanels, class Elements>
  static Ahead of(const ProductJob& job, std::int64_t panel, std::int64_t tiles) {
    const std::int64_t panel_bytes = job.panel_stride * Elements::kPanelBytes;
    if ((panel + std::int64_t{2} * kPanels) * kPanel > job.cols) {
      return {};
    }
    const std::int64_t asking = tiles < kPanels ? tiles : kPanels;
    const auto lines = static_cast<int>((kPanels + asking - 1) / asking);
    const auto* panels = static_cast<const std::byte*>(job.panels);
    return {panels + (panel + kPanels) * panel_bytes, lines * panel_bytes, tiles - asking, lines};
  }
};

// `count` tiles of kRows rows from `row` on. Returns the row behind them.
template <int kRows, int kPanels, class Elements>
std::int64_t product_tiles(const ProductJob& job, std::int64_t row, std::int64_t panel,
                           std::int64_t count, Ahead& ahead) {
  for (std::int64_t i = 0; i < count; ++i, row += kRows) {
    if (ahead.next == nullptr || ahead.waiting-- > 0) {
      Elements::template tile<kRows, kPanels, 0>(job, row, panel, nullptr);
    } else {
      with_number<kPanels>(ahead.lines, [&]<int kLines>() {
        Elements::template tile<kRows, kPanels, kLines>(job, row, panel, ahead.next);
      });
      ahead.next += ahead.tile_bytes;
    }
  }
  return row;
}

// The rows of the range over the panels of one tile's width, in tiles of kRows and kRows - 1 rows:
// the lower ones first.
template <int kRows, int kPanels, class Elements>
void product_column(const ProductJob& job, RowRange rows, std::int64_t panel, bool may_ask) {
  const std::int64_t count = rows.end - rows.first;
  const std::int64_t tiles = (count + kRows - 1) / kRows;
  const std::int64_t low = tiles * kRows - count;
  Ahead ahead = may_ask ? Ahead::of<kPanels, Elements>(job, panel, tiles) : Ahead{};
  if constexpr (kRows > 1) {
    rows.first = product_tiles<kRows - 1, kPanels, Elements>(job, rows.first, panel, low, ahead);
  }
  product_tiles<kRows, kPanels, Elements>(job, rows.first, panel, tiles - low, ahead);
}

// Rows of each tile when `rows` are cut into tiles of even height.
inline std::int64_t even_height(std::int64_t rows, std::int64_t most) {
  const std::int64_t tiles = (rows + most - 1) / most;
  return (rows + tiles - 1) / tiles;
}

// Panels of the next tile: never one alone, which would leave most of the registers idle, after a
// wider one.
inline std::int64_t next_width(std::int64_t left, std::int64_t most) {
  return left <= most ? left : left == most + 1 && most > 2 ? most - 1 : most;
}

// Few rows over the panels, one after the other.
template <int kRows, class Elements>
void product_stream(const ProductJob& job) {
  const std::int64_t panel_bytes = job.panel_stride * Elements::kPanelBytes;
  const auto* next = static_cast<const std::byte*>(job.panels) + kStreamAhead;
  for (std::int64_t panel = 0; panel < panels_for(job.cols); ++panel, next += panel_bytes) {
    Elements::template tile<kRows, 1, Elements::kStreamLines>(job, 0, panel, next);
  }
}

template <class Elements>
void product(const ProductJob& job) {
  if constexpr (Elements::kStreamRows > 0) {
    if (job.rows <= Elements::kStreamRows) {
      with_number<Elements::kStreamRows>(
          job.rows, [&]<int kRows>() { product_stream<kRows, Elements>(job); });
      return;
    }
  }
  constexpr std::int64_t kMostRows = Elements::kMostRows;
  const std::int64_t row_bytes = job.x_stride * Elements::kRowBytes + 1;
  const std::int64_t panels = panels_for(job.cols);
  const bool few_panels = panels * job.panel_stride * Elements::kPanelBytes <= kPanelBlockBytes;
  const std::int64_t fitting = kRowBlockBytes / row_bytes / kMostRows * kMostRows;
  const std::int64_t block = few_panels                 ? kMostRows
                             : fitting < 12 * kMostRows ? 12 * kMostRows
                                                        : fitting;
  for (std::int64_t first = 0; first < job.rows; first += block) {
    const RowRange rows{first, first + block < job.rows ? first + block : job.rows};
    with_number<Elements::kMostRows>(
        even_height(rows.end - rows.first, kMostRows), [&]<int kRows>() {
          constexpr int kWidth = Elements::panels_beside(kRows);
          std::int64_t panel = 0;
          while (panel < panels) {
            const std::int64_t width = next_width(panels - panel, kWidth);
            with_number<kWidth>(width, [&]<int kPanels>() {
              product_column<kRows, kPanels, Elements>(job, rows, panel, first == 0 || !few_panels);
            });
            panel += width;
          }
        });
  }
}

}  // namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA
