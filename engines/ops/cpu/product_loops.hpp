// SPDX-License-Identifier: Apache-2.0
// The loops of a product over rows and panels, for all types of elements.
//
// A template parameter `Elements` describes the tiles of one type of elements:
//   kMaxRows                rows of the tallest tile;
//   panels_per_tile(rows)   panels in a tile of that many rows;
//   kStreamRows             with at most this many rows, a product waits for memory. Its tiles then
//                           have one panel, so that all panels are read as a single stream;
//   kStreamLines            cache lines of that stream that a tile prefetches in each step;
//   kRowBytes, kPanelBytes  size of one element of x and of a panel;
//   tile<kRows, kPanels, kLines>(job, row, panel, next)
//                           computes one tile, and prefetches `kLines` cache lines in each step of
//                           the depth, starting at `next`.
#pragma once

#include <cstdint>

#include "engines/ops/cpu/kernels.hpp"
#include "engines/ops/cpu/vec.hpp"

namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA {

// Size of a block of rows of x that stays in the second-level cache while the panels are streamed.
// If all panels of a job fit `kPanelBlockBytes`, they stay in the cache instead, the rows of x are
// streamed, and y is written row after row.
inline constexpr std::int64_t kRowBlockBytes = std::int64_t{512} * 1024;
inline constexpr std::int64_t kPanelBlockBytes = std::int64_t{256} * 1024;

// How far ahead a stream of panels is prefetched. The hardware prefetcher stops at the end of a
// page. Units: bytes.
inline constexpr std::int64_t kStreamPrefetchDistance = std::int64_t{8} * 1024;

// Prefetches `kLines` cache lines from `next` on to the second-level cache and advances `next` past
// them. Using a single pointer leaves the other registers to the rows of a tall tile.
template <int kLines>
inline void prefetch_lines(const std::byte*& next) {
  constexpr std::int64_t kLine = 64;
#pragma GCC unroll 16
  for (int i = 0; i < kLines; ++i) {
    __builtin_prefetch(next + i * kLine, 0, 2);
  }
  next += kLines * kLine;
}

// Adds the bias and the old value of y to 16 sums, and stores those whose column exists.
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

// Returns whether all columns of a tile exist and there is no bias. Storing the tile is then a
// fixed sequence of loads, adds and stores, which saves a few percent for a tile of depth 300.
template <int kPanels>
inline bool is_plain(const ProductJob& job, std::int64_t panel) {
  return job.bias == nullptr && (panel + kPanels) * kPanel <= job.cols;
}

// Prefetches the destination of a tile's results for writing.
template <int kRows, int kPanels>
inline void prefetch_results(const ProductJob& job, std::int64_t row, std::int64_t panel) {
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

// Stores a tile of sums, `kPanels` groups of 16 per row. Some may lack a column or need the bias.
template <int kRows, int kPanels>
[[gnu::noinline]] void finish_each(const ProductJob& job, std::int64_t row, std::int64_t panel,
                                   const float* sums) {
  for (int r = 0; r < kRows; ++r) {
    for (int p = 0; p < kPanels; ++p) {
      finish(job, row + r, panel + p, load(sums + (r * kPanels + p) * kPanel));
    }
  }
}

// Stores a tile of sums. A tile that is not plain goes through a copy in memory, so that the sums
// of plain tiles can stay in registers.
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

// Calls f.template operator()<n>() with the compile-time constant `n` in [1, kMax].
template <int kMax, class F>
void with_number(std::int64_t n, F f) {
  if constexpr (kMax > 1) {
    if (n < kMax) {
      with_number<kMax - 1>(n, f);
      return;
    }
  }
  f.template operator()<kMax>();
}

// Plans which tiles of a column prefetch the panels of the next column while they compute: the last
// ones, each an equal share. With enough tiles, each step of the depth then prefetches one line. A
// tile that prefetched all panels at once would have to wait, since they arrive no faster than
// memory delivers them.
struct PanelPrefetch {
  const std::byte* next = nullptr;  // null: nothing is prefetched
  std::int64_t tile_bytes = 0;      // what one tile prefetches
  std::int64_t waiting = 0;         // tiles before the first one that prefetches
  int lines = 0;                    // prefetched in each step

  template <int kPanels, class Elements>
  static PanelPrefetch of(const ProductJob& job, std::int64_t panel, std::int64_t tiles) {
    const std::int64_t panel_bytes = job.panel_stride * Elements::kPanelBytes;
    if ((panel + std::int64_t{2} * kPanels) * kPanel > job.cols) {
      return {};
    }
    const std::int64_t sharing = tiles < kPanels ? tiles : kPanels;
    const auto lines = static_cast<int>((kPanels + sharing - 1) / sharing);
    const auto* panels = static_cast<const std::byte*>(job.panels);
    return {panels + (panel + kPanels) * panel_bytes, lines * panel_bytes, tiles - sharing, lines};
  }
};

// Computes `count` tiles of kRows rows from `row` on. Returns the row after the last one.
template <int kRows, int kPanels, class Elements>
std::int64_t product_tiles(const ProductJob& job, std::int64_t row, std::int64_t panel,
                           std::int64_t count, PanelPrefetch& ahead) {
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

// Computes the rows of the range for the panels of one tile's width, in tiles of kRows - 1 rows
// followed by tiles of kRows rows.
template <int kRows, int kPanels, class Elements>
void product_column(const ProductJob& job, RowRange rows, std::int64_t panel, bool may_prefetch) {
  const std::int64_t count = rows.end - rows.first;
  const std::int64_t tiles = (count + kRows - 1) / kRows;
  const std::int64_t low = tiles * kRows - count;
  PanelPrefetch ahead =
      may_prefetch ? PanelPrefetch::of<kPanels, Elements>(job, panel, tiles) : PanelPrefetch{};
  if constexpr (kRows > 1) {
    rows.first = product_tiles<kRows - 1, kPanels, Elements>(job, rows.first, panel, low, ahead);
  }
  product_tiles<kRows, kPanels, Elements>(job, rows.first, panel, tiles - low, ahead);
}

// Returns the height of tiles if `rows` are cut as evenly as possible into as few tiles of at most
// `max_rows` rows as possible.
inline std::int64_t even_height(std::int64_t rows, std::int64_t max_rows) {
  const std::int64_t tiles = (rows + max_rows - 1) / max_rows;
  return (rows + tiles - 1) / tiles;
}

// Returns the number of panels of the next tile. A tile of a single panel leaves most registers
// idle. If one would remain, the tile before it is narrower, unless tiles have at most two panels.
inline std::int64_t next_width(std::int64_t left, std::int64_t max_panels) {
  return left <= max_panels                         ? left
         : left == max_panels + 1 && max_panels > 2 ? max_panels - 1
                                                    : max_panels;
}

// Multiplies a few rows by the panels, one panel after the other.
template <int kRows, class Elements>
void product_stream(const ProductJob& job) {
  const std::int64_t panel_bytes = job.panel_stride * Elements::kPanelBytes;
  const auto* next = static_cast<const std::byte*>(job.panels) + kStreamPrefetchDistance;
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
  constexpr std::int64_t kMaxRows = Elements::kMaxRows;
  const std::int64_t row_bytes = job.x_stride * Elements::kRowBytes + 1;
  const std::int64_t panels = panels_for(job.cols);
  const bool few_panels = panels * job.panel_stride * Elements::kPanelBytes <= kPanelBlockBytes;
  const std::int64_t fitting = kRowBlockBytes / row_bytes / kMaxRows * kMaxRows;
  const std::int64_t block = few_panels                ? kMaxRows
                             : fitting < 12 * kMaxRows ? 12 * kMaxRows
                                                       : fitting;
  for (std::int64_t first = 0; first < job.rows; first += block) {
    const RowRange rows{first, first + block < job.rows ? first + block : job.rows};
    with_number<Elements::kMaxRows>(even_height(rows.end - rows.first, kMaxRows), [&]<int kRows>() {
      constexpr int kWidth = Elements::panels_per_tile(kRows);
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
