// SPDX-License-Identifier: Apache-2.0
// Weight gradients: sums of outer products, row after row.
#include <cstdint>

#include "engines/ops/cpu/isa_kernels.hpp"
#include "engines/ops/cpu/kernels.hpp"
#include "engines/ops/cpu/product_loops.hpp"
#include "engines/ops/cpu/tile.hpp"
#include "engines/ops/cpu/transpose.hpp"
#include "engines/ops/cpu/vec.hpp"

namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA {
namespace {

// Rows of a tile, panels of b beside each other in it, and columns of a packed panel of a: whole
// cache lines where the tile's height allows it.
#if defined(__AVX512F__)
constexpr int kOuterHeight = 8;
constexpr int kOuterWidth = 3;
constexpr std::int64_t kPackedRows = 16;
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int kOuterHeight = 6;
constexpr int kOuterWidth = 1;
constexpr std::int64_t kPackedRows = kOuterHeight;
#else
constexpr int kOuterHeight = 3;
constexpr int kOuterWidth = 1;
constexpr std::int64_t kPackedRows = kOuterHeight;
#endif
static_assert(kPackedRows % kOuterHeight == 0);

// Asks for the sums of the next tile, to be written.
template <int kPanels>
inline void fetch_below(const OuterJob& job, std::int64_t row, std::int64_t column) {
  const std::int64_t below = row + kOuterHeight;
  const std::int64_t end = below < job.out.rows ? below : job.out.rows;
  for (std::int64_t r = row; r < end; ++r) {
#pragma GCC unroll 4
    for (std::int64_t p = 0; p < kPanels; ++p) {
      __builtin_prefetch(job.out.row(r) + column + p * kPanel, 1, 3);
    }
  }
}

// One tile of the rows that exist; `cols` columns of it exist.
template <int kRows, int kPanels>
void outer_tile(const OuterJob& job, const TileOperands& in, std::int64_t row, std::int64_t column,
                std::int64_t cols) {
  constexpr int kVectors = kPanels * kRegisters;
  constexpr std::int64_t kCols = kPanels * kPanel;
  float* out = job.out.row(row) + column;
  if (cols >= kCols) {
    fetch_below<kPanels>(job, row + kRows, column);
    accumulate_in_memory<kRows, kVectors, Start::kMemory>(in, out, job.out.stride);
    return;
  }
  // At the right edge the tile is worked on in a copy.
  float sums[kRows * kCols] = {};
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t j = 0; j < cols; ++j) {
      sums[r * kCols + j] = out[r * job.out.stride + j];
    }
  }
  accumulate_in_memory<kRows, kVectors, Start::kMemory>(in, sums, kCols);
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t j = 0; j < cols; ++j) {
      out[r * job.out.stride + j] = sums[r * kCols + j];
    }
  }
}

// All rows over the panels of one tile's width.
template <int kPanels>
void outer_column(const OuterJob& job, std::int64_t panel) {
  const std::int64_t column = panel * kPanel;
  const std::int64_t panel_size = job.depth * kPanel;
  TileOperands in{.a_row = 1,
                  .a_step = kPackedRows,
                  .b = job.b_panels + panel * panel_size,
                  .b_step = kPanel,
                  .panel_step = panel_size,
                  .depth = job.depth};
  for (std::int64_t row = 0; row < job.out.rows; row += kOuterHeight) {
    const std::int64_t in_panel = row % kPackedRows;
    in.a = job.a_panels + (row - in_panel) * job.depth + in_panel;
    const std::int64_t left = job.out.rows - row;
    with_number<kOuterHeight>(left, [&]<int kRows>() {
      outer_tile<kRows, kPanels>(job, in, row, column, job.out.cols - column);
    });
  }
}

void outer_product(const OuterJob& job) {
  const std::int64_t panels = panels_for(job.out.cols);
  for (std::int64_t panel = 0; panel < panels;) {
    const std::int64_t width = next_width(panels - panel, kOuterWidth);
    with_number<kOuterWidth>(width, [&]<int kPanels>() { outer_column<kPanels>(job, panel); });
    panel += width;
  }
}

// Rows between two visits of the sums: so few that the columns asked for ahead stay in the
// second-level cache until their turn.
constexpr std::int64_t kThinRows = 128;
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

// What a tile of `depth` >= 1 rows is the sum of, and the columns of b that come next.
struct ThinOperands {
  const float* a = nullptr;
  std::int64_t a_step = 0;  // floats between rows
  const float* b = nullptr;
  std::int64_t b_step = 0;
  std::int64_t depth = 0;
  const float* next = nullptr;  // as many rows, `b_step` apart
};

// Whether a tile asks for the columns that come next while it computes. They are far apart, so that
// no processor guesses them; asked for all at once they would have to wait for each other.
enum class FetchNext { kNo, kYes };

// c (kRows, kVectors registers) += a^T b.
template <int kRows, int kVectors, FetchNext kFetch>
[[gnu::noinline]] void add_thin(const ThinOperands& in, float* c, std::int64_t c_row) {
  Register sums[kRows][kVectors];
  const float* from = c;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v] = load_register(from + v * kRegisterFloats);
    }
    from += c_row;
  }
  const float* a = in.a;
  const float* b = in.b;
  const std::int64_t to_next = in.next - in.b;
  std::int64_t left = in.depth;
  do {
    Register row[kVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      row[v] = load_register(b + v * kRegisterFloats);
    }
    if constexpr (kFetch == FetchNext::kYes) {
#pragma GCC unroll 4
      for (int line = 0; line < kVectors / kRegisters; ++line) {
        __builtin_prefetch(b + to_next + line * kLanes, 0, 2);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Register x = broadcast_register(a[r]);
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        sums[r][v] = multiply_add(x, row[v], sums[r][v]);
      }
    }
    a += in.a_step;
    b += in.b_step;
  } while (--left > 0);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      store_register(c + v * kRegisterFloats, sums[r][v]);
    }
    c += c_row;
  }
}

// The columns of b after those from `column` on: of the same rows or, behind the last ones, the
// first ones of the next rows. At the end there are none, and it returns the same again.
template <std::int64_t kCols>
const float* next_columns(const ThinOuterJob& job, RowRange rows, std::int64_t column) {
  if (column + kCols < job.end) {
    return job.b.row(rows.first) + column + kCols;
  }
  const bool more = rows.end + (rows.end - rows.first) <= job.b.rows;
  return more ? job.b.row(rows.end) + job.first : job.b.row(rows.first) + column;
}

// One tile of out: columns [a_first, a_first + kHeight) of a, `kWidth` sixteens of columns of b
// from `column` on, of which `count` exist.
template <int kHeight, int kWidth>
void thin_tile(const ThinOuterJob& job, RowRange rows, std::int64_t a_first, std::int64_t column,
               std::int64_t count) {
  constexpr int kVectors = kWidth * kRegisters;
  constexpr std::int64_t kCols = kWidth * kLanes;
  const ThinOperands in{.a = job.a.row(rows.first) + a_first,
                        .a_step = job.a.stride,
                        .b = job.b.row(rows.first) + column,
                        .b_step = job.b.stride,
                        .depth = rows.end - rows.first,
                        .next = next_columns<kCols>(job, rows, column)};
  if (count >= kCols) {
    float* out = job.out.row(a_first) + column;
    if (a_first == 0) {
      add_thin<kHeight, kVectors, FetchNext::kYes>(in, out, job.out.stride);
    } else {
      add_thin<kHeight, kVectors, FetchNext::kNo>(in, out, job.out.stride);
    }
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
  ThinOperands copied = in;
  copied.b = b;
  copied.b_step = kCols;
  add_thin<kHeight, kVectors, FetchNext::kNo>(copied, sums, kCols);
  for (std::int64_t r = 0; r < kHeight; ++r) {
    for (std::int64_t j = 0; j < count; ++j) {
      job.out.row(a_first + r)[column + j] = sums[r * kCols + j];
    }
  }
}

// All rows of out from `column` on, `kWidth` sixteens of columns.
template <int kWidth>
void thin_column(const ThinOuterJob& job, RowRange rows, std::int64_t column) {
  for (std::int64_t a_first = 0; a_first < job.a.cols; a_first += kThinHeight) {
    with_number<kThinHeight>(job.a.cols - a_first, [&]<int kHeight>() {
      thin_tile<kHeight, kWidth>(job, rows, a_first, column, job.end - column);
    });
  }
}

void thin_outer_product(const ThinOuterJob& job) {
  for (std::int64_t first = 0; first < job.b.rows; first += kThinRows) {
    const RowRange rows{first, first + kThinRows < job.b.rows ? first + kThinRows : job.b.rows};
    for (std::int64_t column = job.first; column < job.end;) {
      const std::int64_t width = next_width(panels_for(job.end - column), kThinWidth);
      with_number<kThinWidth>(width, [&]<int kWidth>() { thin_column<kWidth>(job, rows, column); });
      column += width * kLanes;
    }
  }
}

// to (cols, rows) = from (rows, cols) across.
void transpose_floats(ConstMatrix from, Matrix to) {
  const std::int64_t rows = from.rows / kLanes * kLanes;
  const std::int64_t cols = from.cols / kLanes * kLanes;
  for (std::int64_t i = 0; i < rows; i += kLanes) {
    for (std::int64_t j = 0; j < cols; j += kLanes) {
      transpose_sixteen(
          [&](std::int64_t r, std::int64_t lane) {
            return load_register(from.row(i + r) + j + lane);
          },
          to.row(j) + i, to.stride);
    }
  }
  for (std::int64_t i = 0; i < from.rows; ++i) {
    for (std::int64_t j = i < rows ? cols : 0; j < from.cols; ++j) {
      to.row(j)[i] = from.row(i)[j];
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
        store_some(to + (column - columns.first) * from.rows + t * width,
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
  table.outer_rows = kPackedRows;
  table.pack_panels = pack_panels;
  table.outer_product = outer_product;
  table.thin_outer_product = thin_outer_product;
  table.transpose_floats = transpose_floats;
  table.bias_backward = bias_backward;
}

}  // namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA
