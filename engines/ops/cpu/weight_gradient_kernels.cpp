// SPDX-License-Identifier: Apache-2.0
// Weight and bias gradients: sums of outer products, added row after row.
#include <cstdint>

#include "engines/ops/cpu/isa_kernels.hpp"
#include "engines/ops/cpu/kernels.hpp"
#include "engines/ops/cpu/product_loops.hpp"
#include "engines/ops/cpu/tile.hpp"
#include "engines/ops/cpu/transpose.hpp"
#include "engines/ops/cpu/vec.hpp"

namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA {
namespace {

// Rows of a tile, panels of `b` in a tile, and columns of a packed panel of `a`. A panel's row is a
// whole cache line if the height of the tile allows it.
#if defined(__AVX512F__)
constexpr int kGradientTileRows = 8;
constexpr int kGradientTilePanels = 3;
constexpr std::int64_t kGradientPanelWidth = 16;
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int kGradientTileRows = 6;
constexpr int kGradientTilePanels = 1;
constexpr std::int64_t kGradientPanelWidth = kGradientTileRows;
#else
constexpr int kGradientTileRows = 3;
constexpr int kGradientTilePanels = 1;
constexpr std::int64_t kGradientPanelWidth = kGradientTileRows;
#endif
static_assert(kGradientPanelWidth % kGradientTileRows == 0);

// Prefetches the sums of the next tile below for writing.
template <int kPanels>
inline void prefetch_sums_below(const WeightGradientJob& job, std::int64_t row,
                                std::int64_t column) {
  const std::int64_t below = row + kGradientTileRows;
  const std::int64_t end = below < job.out.rows ? below : job.out.rows;
  for (std::int64_t r = row; r < end; ++r) {
#pragma GCC unroll 4
    for (std::int64_t p = 0; p < kPanels; ++p) {
      __builtin_prefetch(job.out.row(r) + column + p * kPanel, 1, 3);
    }
  }
}

// Accumulates one tile of `kRows` rows, of which `cols` columns exist.
template <int kRows, int kPanels>
void gradient_tile(const WeightGradientJob& job, const TileOperands& in, std::int64_t row,
                   std::int64_t column, std::int64_t cols) {
  constexpr int kVectors = kPanels * kRegisters;
  constexpr std::int64_t kCols = kPanels * kPanel;
  float* out = job.out.row(row) + column;
  if (cols >= kCols) {
    prefetch_sums_below<kPanels>(job, row + kRows, column);
    accumulate_in_memory<kRows, kVectors, Start::kMemory>(in, out, job.out.stride);
    return;
  }
  // At the right edge, the tile is accumulated in a copy.
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

// Accumulates all rows for the panels of one tile's width.
template <int kPanels>
void gradient_column(const WeightGradientJob& job, std::int64_t panel) {
  const std::int64_t column = panel * kPanel;
  const std::int64_t panel_size = job.depth * kPanel;
  TileOperands in{.a_row = 1,
                  .a_step = kGradientPanelWidth,
                  .b = job.b_panels + panel * panel_size,
                  .b_step = kPanel,
                  .panel_step = panel_size,
                  .depth = job.depth};
  for (std::int64_t row = 0; row < job.out.rows; row += kGradientTileRows) {
    const std::int64_t in_panel = row % kGradientPanelWidth;
    in.a = job.a_panels + (row - in_panel) * job.depth + in_panel;
    const std::int64_t left = job.out.rows - row;
    with_number<kGradientTileRows>(left, [&]<int kRows>() {
      gradient_tile<kRows, kPanels>(job, in, row, column, job.out.cols - column);
    });
  }
}

void weight_gradient(const WeightGradientJob& job) {
  const std::int64_t panels = panels_for(job.out.cols);
  for (std::int64_t panel = 0; panel < panels;) {
    const std::int64_t width = next_width(panels - panel, kGradientTilePanels);
    with_number<kGradientTilePanels>(width,
                                     [&]<int kPanels>() { gradient_column<kPanels>(job, panel); });
    panel += width;
  }
}

// Rows that are added between a load and a store of the sums. They are few enough that prefetched
// columns stay in the second-level cache until they are used.
constexpr std::int64_t kLowRankStep = 128;
// Rows of a tile, and its width in groups of 16 columns.
#if defined(__AVX512F__)
constexpr int kLowRankTileRows = 8;
constexpr int kLowRankTilePanels = 3;
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int kLowRankTileRows = 6;
constexpr int kLowRankTilePanels = 1;
#else
constexpr int kLowRankTileRows = 3;
constexpr int kLowRankTilePanels = 1;
#endif

// The operands of a tile, which sums `depth` >= 1 rows, and the columns of `b` to prefetch.
struct LowRankOperands {
  const float* a = nullptr;
  std::int64_t a_step = 0;  // floats between rows
  const float* b = nullptr;
  std::int64_t b_step = 0;
  std::int64_t depth = 0;
  const float* next = nullptr;  // columns to prefetch, of `depth` rows that are `b_step` apart
};

// Says whether a tile prefetches the next columns while it computes. They are too far apart for the
// hardware prefetcher. Prefetching them all at once would make the requests wait for each other.
enum class PrefetchNext { kNo, kYes };

// Computes c (kRows, kVectors registers) += a^T b.
template <int kRows, int kVectors, PrefetchNext kPrefetch>
[[gnu::noinline]] void accumulate_low_rank(const LowRankOperands& in, float* c,
                                           std::int64_t c_row) {
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
    if constexpr (kPrefetch == PrefetchNext::kYes) {
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

// Returns the columns of `b` that are used after those at `column`: the next ones of the same rows
// or, after the last ones, the first ones of the next rows. At the end, returns the same columns
// again.
template <std::int64_t kCols>
const float* next_columns(const LowRankGradientJob& job, RowRange rows, std::int64_t column) {
  if (column + kCols < job.end) {
    return job.b.row(rows.first) + column + kCols;
  }
  const bool more = rows.end + (rows.end - rows.first) <= job.b.rows;
  return more ? job.b.row(rows.end) + job.first : job.b.row(rows.first) + column;
}

// Accumulates one tile of `out`: columns [a_first, a_first + kHeight) of `a`, and 16 * kWidth
// columns of `b` from `column` on, of which `count` exist.
template <int kHeight, int kWidth>
void low_rank_tile(const LowRankGradientJob& job, RowRange rows, std::int64_t a_first,
                   std::int64_t column, std::int64_t count) {
  constexpr int kVectors = kWidth * kRegisters;
  constexpr std::int64_t kCols = kWidth * kLanes;
  const LowRankOperands in{.a = job.a.row(rows.first) + a_first,
                           .a_step = job.a.stride,
                           .b = job.b.row(rows.first) + column,
                           .b_step = job.b.stride,
                           .depth = rows.end - rows.first,
                           .next = next_columns<kCols>(job, rows, column)};
  if (count >= kCols) {
    float* out = job.out.row(a_first) + column;
    if (a_first == 0) {
      accumulate_low_rank<kHeight, kVectors, PrefetchNext::kYes>(in, out, job.out.stride);
    } else {
      accumulate_low_rank<kHeight, kVectors, PrefetchNext::kNo>(in, out, job.out.stride);
    }
    return;
  }
  // At the right edge, the tile works on copies of `b` and of its sums.
  float b[kLowRankStep * kCols] = {};
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
  LowRankOperands copied = in;
  copied.b = b;
  copied.b_step = kCols;
  accumulate_low_rank<kHeight, kVectors, PrefetchNext::kNo>(copied, sums, kCols);
  for (std::int64_t r = 0; r < kHeight; ++r) {
    for (std::int64_t j = 0; j < count; ++j) {
      job.out.row(a_first + r)[column + j] = sums[r * kCols + j];
    }
  }
}

// Accumulates all rows of `out`, for 16 * kWidth columns from `column` on.
template <int kWidth>
void low_rank_column(const LowRankGradientJob& job, RowRange rows, std::int64_t column) {
  for (std::int64_t a_first = 0; a_first < job.a.cols; a_first += kLowRankTileRows) {
    with_number<kLowRankTileRows>(job.a.cols - a_first, [&]<int kHeight>() {
      low_rank_tile<kHeight, kWidth>(job, rows, a_first, column, job.end - column);
    });
  }
}

void low_rank_gradient(const LowRankGradientJob& job) {
  for (std::int64_t first = 0; first < job.b.rows; first += kLowRankStep) {
    const RowRange rows{first,
                        first + kLowRankStep < job.b.rows ? first + kLowRankStep : job.b.rows};
    for (std::int64_t column = job.first; column < job.end;) {
      const std::int64_t width = next_width(panels_for(job.end - column), kLowRankTilePanels);
      with_number<kLowRankTilePanels>(
          width, [&]<int kWidth>() { low_rank_column<kWidth>(job, rows, column); });
      column += width * kLanes;
    }
  }
}

// Transposes `from` (rows, cols) to `to` (cols, rows).
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

// Panels that are packed together, so that the cache lines of a row are read once. The stride of
// rows may be such that few of them fit a cache at the same time.
constexpr std::int64_t kPanelsPackedTogether = 4;
// Rows that are prefetched before they are packed. The hardware prefetcher does not follow the
// stride of rows.
constexpr std::int64_t kRowsAhead = 16;

// Stores whole vectors. Lanes past the end of a panel's row are overwritten by the next row. The
// last rows are stored without those lanes, since another worker may write the next panel.
void pack_panels(ConstMatrix from, RowRange columns, std::int64_t width, float* to) {
  const std::int64_t in_part = (kLanes + width - 1) / width - 1;
  const std::int64_t last = from.rows - 1;
  for (std::int64_t first = columns.first; first < columns.end;
       first += kPanelsPackedTogether * width) {
    const std::int64_t stop = first + kPanelsPackedTogether * width;
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

void add_weight_gradient_kernels(KernelTable& table) noexcept {
  table.gradient_panel_width = kGradientPanelWidth;
  table.pack_panels = pack_panels;
  table.weight_gradient = weight_gradient;
  table.low_rank_gradient = low_rank_gradient;
  table.transpose_floats = transpose_floats;
  table.bias_backward = bias_backward;
}

}  // namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA
