// SPDX-License-Identifier: Apache-2.0
// The functions through which kernel files enter their kernels into the table of one instruction
// set.
#pragma once

#include "engines/ops/cpu/isa.hpp"
#include "engines/ops/cpu/kernels.hpp"

namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA {

void add_product_kernels(KernelTable& table) noexcept;
void add_amx_kernels(KernelTable& table) noexcept;
void add_amx_attention_kernels(KernelTable& table) noexcept;
void add_amx_attention_backward_kernels(KernelTable& table) noexcept;
void add_low_rank_kernels(KernelTable& table) noexcept;
void add_panel_kernels(KernelTable& table) noexcept;
void add_int8_kernels(KernelTable& table) noexcept;
void add_nf4_kernels(KernelTable& table) noexcept;
void add_peak_kernels(KernelTable& table) noexcept;
void add_weight_gradient_kernels(KernelTable& table) noexcept;
void add_optimizer_kernels(KernelTable& table) noexcept;
void add_row_kernels(KernelTable& table) noexcept;
void add_loss_kernels(KernelTable& table) noexcept;
void add_sampling_kernels(KernelTable& table) noexcept;
void add_attention_kernels(KernelTable& table) noexcept;
void add_attention_backward_kernels(KernelTable& table) noexcept;

}  // namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA
