// SPDX-License-Identifier: Apache-2.0
// Expands NF4 panels to bfloat16 panels, a few at a time. The bfloat16 products then read them from
// the cache.
//
// An element is the scale of its block times one of 16 values, rounded to bfloat16. Every
// instruction set rounds each step separately: the product and the sum that give the scale, the
// product with the value, and the conversion to bfloat16.
#include <cstdint>
#include <cstring>

#include "engines/ops/cpu/isa_kernels.hpp"
#include "engines/ops/cpu/kernels.hpp"
#include "engines/ops/cpu/vec.hpp"

namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA {
namespace {

constexpr std::int64_t kBlock = 64;
constexpr std::int64_t kGroup = 256;

// Holds the 16 values so that each lane of a register can select one of them.
struct Values {
  explicit Values(const float* from) : table(from) {
#pragma GCC unroll 4
    for (int i = 0; i < kRegisters; ++i) {
      part[i] = load_register(from + i * kRegisterFloats);
    }
  }

  // Returns the value of each lane's code; only its lowest four bits may be set.
  [[nodiscard]] Register pick(WordRegister codes) const {
#if defined(__AVX512F__)
    // For the reason to use the masked form, see vec.hpp.
    return reinterpret_cast<Register>(_mm512_maskz_permutexvar_ps(
        kAllLanes, reinterpret_cast<__m512i>(codes), reinterpret_cast<__m512>(part[0])));
#elif defined(__AVX2__) && defined(__FMA__)
    const auto low = _mm256_permutevar8x32_ps(reinterpret_cast<__m256>(part[0]),
                                              reinterpret_cast<__m256i>(codes));
    const auto high = _mm256_permutevar8x32_ps(reinterpret_cast<__m256>(part[1]),
                                               reinterpret_cast<__m256i>(codes));
    return reinterpret_cast<Register>(
        _mm256_blendv_ps(low, high, reinterpret_cast<__m256>(codes << 28U)));
#else
    Register out = {};
    for (std::int64_t lane = 0; lane < kRegisterFloats; ++lane) {
      out[lane] = table[codes[lane]];
    }
    return out;
#endif
  }

  const float* table;
  Register part[kRegisters];
};

inline WordRegister widen_bytes(const std::uint8_t* from) {
#if !defined(__AVX512F__) && defined(__AVX2__) && defined(__FMA__)
  std::int64_t bytes = 0;
  std::memcpy(&bytes, from, sizeof(bytes));
  return reinterpret_cast<WordRegister>(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes)));
#else
  using Bytes = std::uint8_t __attribute__((vector_size(kRegisterFloats)));
  Bytes bytes;
  std::memcpy(&bytes, from, sizeof(bytes));
  return __builtin_convertvector(bytes, WordRegister);
#endif
}

// Rounds to bfloat16, ties to even; the result is in the upper half of each word. The lower half is
// arbitrary. Requires finite numbers.
inline WordRegister rounded_up(Register x) {
  const auto bits = reinterpret_cast<WordRegister>(x);
  return bits + 0x7FFFU + ((bits >> 16U) & 1U);
}

// Returns the scales of one block of all outputs of a panel; 0 for outputs past the last one.
Vec block_scales(const ExpandJob& job, std::int64_t panel, std::int64_t block) {
  const std::int64_t blocks = job.shape.depth / kBlock;
  const std::byte* end = job.panels + job.shape.num_panels() * job.shape.panel_bytes();
  const auto* shared = reinterpret_cast<const float*>(end);
  const float offset = shared[job.shape.num_shared() - 1];
  const auto* codes = reinterpret_cast<const std::uint8_t*>(
      job.panels + panel * job.shape.panel_bytes() + (job.shape.depth / 2 + block) * kPanel);
  float scales[kPanel] = {};
  for (std::int64_t lane = 0; lane < kPanel; ++lane) {
    const std::int64_t row = panel * kPanel + lane;
    if (row < job.shape.cols) {
      const float product = job.scale_values[codes[lane]] * shared[(row * blocks + block) / kGroup];
      scales[lane] = product + offset;
    }
  }
  return load(scales);
}

void expand_pairs(const Values& values, const Vec& scales, const std::uint8_t* codes,
                  std::int64_t num_pairs, std::uint16_t* out) {
  for (std::int64_t pair = 0; pair < num_pairs; ++pair) {
#pragma GCC unroll 4
    for (int i = 0; i < kRegisters; ++i) {
      const WordRegister both = widen_bytes(codes + pair * kPanel + i * kRegisterFloats);
      const WordRegister first = rounded_up(values.pick(both >> 4U) * scales.part[i]);
      const WordRegister second = rounded_up(values.pick(both & 15U) * scales.part[i]);
      const WordRegister word = (first >> 16U) | (second & 0xFFFF0000U);
      std::memcpy(out + 2 * (pair * kPanel + i * kRegisterFloats), &word, sizeof(word));
    }
  }
}

void expand_nf4(const ExpandJob& job) {
  const Values values(job.element_values);
  const std::int64_t end = job.first_row + job.num_rows;
  for (std::int64_t panel = 0; panel < job.num_panels; ++panel) {
    const auto* codes = reinterpret_cast<const std::uint8_t*>(
        job.panels + (job.first_panel + panel) * job.shape.panel_bytes());
    std::uint16_t* out = job.out + panel * job.num_rows * kPanel;
    for (std::int64_t row = job.first_row; row < end;) {
      const std::int64_t block = row / kBlock;
      const std::int64_t next = (block + 1) * kBlock < end ? (block + 1) * kBlock : end;
      expand_pairs(values, block_scales(job, job.first_panel + panel, block),
                   codes + row / 2 * kPanel, (next - row) / 2,
                   out + (row - job.first_row) * kPanel);
      row = next;
    }
  }
}

}  // namespace

void add_nf4_kernels(KernelTable& table) noexcept {
  table.expand_nf4 = expand_nf4;
}

}  // namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA
