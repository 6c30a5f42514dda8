// SPDX-License-Identifier: Apache-2.0
// Attention, with the products of the vector registers.
#include <cstdint>

#include "engines/ops/cpu/attention.hpp"
#include "engines/ops/cpu/attention_kinds.hpp"
#include "engines/ops/cpu/isa_kernels.hpp"
#include "engines/ops/cpu/kernels.hpp"

namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA {
namespace {

std::int64_t attention_scratch(const AttentionJob& job) {
  return Workspace<Floats>(job, nullptr).size();
}

}  // namespace

void add_attention_kernels(KernelTable& table) noexcept {
  table.attention_scratch = attention_scratch;
  table.attention_f32 = attention<Floats>;
  table.attention_bf16 = attention<Pairs>;
}

}  // namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA
