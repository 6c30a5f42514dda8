// SPDX-License-Identifier: Apache-2.0
// Loops that only multiply-add in registers or only read memory, to measure peak rates.
#include <cstdint>
#include <cstring>

#include "engines/ops/cpu/isa_kernels.hpp"
#include "engines/ops/cpu/kernels.hpp"
#include "engines/ops/cpu/vec.hpp"

namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA {
namespace {

// Independent chains: more than the latency times the issue rate of any processor, and few enough
// for the register file.
constexpr int kChains = 12;

template <class Step>
double chains(std::int64_t rounds, double flops_per_step, const Step& step) {
  Register sums[kChains];
  for (Register& sum : sums) {
    sum = broadcast_register(1.0F);
  }
  for (std::int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) {
      sums[c] = step(sums[c]);
    }
  }
  float lanes[kRegisterFloats];
  double keep = 0.0;
  for (const Register& sum : sums) {
    store_register(lanes, sum);
    keep += double{lanes[0]};
  }
  // Using the sums keeps the compiler from removing the loop. They are about 1, so the condition
  // never holds.
  return static_cast<double>(rounds) * kChains * flops_per_step + (keep > 1e30 ? 1.0 : 0.0);
}

double peak_f32(std::int64_t rounds) {
  const Register a = broadcast_register(0.999F);
  const Register b = broadcast_register(0.001F);
  return chains(rounds, 2.0 * kRegisterFloats,
                [&](Register sum) { return multiply_add(sum, a, b); });
}

#if defined(__AVX512BF16__)
double peak_bf16(std::int64_t rounds) {
  const auto a = reinterpret_cast<__m512bh>(_mm512_set1_epi16(0x3C00));
  return chains(rounds, 4.0 * kRegisterFloats, [&](Register sum) {
    return reinterpret_cast<Register>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(sum), a, a));
  });
}
#else
double peak_bf16(std::int64_t rounds) {
  return peak_f32(rounds);
}
#endif

double read_bytes(const std::byte* from, std::int64_t bytes) {
  constexpr std::int64_t kStep = 8 * sizeof(Register);
  WordRegister sums[8] = {};
  for (std::int64_t at = 0; at + kStep <= bytes; at += kStep) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      WordRegister words;
      std::memcpy(&words, from + at + i * static_cast<std::int64_t>(sizeof(words)), sizeof(words));
      sums[i] += words;
    }
  }
  double sum = 0.0;
  for (const WordRegister& words : sums) {
    sum += static_cast<double>(words[0]);
  }
  return sum;
}

}  // namespace

void add_peak_kernels(KernelTable& table) noexcept {
  table.peak_f32 = peak_f32;
  table.peak_bf16 = peak_bf16;
  table.read_bytes = read_bytes;
}

}  // namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA
