// SPDX-License-Identifier: Apache-2.0
// How a product walks rows and panels, whatever its elements are.
//
// `Elements` says what a tile of them is: `kMostRows`, the rows of the tallest;
// `panels_beside(rows)`, panels side by side in a tile of so many rows; `kRowBytes` and
// `kPanelBytes` of one element of x and of a panel; and `tile<kRows, kPanels, kAhead>(job, row,
// panel)`, which computes one.
#pragma once

#include <cstdint>

#include "engines/ops/cpu/kernels.hpp"
#include "engines/ops/cpu/vec.hpp"

namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA {

// Bytes of x that stay in the second-level cache while the panels pass by; or of panels, when these
// are so few that the rows of x pass by instead, and y is written row after row.
inline constexpr std::int64_t kRowBlockBytes = std::int64_t{512} * 1024;
inline constexpr std::int64_t kPanelBlockBytes = std::int64_t{256} * 1024;

// Whether a tile asks for the panels that come after its own while it computes. The last tile of
// several rows does: it leaves the memory idle, whose own look-ahead ends with a panel. One row
// keeps the memory busy by itself.
enum class Ahead { kNothing, kNextPanels };
inline constexpr int kLeastRowsToFetch = 4;

// Asks for one step of the next panels, to the second-level cache.
template <int kPanels, Ahead kAhead, class Panel>
inline void fetch_ahead(const Panel* panels, std::int64_t panel_stride) {
  if constexpr (kAhead == Ahead::kNextPanels) {
#pragma GCC unroll 16
    for (int v = 0; v < kPanels; ++v) {
      __builtin_prefetch(panels + (kPanels + v) * panel_stride, 0, 2);
    }
  }
}

// The same where panels lie one behind the other: asks for `kPanels` lines of them from `next` on,
// and moves it past them. One pointer leaves the other registers to the rows of a tall tile.
template <int kPanels, Ahead kAhead, class Panel>
inline void fetch_lines(const Panel*& next) {
  if constexpr (kAhead == Ahead::kNextPanels) {
    constexpr std::int64_t kLine = 64 / sizeof(Panel);
#pragma GCC unroll 16
    for (int v = 0; v < kPanels; ++v) {
      __builtin_prefetch(next + v * kLine, 0, 2);
    }
    next += kPanels * kLine;
  }
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

// The rows of the range over the panels of one tile's width, in tiles of kRows and kRows - 1 rows:
// the lower ones first.
template <int kRows, int kPanels, class Elements>
void product_column(const ProductJob& job, RowRange rows, std::int64_t panel) {
  if constexpr (kRows > 1) {
    const std::int64_t tiles = (rows.end - rows.first + kRows - 1) / kRows;
    for (std::int64_t low = tiles * kRows - (rows.end - rows.first); low > 0; --low) {
      Elements::template tile<kRows - 1, kPanels, Ahead::kNothing>(job, rows.first, panel);
      rows.first += kRows - 1;
    }
  }
  const bool fetch =
      kRows >= kLeastRowsToFetch && (panel + std::int64_t{2} * kPanels) * kPanel <= job.cols;
  for (; rows.first + kRows + (fetch ? 1 : 0) <= rows.end; rows.first += kRows) {
    Elements::template tile<kRows, kPanels, Ahead::kNothing>(job, rows.first, panel);
  }
  if (fetch && rows.first < rows.end) {
    Elements::template tile<kRows, kPanels, Ahead::kNextPanels>(job, rows.first, panel);
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

template <class Elements>
void product(const ProductJob& job) {
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
              product_column<kRows, kPanels, Elements>(job, rows, panel);
            });
            panel += width;
          }
        });
  }
}

}  // namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA
