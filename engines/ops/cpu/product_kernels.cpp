// SPDX-License-Identifier: Apache-2.0
// Matrix products of rows with the packed panels of a weight.
//
// A register tile holds the sums of a few rows of x with a few panels and goes through the depth
// once. Each element is one chain of multiply-adds, so neither the size of the tile nor the
// position of an element in it affects the bits (R1 of ops.hpp). Products of bfloat16 elements are
// exact and added in float32: pair by pair if the processor has such an instruction (AVX-512 BF16),
// which flushes denormals and gives different bits, or else one after the other.
#include <cstdint>
#include <cstring>

#include "engines/ops/cpu/halves.hpp"
#include "engines/ops/cpu/isa_kernels.hpp"
#include "engines/ops/cpu/kernels.hpp"
#include "engines/ops/cpu/product_loops.hpp"
#include "engines/ops/cpu/vec.hpp"

namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA {
namespace {

// Rows of the tallest tile, and panels in a tile of `rows` rows. The register file holds the sums,
// one step of the panels and a broadcast. A multiply-add waits for the previous one in its chain,
// so tiles of few rows have more panels. Up to `kStreamRows` rows, a product waits for memory
// instead; its tiles have one panel, since a single stream arrives fastest.
#if defined(__AVX512F__)
constexpr int kTallestTile = 8;
constexpr int kStreamRows = 16;
constexpr int tile_panels(int rows) {
  return rows <= 6 ? 4 : 3;
}
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int kTallestTile = 6;
constexpr int kStreamRows = 0;
constexpr int tile_panels(int rows) {
  return rows == 1 ? 4 : rows <= 3 ? 2 : 1;
}
#else
constexpr int kTallestTile = 3;
constexpr int kStreamRows = 0;
constexpr int tile_panels(int rows) {
  return rows > 0 ? 1 : 0;
}
#endif

template <int kRows, int kPanels>
struct Sums {
  Register value[kRows][kPanels * kRegisters];
};

// The loops below are written as do-while loops because they run at least once. If GCC has to allow
// for zero iterations, it merges the sums with zeros in memory after the loop.

// Multiplies float32 rows by float32 panels.
struct PlainFloats {
  using Row = float;
  using Panel = float;

  template <int kRows, int kPanels, int kLines>
  [[gnu::always_inline]] static void accumulate(const Row* x, const ProductJob& job,
                                                const Panel* panels, const std::byte* next,
                                                Sums<kRows, kPanels>& sums) {
    std::int64_t k = 0;
    do {
      Register row[kPanels * kRegisters];
#pragma GCC unroll 16
      for (int v = 0; v < kPanels * kRegisters; ++v) {
        row[v] = load_register(panels + v / kRegisters * job.panel_stride + k * kPanel +
                               v % kRegisters * kRegisterFloats);
      }
      prefetch_lines<kLines>(next);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const Register factor = broadcast_register(x[r * job.x_stride + k]);
#pragma GCC unroll 16
        for (int v = 0; v < kPanels * kRegisters; ++v) {
          sums.value[r][v] = multiply_add(factor, row[v], sums.value[r][v]);
        }
      }
      ++k;
    } while (k < job.depth);
  }
};

#if defined(__AVX512BF16__)

// Multiplies rows by panels, both of bfloat16 pairs.
struct Bf16Pairs {
  using Row = std::uint16_t;
  using Panel = std::uint16_t;

  template <int kRows, int kPanels, int kLines>
  [[gnu::always_inline]] static void accumulate(const Row* x, const ProductJob& job,
                                                const Panel* panels, const std::byte* next,
                                                Sums<kRows, kPanels>& sums) {
    std::int64_t k = 0;
    do {
      __m512bh row[kPanels];
#pragma GCC unroll 16
      for (int v = 0; v < kPanels; ++v) {
        row[v] = reinterpret_cast<__m512bh>(
            _mm512_loadu_si512(panels + v * job.panel_stride + k * kPanel));
      }
      prefetch_lines<kLines>(next);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        std::int32_t pair = 0;
        std::memcpy(&pair, x + r * job.x_stride + k, sizeof(pair));
        const auto factor = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
#pragma GCC unroll 16
        for (int v = 0; v < kPanels; ++v) {
          sums.value[r][v] = reinterpret_cast<Register>(
              _mm512_dpbf16_ps(reinterpret_cast<__m512>(sums.value[r][v]), row[v], factor));
        }
      }
      k += 2;
    } while (k < job.depth);
  }
};

#else

// Multiplies rows of floats that hold bfloat16 values by panels of bfloat16 pairs.
struct Bf16Pairs {
  using Row = float;
  using Panel = std::uint16_t;

  // Selects an element of each pair.
  enum class Half { kFirst, kSecond };

  template <Half kHalf>
  static Register widen(const Panel* pairs) {
    WordRegister words;
    std::memcpy(&words, pairs, sizeof(words));
    return reinterpret_cast<Register>(kHalf == Half::kFirst ? words << 16U : words & 0xFFFF0000U);
  }

  template <Half kHalf, int kRows, int kPanels>
  static void add_half(const Row* x, const ProductJob& job, const Panel* panels, std::int64_t k,
                       Sums<kRows, kPanels>& sums) {
    Register row[kPanels * kRegisters];
#pragma GCC unroll 16
    for (int v = 0; v < kPanels * kRegisters; ++v) {
      row[v] = widen<kHalf>(panels + v / kRegisters * job.panel_stride + k * kPanel +
                            v % kRegisters * 2 * kRegisterFloats);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Register factor =
          broadcast_register(x[r * job.x_stride + k + (kHalf == Half::kSecond ? 1 : 0)]);
#pragma GCC unroll 16
      for (int v = 0; v < kPanels * kRegisters; ++v) {
        sums.value[r][v] = multiply_add(factor, row[v], sums.value[r][v]);
      }
    }
  }

  template <int kRows, int kPanels, int kLines>
  [[gnu::always_inline]] static void accumulate(const Row* x, const ProductJob& job,
                                                const Panel* panels, const std::byte* next,
                                                Sums<kRows, kPanels>& sums) {
    std::int64_t k = 0;
    do {
      prefetch_lines<kLines>(next);
      add_half<Half::kFirst>(x, job, panels, k, sums);
      add_half<Half::kSecond>(x, job, panels, k, sums);
      k += 2;
    } while (k < job.depth);
  }
};

#endif

// Describes tiles for `product` (see product_loops.hpp), given how to accumulate one.
template <class Accumulate>
struct Elements {
  using Row = typename Accumulate::Row;
  using Panel = typename Accumulate::Panel;
  static constexpr int kMaxRows = kTallestTile;
  static constexpr int kStreamRows = TIDEMILL_CPU_ISA::kStreamRows;
  static constexpr int kStreamLines = 1;
  static constexpr std::int64_t kRowBytes = sizeof(Row);
  static constexpr std::int64_t kPanelBytes = sizeof(Panel);
  static constexpr int panels_per_tile(int rows) { return tile_panels(rows); }

  template <int kRows, int kPanels, int kLines>
  static void tile(const ProductJob& job, std::int64_t row, std::int64_t panel,
                   const std::byte* next) {
    tile_at<kRows, kPanels, kLines>(
        job, static_cast<const Row*>(job.x) + row * job.x_stride,
        static_cast<const Panel*>(job.panels) + panel * job.panel_stride, next, row, panel);
  }

private:
  // Not inlined, so that the addresses of the operands are plain pointers. Otherwise GCC mixes
  // their computation into the address arithmetic of the loop, which costs about 6% of a tile of
  // depth 16.
  template <int kRows, int kPanels, int kLines>
  [[gnu::noinline]] static void tile_at(const ProductJob& job, const Row* x, const Panel* panels,
                                        const std::byte* next, std::int64_t row,
                                        std::int64_t panel) {
    Sums<kRows, kPanels> sums = {};
    prefetch_results<kRows, kPanels>(job, row, panel);
    Accumulate::template accumulate<kRows, kPanels, kLines>(x, job, panels, next, sums);
    finish_tile<kRows, kPanels>(job, row, panel, sums.value);
  }
};

std::int64_t product_width(std::int64_t rows) {
  return rows <= kStreamRows ? 1 : tile_panels(static_cast<int>(even_height(rows, kTallestTile)));
}

#if defined(__AVX512BF16__)

void store_rounded(std::uint16_t* to, const Vec& value, std::int64_t count) {
  store_halves(to, value, count);
}

#else

void store_rounded(float* to, const Vec& value, std::int64_t count) {
  store_some(to, value, count);
}

#endif

void round_to_bf16(ConstMatrix x, RowRange rows, void* out, std::int64_t out_stride) {
  for (std::int64_t t = rows.first; t < rows.end; ++t) {
    auto* to = static_cast<Bf16Pairs::Row*>(out) + t * out_stride;
    for (std::int64_t j = 0; j < x.cols; j += kLanes) {
      const std::int64_t count = x.cols - j;
      store_rounded(to + j, bf16_rounded(load_some(x.row(t) + j, count)), count);
    }
    if (x.cols % 2 != 0) {
      to[x.cols] = Bf16Pairs::Row{0};
    }
  }
}

}  // namespace

void add_product_kernels(KernelTable& table) noexcept {
  table.product_f32 = product<Elements<PlainFloats>>;
  table.product_bf16 = product<Elements<Bf16Pairs>>;
  table.product_width = product_width;
  table.round_to_bf16 = round_to_bf16;
  table.rounded_bytes = sizeof(Bf16Pairs::Row);
}

}  // namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA
