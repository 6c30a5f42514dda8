// SPDX-License-Identifier: Apache-2.0
// Weight gradients: sums of outer products, row after row.
#include <cstdint>

#include "engines/ops/cpu/isa_kernels.hpp"
#include "engines/ops/cpu/kernels.hpp"
#include "engines/ops/cpu/tile.hpp"
#include "engines/ops/cpu/vec.hpp"

namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA {
namespace {

// Registers per row of a tile: two panels of 16 columns, or what fits the register file.
#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__FMA__))
constexpr int kOuterVectors = 2;
#else
constexpr int kOuterVectors = kRegisters;
#endif

// Asks for the sums of the next tile, to be written.
template <int kVectors>
inline void fetch_below(const OuterJob& job, std::int64_t row, std::int64_t column) {
  const std::int64_t end = row + kTileRows < job.out.rows ? row + kTileRows : job.out.rows;
  for (std::int64_t r = row; r < end; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      __builtin_prefetch(job.out.row(r) + column + v * kRegisterFloats, 1, 3);
    }
  }
}

template <int kVectors>
void outer_tile(const OuterJob& job, std::int64_t row, std::int64_t panel) {
  constexpr std::int64_t kCols = kVectors * kRegisterFloats;
  const std::int64_t panel_size = job.depth * kPanel;
  const TileOperands in{.a = job.a_panels + row * job.depth,
                        .a_row = 1,
                        .a_step = kTileRows,
                        .b = job.b_panels + panel * panel_size,
                        .b_step = kPanel,
                        .panel_step = panel_size,
                        .depth = job.depth};
  const std::int64_t column = panel * kPanel;
  const std::int64_t rows = job.out.rows - row < kTileRows ? job.out.rows - row : kTileRows;
  const std::int64_t cols = job.out.cols - column < kCols ? job.out.cols - column : kCols;
  if (rows == kTileRows && cols == kCols) {
    fetch_below<kVectors>(job, row + kTileRows, column);
    accumulate_in_memory<kTileRows, kVectors, Start::kMemory>(in, job.out.row(row) + column,
                                                              job.out.stride);
    return;
  }
  // At an edge the tile is worked on in a copy.
  float sums[kTileRows * kCols] = {};
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t j = 0; j < cols; ++j) {
      sums[r * kCols + j] = job.out.row(row + r)[column + j];
    }
  }
  accumulate_in_memory<kTileRows, kVectors, Start::kMemory>(in, sums, kCols);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t j = 0; j < cols; ++j) {
      job.out.row(row + r)[column + j] = sums[r * kCols + j];
    }
  }
}

void outer_product(const OuterJob& job) {
  constexpr int kVectors = kOuterVectors;
  constexpr int kWidth = kVectors / kRegisters;
  std::int64_t panel = job.first_panel;
  for (; panel + kWidth <= job.end_panel; panel += kWidth) {
    for (std::int64_t row = 0; row < job.out.rows; row += kTileRows) {
      outer_tile<kVectors>(job, row, panel);
    }
  }
  for (; panel < job.end_panel; ++panel) {
    for (std::int64_t row = 0; row < job.out.rows; row += kTileRows) {
      outer_tile<kRegisters>(job, row, panel);
    }
  }
}

// Rows between two visits of the sums: they stay in the second-level cache while the columns pass
// by.
constexpr std::int64_t kThinRows = 64;
// Rows and sixteens of columns of a tile.
#if defined(__AVX512F__)
constexpr int kThinHeight = 8;
constexpr int kThinWidth = 3;
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int kThinHeight = 6;
constexpr int kThinWidth = 1;
#else
constexpr int kThinHeight = 3;
constexpr int kThinWidth = 1;
#endif

// One tile of out: columns [a_first, a_first + kHeight) of a, [column, column + count) of b.
template <int kHeight>
void thin_tile(const ThinOuterJob& job, RowRange rows, std::int64_t a_first, std::int64_t column,
               std::int64_t count) {
  constexpr int kVectors = kThinWidth * kRegisters;
  constexpr std::int64_t kCols = kThinWidth * kLanes;
  const TileOperands in{.a = job.a.row(rows.first) + a_first,
                        .a_row = 1,
                        .a_step = job.a.stride,
                        .b = job.b.row(rows.first) + column,
                        .b_step = job.b.stride,
                        .panel_step = kLanes,
                        .depth = rows.end - rows.first};
  if (a_first == 0) {
    // The rows are far apart, so that no processor guesses that the next columns come next.
    for (std::int64_t t = 0; t < in.depth; ++t) {
#pragma GCC unroll 4
      for (std::int64_t v = 0; v < kThinWidth; ++v) {
        __builtin_prefetch(in.b + t * in.b_step + kCols + v * kLanes, 0, 2);
      }
    }
  }
  if (count >= kCols) {
    accumulate_in_memory<kHeight, kVectors, Start::kMemory>(in, job.out.row(a_first) + column,
                                                            job.out.stride);
    return;
  }
  // At the right edge both operands are worked on in copies.
  float b[kThinRows * kCols] = {};
  float sums[kHeight * kCols] = {};
  for (std::int64_t t = 0; t < in.depth; ++t) {
    for (std::int64_t j = 0; j < count; ++j) {
      b[t * kCols + j] = in.b[t * in.b_step + j];
    }
  }
  for (std::int64_t r = 0; r < kHeight; ++r) {
    for (std::int64_t j = 0; j < count; ++j) {
      sums[r * kCols + j] = job.out.row(a_first + r)[column + j];
    }
  }
  TileOperands copied = in;
  copied.b = b;
  copied.b_step = kCols;
  accumulate_in_memory<kHeight, kVectors, Start::kMemory>(copied, sums, kCols);
  for (std::int64_t r = 0; r < kHeight; ++r) {
    for (std::int64_t j = 0; j < count; ++j) {
      job.out.row(a_first + r)[column + j] = sums[r * kCols + j];
    }
  }
}

void thin_outer_product(const ThinOuterJob& job) {
  for (std::int64_t first = 0; first < job.b.rows; first += kThinRows) {
    const RowRange rows{first, first + kThinRows < job.b.rows ? first + kThinRows : job.b.rows};
    for (std::int64_t column = job.first; column < job.end; column += kThinWidth * kLanes) {
      for (std::int64_t a_first = 0; a_first < job.a.cols; a_first += kThinHeight) {
        const std::int64_t height =
            job.a.cols - a_first < kThinHeight ? job.a.cols - a_first : kThinHeight;
        with_rows<kThinHeight>(height, [&]<int kHeight>() {
          thin_tile<kHeight>(job, rows, a_first, column, job.end - column);
        });
      }
    }
  }
}

// Panels packed side by side, so that a row's cache lines are read once: rows may be so far apart
// that few of them fit a cache together.
constexpr std::int64_t kPackedBeside = 4;
// Rows asked for before they are packed: no processor guesses that the next row comes next.
constexpr std::int64_t kRowsAhead = 16;

// Whole vectors are stored: what falls behind a row of the panel is overwritten by the next row.
// The last rows, which nothing follows, are stored in part: the next panel may be another worker's.
void pack_panels(ConstMatrix from, RowRange columns, std::int64_t width, float* to) {
  const std::int64_t in_part = (kLanes + width - 1) / width - 1;
  const std::int64_t last = from.rows - 1;
  for (std::int64_t first = columns.first; first < columns.end; first += kPackedBeside * width) {
    const std::int64_t stop = first + kPackedBeside * width;
    const std::int64_t end = stop < columns.end ? stop : columns.end;
    for (std::int64_t t = 0; t < from.rows; ++t) {
      const float* ahead = from.row(t + kRowsAhead < last ? t + kRowsAhead : last);
      for (std::int64_t column = first; column < end; column += kLanes) {
        __builtin_prefetch(ahead + column);
      }
      const std::int64_t stored = t < from.rows - in_part ? kLanes : width;
      for (std::int64_t column = first; column < end; column += width) {
        store_some(to + column * from.rows + t * width,
                   load_some(from.row(t) + column, from.cols - column), stored);
      }
    }
  }
}

void bias_backward(ConstMatrix dy, RowRange columns, float* dbias) {
  for (std::int64_t j = columns.first; j < columns.end; j += kLanes) {
    const std::int64_t count = columns.end - j;
    Vec sum = load_some(dbias + j, count);
    for (std::int64_t t = 0; t < dy.rows; ++t) {
      sum = sum + load_some(dy.row(t) + j, count);
    }
    store_some(dbias + j, sum, count);
  }
}

}  // namespace

void add_outer_kernels(KernelTable& table) noexcept {
  table.outer_rows = kTileRows;
  table.pack_panels = pack_panels;
  table.outer_product = outer_product;
  table.thin_outer_product = thin_outer_product;
  table.bias_backward = bias_backward;
}

}  // namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA
