// SPDX-License-Identifier: Apache-2.0
// Packing of weights into panels.
#include "engines/ops/cpu/packed_weight.hpp"

#include <algorithm>

#include "engines/ops/cpu/kernels.hpp"
#include "engines/ops/cpu/team.hpp"
#include "engines/ops/weight_elements.hpp"

namespace tidemill::engines::cpu {
namespace {

template <class Element>
void pack_panel(const WeightView& weight, Direction direction, const PackedMatrix& packed,
                std::int64_t panel) {
  Element* to = reinterpret_cast<Element*>(packed.panels.data()) + panel * packed.depth * kPanel;
  const std::int64_t first = panel * kPanel;
  const std::int64_t count = std::min(kPanel, packed.cols - first);
  std::fill_n(to, packed.depth * kPanel, Element{0});
  if (direction == Direction::kForward) {
    for (std::int64_t j = 0; j < count; ++j) {
      for (std::int64_t k = 0; k < packed.depth; ++k) {
        store_element(weight_element(weight, (first + j) * packed.depth + k), to + k * kPanel + j);
      }
    }
  } else {
    for (std::int64_t k = 0; k < packed.depth; ++k) {
      for (std::int64_t j = 0; j < count; ++j) {
        store_element(weight_element(weight, k * packed.cols + first + j), to + k * kPanel + j);
      }
    }
  }
}

std::int64_t operand_bytes(const LinearOperand& operand) {
  return operand.builtin.panels.size() + (operand.onednn ? operand.onednn->size_bytes() : 0);
}

}  // namespace

std::int64_t PackedWeight::size_bytes() const noexcept {
  return operand_bytes(forward) + operand_bytes(backward);
}

PackedMatrix pack_matrix(const WeightView& weight, DType compute, Direction direction, Team& team) {
  const bool forward = direction == Direction::kForward;
  PackedMatrix packed;
  packed.depth = forward ? weight.in_features : weight.out_features;
  packed.cols = forward ? weight.out_features : weight.in_features;
  packed.dtype = compute;
  const std::int64_t panels = panels_for(packed.cols);
  packed.panels = AlignedBytes(panels * packed.depth * kPanel *
                               static_cast<std::int64_t>(dtype_bytes(compute)));
  team.share(panels, 2 * packed.depth * kPanel,
             [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) {
               for (std::int64_t panel = begin; panel < end; ++panel) {
                 if (compute == DType::kBF16) {
                   pack_panel<std::uint16_t>(weight, direction, packed, panel);
                 } else {
                   pack_panel<float>(weight, direction, packed, panel);
                 }
               }
             });
  return packed;
}

}  // namespace tidemill::engines::cpu
