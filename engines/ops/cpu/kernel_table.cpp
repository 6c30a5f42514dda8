// SPDX-License-Identifier: Apache-2.0
// Builds the kernel table of one instruction set.
#include "engines/ops/cpu/isa_kernels.hpp"
#include "engines/ops/cpu/vec.hpp"

namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA {
namespace {

#if defined(__AMX_BF16__) || defined(__AMXBF16__)  // GCC's name and that of older clang

KernelTable make_table() noexcept {
  KernelTable table = isa_avx512_bf16::kernels();
  table.isa = "AMX";
  add_amx_kernels(table);
  add_amx_attention_kernels(table);
  add_amx_attention_backward_kernels(table);
  return table;
}

#elif defined(__AVX512BF16__)

KernelTable make_table() noexcept {
  KernelTable table = isa_avx512::kernels();
  table.isa = "AVX-512 BF16";
  add_int8_kernels(table);
  add_peak_kernels(table);
  add_product_kernels(table);
  add_attention_kernels(table);
  add_attention_backward_kernels(table);
  return table;
}

#else

KernelTable make_table() noexcept {
  KernelTable table;
  table.isa = kRegisterFloats == 16 ? "AVX-512" : kRegisterFloats == 8 ? "AVX2" : "no FMA";
  add_product_kernels(table);
  add_int8_kernels(table);
  add_low_rank_kernels(table);
  add_nf4_kernels(table);
  add_panel_kernels(table);
  add_peak_kernels(table);
  add_weight_gradient_kernels(table);
  add_optimizer_kernels(table);
  add_row_kernels(table);
  add_loss_kernels(table);
  add_sampling_kernels(table);
  add_attention_kernels(table);
  add_attention_backward_kernels(table);
  return table;
}

#endif

}  // namespace

const KernelTable& kernels() noexcept {
  static const KernelTable table = make_table();
  return table;
}

}  // namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA
