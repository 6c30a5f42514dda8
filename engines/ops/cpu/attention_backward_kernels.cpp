// SPDX-License-Identifier: Apache-2.0
// Gradients of attention, with the products of the vector registers.
#include <cstdint>

#include "engines/ops/cpu/attention_backward.hpp"
#include "engines/ops/cpu/attention_kinds.hpp"
#include "engines/ops/cpu/isa_kernels.hpp"
#include "engines/ops/cpu/kernels.hpp"

namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA {

void add_attention_backward_kernels(KernelTable& table) noexcept {
  table.attention_backward_scratch_f32 = attention_backward_scratch<Floats>;
  table.attention_backward_f32 = attention_backward<Floats>;
  table.attention_backward_scratch_bf16 = attention_backward_scratch<Pairs>;
  table.attention_backward_bf16 = attention_backward<Pairs>;
}

}  // namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA
