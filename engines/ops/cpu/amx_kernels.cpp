// SPDX-License-Identifier: Apache-2.0
// Products of bfloat16 rows with packed panels in the tile registers of AMX.
//
// A tile register holds 16 rows of 64 bytes. In memory, 32 elements of the depth of a panel already
// have the layout of a tile: 16 rows of bfloat16 pairs. One instruction multiplies this tile by the
// same elements of up to 16 rows of x. For each result, it sums the products of the first elements
// of the pairs and, separately, those of the second elements, both in ascending order. It adds the
// two sums, and then adds the result so far. It flushes denormals (Intel 64 and IA-32 Architectures
// Software Developer's Manual, volume 2, TDPBF16PS). So a result depends on its row and its column
// alone (R1 of ops.hpp), and its bits differ from those of level AVX-512 BF16.
#include <cstdint>
#include <cstring>
#include <immintrin.h>

#include "engines/ops/cpu/amx_tiles.hpp"
#include "engines/ops/cpu/isa_kernels.hpp"
#include "engines/ops/cpu/kernels.hpp"
#include "engines/ops/cpu/product_loops.hpp"
#include "engines/ops/cpu/vec.hpp"

namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA {
namespace {

constexpr std::int64_t kStepElements = kAmxTileDepth * kPanel;  // of a panel
constexpr std::int64_t kStepLines = kStepElements * 2 / kAmxTileRowBytes;
constexpr std::int64_t kBlockRows = 2 * kAmxTileRows;
// A product reads the rows of x once per pair of panels. It takes about this many bytes of rows at
// a time, so that they stay in the second-level cache, which has 2 MiB on processors with AMX.
constexpr std::int64_t kResidentBytes = std::int64_t{1} << 20U;
// The rows are read from a farther cache once per group of panels that are made together. Tiles
// multiply so fast that small groups would wait for the rows.
constexpr std::int64_t kMadePanelBytes = std::int64_t{768} * 1024;

// Memory that a block of tiles prefetches into the second-level cache, an equal part in each step.
struct Ahead {
  const std::byte* next = nullptr;
  std::int64_t lines = 0;  // in each step

  void prefetch() {
    for (std::int64_t i = 0; i < lines; ++i, next += kAmxTileRowBytes) {
      __builtin_prefetch(next, 0, 2);
    }
  }
};

// Rows of results that a block of tiles prefetches for writing, one in each step. Tiles are stored
// much faster to lines that are in the cache already.
struct Results {
  const float* next = nullptr;
  std::int64_t stride = 0;  // floats
  std::int64_t rows = 0;

  template <int kPanels>
  void prefetch() {
    if (rows > 0) {
      __builtin_prefetch(next, 1, 3);
      if constexpr (kPanels == 2) {
        __builtin_prefetch(next + kPanel, 1, 3);
      }
      next += stride;
      --rows;
    }
  }
};

// The operands of a block of tiles, from one step of the depth on.
struct Operands {
  const std::uint16_t* x = nullptr;
  std::int64_t x_stride = 0;  // elements
  const std::uint16_t* panels = nullptr;
  std::int64_t panel_stride = 0;  // elements

  [[nodiscard]] OperandTiles left() const { return {x, x + kAmxTileRows * x_stride, x_stride * 2}; }
  [[nodiscard]] OperandTiles right() const {
    return {panels, panels + panel_stride, kAmxTileRowBytes};
  }
};

// Adds the last step of a depth that is not a multiple of `kAmxTileDepth`, from zero-padded copies.
template <int kHalves, int kPanels>
[[gnu::noinline]] void add_last_step(const Operands& in, std::int64_t rows, std::int64_t depth) {
  alignas(64) std::uint16_t x[kBlockRows * kAmxTileDepth] = {};
  alignas(64) std::uint16_t panels[2 * kStepElements] = {};
  const std::int64_t pairs = (depth + 1) / 2;
  for (std::int64_t r = 0; r < rows; ++r) {
    std::memcpy(x + r * kAmxTileDepth, in.x + r * in.x_stride, static_cast<std::size_t>(pairs) * 4);
  }
  for (int p = 0; p < kPanels; ++p) {
    std::memcpy(panels + p * kStepElements, in.panels + p * in.panel_stride,
                static_cast<std::size_t>(pairs * kAmxTileRowBytes));
  }
  tile_memory_barrier(x);
  tile_memory_barrier(panels);
  const Operands padded{x, kAmxTileDepth, panels, kStepElements};
  add_step<kHalves == 2, kPanels == 2>(padded.left(), padded.right());
}

// Stores the tile register `kTile`, one of the sums.
template <int kTile>
inline void store_sums(float* to, std::int64_t row_bytes) {
  if constexpr (kTile == 0) {
    _tile_stored(0, to, row_bytes);
  } else if constexpr (kTile == 1) {
    _tile_stored(1, to, row_bytes);
  } else if constexpr (kTile == 2) {
    _tile_stored(2, to, row_bytes);
  } else {
    _tile_stored(3, to, row_bytes);
  }
}

// Writes `rows` rows of sums to y.
template <int kTile>
inline void store_tile(const ProductJob& job, std::int64_t row, std::int64_t rows,
                       std::int64_t panel) {
  if (job.store == Store::kOverwrite && is_plain<1>(job, panel)) {
    store_sums<kTile>(job.y + row * job.y_stride + panel * kPanel, job.y_stride * 4);
    return;
  }
  alignas(64) float sums[kAmxTileRows * kPanel];
  store_sums<kTile>(sums, kAmxTileRowBytes);
  for (std::int64_t r = 0; r < rows; ++r) {
    finish(job, row + r, panel, load(sums + r * kPanel));
  }
}

// Computes `rows` rows of the columns of `kPanels` panels. The tiles must be configured for `rows`.
template <int kHalves, int kPanels>
[[gnu::noinline]] void block(const ProductJob& job, std::int64_t row, std::int64_t rows,
                             std::int64_t panel, Ahead ahead) {
  Operands in{static_cast<const std::uint16_t*>(job.x) + row * job.x_stride, job.x_stride,
              static_cast<const std::uint16_t*>(job.panels) + panel * job.panel_stride,
              job.panel_stride};
  clear_sums();
  std::int64_t left = job.depth;
  Results results{job.y + row * job.y_stride + panel * kPanel, job.y_stride, rows};
  for (; left >= kAmxTileDepth; left -= kAmxTileDepth) {
    ahead.prefetch();
    results.prefetch<kPanels>();
    add_step<kHalves == 2, kPanels == 2>(in.left(), in.right());
    in.x += kAmxTileDepth;
    in.panels += kStepElements;
  }
  if (left > 0) {
    add_last_step<kHalves, kPanels>(in, rows, left);
  }
  const std::int64_t upper = rows < kAmxTileRows ? rows : kAmxTileRows;
  store_tile<0>(job, row, upper, panel);
  if constexpr (kPanels == 2) {
    store_tile<1>(job, row, upper, panel + 1);
  }
  if constexpr (kHalves == 2) {
    store_tile<2>(job, row + kAmxTileRows, rows - kAmxTileRows, panel);
    if constexpr (kPanels == 2) {
      store_tile<3>(job, row + kAmxTileRows, rows - kAmxTileRows, panel + 1);
    }
  }
}

// Multiplies at most 16 rows by the panels, one panel after the other: memory delivers a single
// stream fastest.
void product_stream(const ProductJob& job) {
  const std::int64_t panel_bytes = job.panel_stride * 2;
  const auto* next = static_cast<const std::byte*>(job.panels) + kStreamPrefetchDistance;
  configure_tiles(job.rows);
  for (std::int64_t panel = 0; panel < panels_for(job.cols); ++panel, next += panel_bytes) {
    block<1, 1>(job, 0, job.rows, panel, {next, kStepLines});
  }
}

// Computes the columns of one or two panels for the rows `rows`, and prefetches the panels after
// them.
template <int kPanels>
void product_column(const ProductJob& job, RowRange rows, std::int64_t panel) {
  const std::int64_t blocks = (rows.end - rows.first + kBlockRows - 1) / kBlockRows;
  const std::int64_t steps = job.depth / kAmxTileDepth > 0 ? job.depth / kAmxTileDepth : 1;
  const std::int64_t bytes =
      (panel + std::int64_t{2} * kPanels) * kPanel <= job.cols ? kPanels * job.panel_stride * 2 : 0;
  const std::int64_t lines = (bytes / kAmxTileRowBytes + blocks * steps - 1) / (blocks * steps);
  Ahead ahead{static_cast<const std::byte*>(job.panels) + (panel + kPanels) * job.panel_stride * 2,
              lines};
  std::int64_t row = rows.first;
  if (rows.end - row >= kBlockRows) {
    configure_tiles(kBlockRows);
  }
  for (; rows.end - row >= kBlockRows; row += kBlockRows) {
    block<2, kPanels>(job, row, kBlockRows, panel, ahead);
    ahead.next += lines * steps * kAmxTileRowBytes;
  }
  const std::int64_t left = rows.end - row;
  if (left > 0) {
    configure_tiles(left);
    left > kAmxTileRows ? block<2, kPanels>(job, row, left, panel, ahead)
                        : block<1, kPanels>(job, row, left, panel, ahead);
  }
}

void product_bf16(const ProductJob& job) {
  if (job.rows <= kAmxTileRows) {
    product_stream(job);
    _tile_release();
    return;
  }
  const std::int64_t panels = panels_for(job.cols);
  const std::int64_t fitting = kResidentBytes / (job.x_stride * 2) / kBlockRows * kBlockRows;
  const std::int64_t most = fitting < 4 * kBlockRows ? 4 * kBlockRows : fitting;
  // Parts of equal size: each reads all panels once.
  const std::int64_t parts = (job.rows + most - 1) / most;
  const std::int64_t step =
      ((job.rows + parts - 1) / parts + kBlockRows - 1) / kBlockRows * kBlockRows;
  for (std::int64_t first = 0; first < job.rows; first += step) {
    const RowRange rows{first, first + step < job.rows ? first + step : job.rows};
    std::int64_t panel = 0;
    for (; panel + 2 <= panels; panel += 2) {
      product_column<2>(job, rows, panel);
    }
    if (panel < panels) {
      product_column<1>(job, rows, panel);
    }
  }
  _tile_release();
}

double peak_bf16(std::int64_t rounds) {
  alignas(64) std::uint16_t zeros[kStepElements] = {};
  configure_tiles(kBlockRows);
  tile_memory_barrier(zeros);
  _tile_loadd(4, zeros, kAmxTileRowBytes);
  _tile_loadd(5, zeros, kAmxTileRowBytes);
  _tile_loadd(6, zeros, kAmxTileRowBytes);
  _tile_loadd(7, zeros, kAmxTileRowBytes);
  constexpr std::int64_t kCycleRatio = 16;  // cycles of a tile instruction per vector instruction
  const std::int64_t steps = rounds / kCycleRatio;
  for (std::int64_t i = 0; i < steps; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  alignas(64) float sums[kAmxTileRows * kPanel];
  _tile_stored(0, sums, kAmxTileRowBytes);
  _tile_release();
  constexpr double kFlops = 2.0 * kAmxTileRows * kPanel * kAmxTileDepth;
  // Using the sums keeps the compiler from removing the loop.
  return static_cast<double>(steps) * 4 * kFlops + static_cast<double>(sums[0]);
}

}  // namespace

void add_amx_kernels(KernelTable& table) noexcept {
  table.product_bf16 = product_bf16;
  table.tile_panels = 2;
  table.made_panel_bytes = kMadePanelBytes;
  table.peak_bf16 = peak_bf16;
}

}  // namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA
