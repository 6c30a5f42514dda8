// SPDX-License-Identifier: Apache-2.0
// Matrix products over packed panels.
#include <cstdint>

#include "engines/ops/cpu/isa_kernels.hpp"
#include "engines/ops/cpu/kernels.hpp"
#include "engines/ops/cpu/tile.hpp"
#include "engines/ops/cpu/vec.hpp"

namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA {
namespace {

// Rows of x worked on together, in floats: they stay in the second-level cache while the panels
// pass by.
constexpr std::int64_t kRowBlockFloats = 24 * 1024;

// Registers per row of a tile of `rows` rows. A multiply-add waits four cycles for the one before
// it in its chain, so that low tiles take several panels at once.
constexpr int vectors_for(int rows) {
#if defined(__AVX512F__)
  return rows == 1 ? 8 : rows <= 6 ? 4 : 2;
#elif defined(__AVX2__) && defined(__FMA__)
  return rows == 1 ? 8 : rows <= 3 ? 4 : 2;
#else
  return rows > 0 ? kRegisters : 0;
#endif
}

void finish_panel(const ProductJob& job, std::int64_t row, std::int64_t panel, const float* sums) {
  const std::int64_t column = panel * kPanel;
  const std::int64_t count = job.y.cols - column;
  float* y = job.y.row(row) + column;
  Vec value = load(sums);
  if (job.bias != nullptr) {
    value = value + load_some(job.bias + column, count);
  }
  if (job.store == Store::kAdd) {
    value = load_some(y, count) + value;
  }
  store_some(y, value, count);
}

template <int kRows, int kVectors, class Element>
void product_tile(const ProductJob& job, std::int64_t row, std::int64_t panel) {
  const std::int64_t panel_size = job.x.cols * kPanel;
  Accumulators<kRows, kVectors> acc = {};
  accumulate(
      TileOperands<Element>{.a = job.x.row(row),
                            .a_row = job.x.stride,
                            .a_step = 1,
                            .b = static_cast<const Element*>(job.panels) + panel * panel_size,
                            .b_step = kPanel,
                            .panel_step = panel_size,
                            .depth = job.x.cols},
      acc);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    float sums[kVectors * kRegisterFloats];
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      store_register(sums + v * kRegisterFloats, acc.value[r][v]);
    }
    for (int p = 0; p < kVectors / kRegisters; ++p) {
      finish_panel(job, row + r, panel + p, sums + p * kPanel);
    }
  }
}

// All rows of the range over the panels of one tile's width, in tiles of kRows and kRows - 1 rows.
template <int kRows, int kVectors, class Element>
void product_column(const ProductJob& job, RowRange rows, std::int64_t panel) {
  while (rows.first < rows.end) {
    const std::int64_t left = rows.end - rows.first;
    const std::int64_t tiles = (left + kRows - 1) / kRows;
    if (left == tiles * kRows || kRows == 1) {
      product_tile<kRows, kVectors, Element>(job, rows.first, panel);
      rows.first += kRows;
    } else {
      constexpr int kLower = kRows > 1 ? kRows - 1 : 1;
      product_tile<kLower, kVectors, Element>(job, rows.first, panel);
      rows.first += kLower;
    }
  }
}

template <class Element>
void product(const ProductJob& job) {
  std::int64_t block = kRowBlockFloats / (job.x.cols > 0 ? job.x.cols : 1) / kTileRows * kTileRows;
  block = block < 4 * kTileRows ? 4 * kTileRows : block;
  for (std::int64_t first = 0; first < job.y.rows; first += block) {
    const RowRange rows{first, first + block < job.y.rows ? first + block : job.y.rows};
    with_rows(next_rows(rows.end - rows.first), [&]<int kRows>() {
      constexpr int kVectors = vectors_for(kRows);
      constexpr int kWidth = kVectors / kRegisters;
      std::int64_t panel = job.first_panel;
      for (; panel + kWidth <= job.end_panel; panel += kWidth) {
        product_column<kRows, kVectors, Element>(job, rows, panel);
      }
      for (; panel < job.end_panel; ++panel) {
        product_column<kRows, kRegisters, Element>(job, rows, panel);
      }
    });
  }
}

template <int kVectors>
void outer_tile(const OuterJob& job, std::int64_t row, std::int64_t panel) {
  constexpr std::int64_t kCols = kVectors * kRegisterFloats;
  const std::int64_t panel_size = job.depth * kPanel;
  const TileOperands<float> in{.a = job.a_panels + row * job.depth,
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
  constexpr int kVectors = vectors_for(kTileRows);
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

// Whole vectors are stored: what falls behind a row of the panel is overwritten by the next row,
// and what falls behind the panel by the next panel or onto the spare lanes behind the last.
void pack_panels(ConstMatrix from, std::int64_t width, float* to) {
  for (std::int64_t column = 0; column < from.cols; column += width) {
    float* panel = to + column * from.rows;
    for (std::int64_t t = 0; t < from.rows; ++t) {
      store(panel + t * width, load_some(from.row(t) + column, from.cols - column));
    }
  }
}

// Ties to even, as `float_to_bf16`; a NaN stays one.
Vec bf16_rounded(const Vec& x) {
  const Vec rounded = each_part([&](int i) {
    const auto bits = reinterpret_cast<WordRegister>(x.part[i]);
    return reinterpret_cast<Register>((bits + 0x7FFFU + ((bits >> 16U) & 1U)) & 0xFFFF0000U);
  });
  return select(x != x, x, rounded);
}

void round_to_bf16(ConstMatrix x, RowRange rows, float* out) {
  for (std::int64_t t = rows.first; t < rows.end; ++t) {
    for (std::int64_t j = 0; j < x.cols; j += kLanes) {
      const std::int64_t count = x.cols - j;
      store_some(out + t * x.cols + j, bf16_rounded(load_some(x.row(t) + j, count)), count);
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

void add_product_kernels(KernelTable& table) noexcept {
  table.outer_rows = kTileRows;
  table.product_f32 = product<float>;
  table.product_bf16 = product<std::uint16_t>;
  table.pack_panels = pack_panels;
  table.outer_product = outer_product;
  table.round_to_bf16 = round_to_bf16;
  table.bias_backward = bias_backward;
}

}  // namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA
