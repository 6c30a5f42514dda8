// SPDX-License-Identifier: Apache-2.0
// Linear layers with NF4 weights. A few panels at a time are expanded to bfloat16 in a worker's
// cache and multiplied there, so each result has the bits of the bfloat16 product.
#include <algorithm>

#include "base/tensor/block_nf4.hpp"
#include "engines/ops/cpu/cpu_ops.hpp"
#include "engines/ops/cpu/product_cuts.hpp"

namespace tidemill::engines::cpu {
namespace {

// Expanding a panel costs about as much as multiplying this many rows by it.
constexpr std::int64_t kExpandRows = 12;

ExpandJob expand_job(const PanelWeight& weight) {
  ExpandJob job;
  job.shape = weight.shape();
  job.panels = weight.data();
  job.scale_values = nf4_scale_values().data();
  job.element_values = kNf4Values.data();
  return job;
}

}  // namespace

void CpuOps::multiply_nf4(const ProductJob& whole, const PanelWeight& weight,
                          std::int64_t first_panel) {
  const std::int64_t panels = panels_for(whole.cols);
  const std::int64_t elements = whole.depth * kPanel;
  const std::int64_t width = panels_made_at_once(panels, 2 * elements, team_.size(), kernels_);
  const std::int64_t groups = (panels + width - 1) / width;
  team_.parallel_for(groups, whole.depth * (whole.rows + kExpandRows) * width * kPanel / kRate,
                     [&](std::int64_t part, std::int64_t begin, std::int64_t end) {
                       std::byte* expanded = team_.scratch(part).bytes(width * elements * 2);
                       ExpandJob expand = expand_job(weight);
                       expand.num_rows = whole.depth;
                       expand.out = reinterpret_cast<std::uint16_t*>(expanded);
                       for (std::int64_t group = begin; group < end; ++group) {
                         const std::int64_t first = group * width;
                         const std::int64_t last = std::min(first + width, panels);
                         expand.first_panel = first_panel + first;
                         expand.num_panels = last - first;
                         kernels_.expand_nf4(expand);
                         kernels_.product_bf16(panels_of(whole, first, last, expanded, elements));
                       }
                     });
}

void CpuOps::linear_backward_input_nf4(ConstMatrix dy, const PanelWeight& weight,
                                       std::int64_t first_input, Store store, Matrix dx) {
  const ProductJob whole =
      product_of(product_rows(dy, DType::kBF16, dx.cols), dy.cols, {}, store, dx);
  const std::int64_t panels = panels_for(dx.cols);
  const std::int64_t elements = weight.shape().num_panels() * kPanel * kPanel;
  const std::int64_t width = panels_made_at_once(panels, 2 * elements, team_.size(), kernels_);
  const std::int64_t groups = (panels + width - 1) / width;
  team_.parallel_for(
      groups, dy.cols * (dx.rows + 2 * kExpandRows) * width * kPanel / kRate,
      [&](std::int64_t part, std::int64_t begin, std::int64_t end) {
        // The same strip of the weight twice: as panels of outputs, and transposed.
        std::byte* expanded = team_.scratch(part).bytes(2 * width * elements * 2);
        std::byte* transposed = expanded + width * elements * 2;
        ExpandJob expand = expand_job(weight);
        expand.num_panels = weight.shape().num_panels();
        expand.out = reinterpret_cast<std::uint16_t*>(expanded);
        for (std::int64_t group = begin; group < end; ++group) {
          const std::int64_t first = group * width;
          const std::int64_t last = std::min(first + width, panels);
          expand.first_row = first_input + first * kPanel;
          expand.num_rows = (last - first) * kPanel;
          kernels_.expand_nf4(expand);
          kernels_.transpose_bf16({.shape = {expand.num_rows, weight.shape().cols, DType::kBF16},
                                   .panels = expanded,
                                   .first_panel = 0,
                                   .num_panels = last - first,
                                   .out = transposed,
                                   .out_stride = elements});
          kernels_.product_bf16(panels_of(whole, first, last, transposed, elements));
        }
      });
}

}  // namespace tidemill::engines::cpu
