// SPDX-License-Identifier: Apache-2.0
// Products of rows with panels of block int8 weights.
//
// Rows of x are rounded to blocks too: 32 elements share the scale max|x| / 127. The dot product of
// two blocks is then a sum of integers, exact in any order and on every processor. Block after
// block, it is converted to float and added to the sum by one multiply-add with the product of both
// scales. Weights are stored as unsigned bytes with 128 added. What that adds to the dot product of
// a block depends on the row of x alone and is subtracted in advance.
#include <cstdint>
#include <cstring>
#include <utility>

#include "engines/ops/cpu/isa_kernels.hpp"
#include "engines/ops/cpu/kernels.hpp"
#include "engines/ops/cpu/product_loops.hpp"
#include "engines/ops/cpu/vec.hpp"

namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA {
namespace {

constexpr std::int64_t kBlock = 32;
constexpr std::int64_t kGroup = 4;  // adjacent elements of one column

// Holds four elements of a row of x in the form that `add_dot` takes.
struct Four {
#if defined(__AVX512VNNI__)
  IntRegister all;
#elif defined(__AVX2__) && defined(__FMA__)
  IntRegister even;  // elements 0 and 2 as 16-bit numbers
  IntRegister odd;
#else
  std::int32_t each[kGroup];
#endif
};

inline IntRegister broadcast_int(std::int32_t x) {
  return IntRegister{} + x;
}

inline Four load_four(const std::int8_t* from) {
  Four four;
#if defined(__AVX512VNNI__)
  std::int32_t word = 0;
  std::memcpy(&word, from, sizeof(word));
  four.all = broadcast_int(word);
#elif defined(__AVX2__) && defined(__FMA__)
  const auto pair = [](std::int8_t low, std::int8_t high) {
    return broadcast_int(static_cast<std::int32_t>(
        static_cast<std::uint16_t>(low) |
        (static_cast<std::uint32_t>(static_cast<std::uint16_t>(high)) << 16U)));
  };
  four.even = pair(from[0], from[2]);
  four.odd = pair(from[1], from[3]);
#else
  for (std::int64_t i = 0; i < kGroup; ++i) {
    // NOLINTNEXTLINE(bugprone-signed-char-misuse): it is a number
    four.each[i] = static_cast<std::int32_t>(from[i]);
  }
#endif
  return four;
}

#if defined(__AVX2__) && defined(__FMA__) && !defined(__AVX512VNNI__)
// Returns the dot product of two 16-bit integers in each lane.
inline IntRegister dot_of_pairs(WordRegister a, IntRegister b) {
#if defined(__AVX512BW__)
  return reinterpret_cast<IntRegister>(
      _mm512_madd_epi16(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#else
  return reinterpret_cast<IntRegister>(
      _mm256_madd_epi16(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#endif
}
#endif

// Returns `sum` plus, in each lane, the dot product of four unsigned bytes with the elements of x.
inline IntRegister add_dot(IntRegister sum, WordRegister bytes, const Four& x) {
#if defined(__AVX512VNNI__)
  return reinterpret_cast<IntRegister>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sum),
                                                           reinterpret_cast<__m512i>(bytes),
                                                           reinterpret_cast<__m512i>(x.all)));
#elif defined(__AVX2__) && defined(__FMA__)
  const WordRegister even = bytes & 0x00FF00FFU;
  const WordRegister odd = (bytes >> 8U) & 0x00FF00FFU;
  return sum + dot_of_pairs(even, x.even) + dot_of_pairs(odd, x.odd);
#else
  for (std::uint32_t i = 0; i < kGroup; ++i) {
    sum += reinterpret_cast<IntRegister>((bytes >> (8U * i)) & 0xFFU) * x.each[i];
  }
  return sum;
#endif
}

// Widens finite IEEE halves, which is exact.
inline Register widen_halves(const std::uint16_t* from) {
  HalfRegister halves;
  std::memcpy(&halves, from, sizeof(halves));
  const WordRegister words = __builtin_convertvector(halves, WordRegister);
  const auto magnitude = reinterpret_cast<Register>((words & 0x7FFFU) << 13U);
  const auto scaled = reinterpret_cast<WordRegister>(magnitude * broadcast_register(0x1p112F));
  return reinterpret_cast<Register>(scaled | ((words & 0x8000U) << 16U));
}

// Points to the parts of one block of a panel.
struct BlockParts {
  const std::byte* values;      // 8 x 16 x 4
  const std::uint16_t* scales;  // 16
  BlockParts(const std::byte* panel, std::int64_t block)
      : values(panel + int8_values_at(block)),
        scales(reinterpret_cast<const std::uint16_t*>(panel + int8_scales_at(block))) {}
};

// Points to the parts of a rounded row.
struct RowParts {
  const std::int8_t* values;    // one per element
  const float* scales;          // one per block
  const std::int32_t* offsets;  // one per block: minus 128 times the sum of its values
  RowParts(const void* row, std::int64_t depth)
      : values(static_cast<const std::int8_t*>(row)),
        scales(reinterpret_cast<const float*>(values + depth)),
        offsets(reinterpret_cast<const std::int32_t*>(scales + depth / kBlock)) {}
};

struct Int8Blocks {
#if defined(__AVX512F__)
  static constexpr int kMaxRows = 6;
  static constexpr int kStreamRows = 1;
  static constexpr int panels_per_tile(int rows) {
    return rows <= 2 ? 4 : rows <= 4 ? 3 : 2;
  }
#elif defined(__AVX2__) && defined(__FMA__)
  static constexpr int kMaxRows = 3;
  static constexpr int kStreamRows = 0;
  static constexpr int panels_per_tile(int rows) {
    return rows == 1 ? 2 : 1;
  }
#else
  static constexpr int kMaxRows = 1;
  static constexpr int kStreamRows = 0;
  static constexpr int panels_per_tile(int rows) {
    return rows > 0 ? 1 : 0;
  }
#endif
  // Measured: prefetching costs more than it saves.
  [[maybe_unused]] static constexpr int kStreamLines = 0;
  static constexpr std::int64_t kRowBytes = 1;
  static constexpr std::int64_t kPanelBytes = 1;

  template <int kRows, int kPanels, int kLines>
  static void tile(const ProductJob& job, std::int64_t row, std::int64_t panel,
                   const std::byte* next) {
    constexpr int kVectors = kPanels * kRegisters;
    const auto* x = static_cast<const std::byte*>(job.x) + row * job.x_stride;
    const auto* panels = static_cast<const std::byte*>(job.panels) + panel * job.panel_stride;
    Register sums[kRows][kVectors];
    prefetch_results<kRows, kPanels>(job, row, panel);
    add_blocks<kRows, kPanels, kLines>(job, x, panels, next, sums);
    finish_tile<kRows, kPanels>(job, row, panel, sums);
  }

private:
  // Not inlined for the reason given at `tile_at` in product_kernels.cpp.
  template <int kRows, int kPanels, int kLines>
  [[gnu::noinline]] static void add_blocks(const ProductJob& job, const std::byte* x,
                                           const std::byte* panels, const std::byte* next,
                                           Register (&out)[kRows][kPanels * kRegisters]) {
    Register sums[kRows][kPanels * kRegisters] = {};
    for (std::int64_t block = 0; block < job.depth / kBlock; ++block) {
      add_block<kRows, kPanels, kLines>(job, x, panels, next, block, sums);
    }
    std::memcpy(&out, &sums, sizeof(out));
  }

  template <int kRows, int kPanels, int kLines>
  static void add_block(const ProductJob& job, const std::byte* x, const std::byte* panels,
                        const std::byte*& next, std::int64_t block,
                        Register (&sums)[kRows][kPanels * kRegisters]) {
    constexpr int kVectors = kPanels * kRegisters;
    IntRegister whole[kRows][kVectors];
    prefetch_lines<kLines>(next);  // covers the scales: half a line per panel
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const RowParts parts(x + r * job.x_stride, job.depth);
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        whole[r][v] = broadcast_int(parts.offsets[block]);
      }
    }
    for (std::int64_t group = 0; group < kBlock / kGroup; ++group) {
      const std::int64_t at = int8_values_at(block) + group * kGroup * kPanel;
      prefetch_lines<kLines>(next);
      WordRegister bytes[kVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        std::memcpy(&bytes[v],
                    panels + v / kRegisters * job.panel_stride + at +
                        v % kRegisters * static_cast<std::int64_t>(sizeof(bytes[v])),
                    sizeof(bytes[v]));
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const Four four = load_four(reinterpret_cast<const std::int8_t*>(x) + r * job.x_stride +
                                    block * kBlock + group * kGroup);
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) {
          whole[r][v] = add_dot(whole[r][v], bytes[v], four);
        }
      }
    }
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const BlockParts parts(panels + v / kRegisters * job.panel_stride, block);
      const Register scale = widen_halves(parts.scales + v % kRegisters * kRegisterFloats);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const RowParts row(x + r * job.x_stride, job.depth);
        sums[r][v] = multiply_add(__builtin_convertvector(whole[r][v], Register),
                                  scale * broadcast_register(row.scales[block]), sums[r][v]);
      }
    }
  }
};

using Bytes = std::int8_t __attribute__((vector_size(kRegisterFloats)));

template <int kBy, class V, int... lane>
inline V rotated(V x, std::integer_sequence<int, lane...>) {
  return __builtin_shufflevector(x, x, ((lane + kBy) % kRegisterFloats)...);
}

// Combines all lanes of a register with an operation whose order does not matter.
template <int kBy = kRegisterFloats / 2, class V, class Combine>
inline V combine_lanes(V x, const Combine& combine) {
  const V both = combine(x, rotated<kBy>(x, std::make_integer_sequence<int, kRegisterFloats>()));
  if constexpr (kBy > 1) {
    return combine_lanes<kBy / 2>(both, combine);
  }
  return both;
}

// Returns the largest lane, or an arbitrary lane if one of them is NaN.
inline float largest(const Vec& value) {
  const auto larger = [](Register a, Register b) { return a < b ? b : a; };
  Register max = value.part[0];
  for (int i = 1; i < kRegisters; ++i) {
    max = larger(max, value.part[i]);
  }
  return combine_lanes(max, larger)[0];
}

inline std::int32_t sum_of(IntRegister value) {
  return combine_lanes(value, [](IntRegister a, IntRegister b) { return a + b; })[0];
}

// Stores 16 elements times `factor`, rounded to the nearest integer, ties to even. NaN becomes 0.
// Returns the sum of the integers of each lane.
inline IntRegister round_lanes(const Vec& x, const Vec& factor, std::int8_t* to) {
  // Adding 1.5 * 2^23 rounds to an integer; subtracting it again leaves that integer.
  const Vec magic = broadcast(12582912.0F);
  const Vec nearest = (x * factor + magic) - magic;
  const Vec whole = select(nearest != nearest, broadcast(0.0F), nearest);
  IntRegister sum = {};
#pragma GCC unroll 4
  for (int i = 0; i < kRegisters; ++i) {
    const auto numbers = __builtin_convertvector(whole.part[i], IntRegister);
    const auto bytes = __builtin_convertvector(numbers, Bytes);
    std::memcpy(to + i * kRegisterFloats, &bytes, sizeof(bytes));
    sum += numbers;
  }
  return sum;
}

// Rounds one block of a row. Stores its integers, its scale, and the offset that compensates for
// the 128 added to weights.
void round_block(const float* x, std::int8_t* values, float* scale, std::int32_t* offset) {
  const Vec zero = broadcast(0.0F);
  const Vec low = load(x);
  const Vec high = load(x + kLanes);
  const float max_abs = largest(maximum(maximum(low, zero - low), maximum(high, zero - high)));
  // x - x is not 0 if x is not finite. The scale is then NaN, so that the result is NaN too.
  const Vec difference = (low - low) + (high - high);
  const float d = any(difference != zero) ? __builtin_nanf("") : max_abs / 127.0F;
  const float inverse = 1.0F / d;
  const Vec factor = broadcast(inverse <= 3.4028234e38F ? inverse : 0.0F);
  const IntRegister sum =
      round_lanes(low, factor, values) + round_lanes(high, factor, values + kLanes);
  *scale = d;
  *offset = -128 * sum_of(sum);
}

void round_to_int8(ConstMatrix x, RowRange rows, void* out, std::int64_t out_stride) {
  const std::int64_t blocks = x.cols / kBlock;
  for (std::int64_t t = rows.first; t < rows.end; ++t) {
    auto* values = static_cast<std::int8_t*>(out) + t * out_stride;
    auto* scales = reinterpret_cast<float*>(values + x.cols);
    auto* offsets = reinterpret_cast<std::int32_t*>(scales + blocks);
    for (std::int64_t block = 0; block < blocks; ++block) {
      round_block(x.row(t) + block * kBlock, values + block * kBlock, scales + block,
                  offsets + block);
    }
  }
}

std::int64_t product_width_int8(std::int64_t rows) {
  return rows <= Int8Blocks::kStreamRows ? 1
                                         : Int8Blocks::panels_per_tile(static_cast<int>(
                                               even_height(rows, Int8Blocks::kMaxRows)));
}

// Builds panels of input features, widened exactly: out[o][i] for 16 inputs i.
void transpose_int8(const TransposeJob& job) {
  for (std::int64_t panel = 0; panel < job.num_panels; ++panel) {
    const std::int64_t first = (job.first_panel + panel) * kPanel;
    float* out = static_cast<float*>(job.out) + panel * job.out_stride;
    for (std::int64_t from = 0; from < job.shape.num_panels(); ++from) {
      const BlockParts parts(
          static_cast<const std::byte*>(job.panels) + from * job.shape.panel_elements(),
          first / kBlock);
      float scales[kPanel];
      for (int v = 0; v < kRegisters; ++v) {
        store_register(scales + v * kRegisterFloats,
                       widen_halves(parts.scales + v * kRegisterFloats));
      }
      for (std::int64_t i = 0; i < kPanel; ++i) {
        const std::int64_t feature = first % kBlock + i;
        const std::byte* values =
            parts.values + feature / kGroup * kGroup * kPanel + feature % kGroup;
        for (std::int64_t o = 0; o < kPanel; ++o) {
          out[(from * kPanel + o) * kPanel + i] =
              scales[o] * static_cast<float>(static_cast<std::int32_t>(values[o * kGroup]) - 128);
        }
      }
    }
  }
}

}  // namespace

void add_int8_kernels(KernelTable& table) noexcept {
  table.product_int8 = product<Int8Blocks>;
  table.product_width_int8 = product_width_int8;
  table.round_to_int8 = round_to_int8;
  table.transpose_int8 = transpose_int8;
}

}  // namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA
