// SPDX-License-Identifier: Apache-2.0
#include "engines/ops/cpu/panels.hpp"

#include <algorithm>
#include <array>

#include "base/block_int8.hpp"
#include "engines/ops/cpu/team.hpp"
#include "engines/ops/weight_elements.hpp"

namespace tidemill::engines::cpu {
namespace {

// Copies rows [first, first + count) of the weight, in the type of the panels, `stride` elements
// apart; the rest of a row is left as it is.
template <class Element>
void copy_rows(const WeightView& weight, std::int64_t first, std::int64_t count,
               std::int64_t stride, Element* to) {
  for (std::int64_t row = 0; row < count; ++row) {
    const std::int64_t offset = (first + row) * weight.in_features;
    for (std::int64_t k = 0; k < weight.in_features; ++k) {
      store_element(weight_element(weight, offset + k), to + row * stride + k);
    }
  }
}

// Rows of a panel, as the packing kernel reads them.
struct PanelRows {
  const void* data = nullptr;
  std::int64_t stride = 0;
};

// Returns the rows of panel `panel` in the panels' type: the weight's own where they already are.
PanelRows rows_of(const WeightView& weight, const PanelShape& shape, std::int64_t panel,
                  Scratch& scratch) {
  const std::int64_t first = panel * kPanel;
  if (weight.dtype == shape.dtype) {
    const auto bytes = static_cast<std::int64_t>(dtype_bytes(weight.dtype));
    return {static_cast<const std::byte*>(weight.data) + first * weight.in_features * bytes,
            weight.in_features};
  }
  const std::int64_t count = std::min(kPanel, weight.out_features - first);
  float* copy = scratch.floats(kPanel * weight.in_features);
  if (shape.dtype == DType::kBF16) {
    copy_rows(weight, first, count, weight.in_features, reinterpret_cast<std::uint16_t*>(copy));
  } else {
    copy_rows(weight, first, count, weight.in_features, copy);
  }
  return {copy, weight.in_features};
}

// Returns block `index` of the flat weight: its own, or one made of its elements.
BlockI8 block_of(const WeightView& weight, std::int64_t index) {
  if (weight.dtype == DType::kBlockI8) {
    return static_cast<const BlockI8*>(weight.data)[index];
  }
  constexpr std::int64_t kElements = BlockI8::kElements;
  std::array<float, BlockI8::kElements> values{};
  for (std::int64_t i = 0; i < kElements; ++i) {
    values[static_cast<std::size_t>(i)] = weight_element(weight, index * kElements + i);
  }
  return quantize_block(values);
}

// Four features of an output side by side, outputs in turn. Outputs that are not there are 0.
void pack_blocks(const WeightView& weight, const PanelShape& shape, std::int64_t panel,
                 std::byte* to) {
  constexpr std::int64_t kElements = BlockI8::kElements;
  constexpr std::int64_t kGroup = 4;
  const std::int64_t blocks = shape.depth / kElements;
  for (std::int64_t lane = 0; lane < kPanel; ++lane) {
    const std::int64_t row = panel * kPanel + lane;
    for (std::int64_t block = 0; block < blocks; ++block) {
      const BlockI8 from = row < shape.cols ? block_of(weight, row * blocks + block) : BlockI8{};
      auto* values = reinterpret_cast<std::uint8_t*>(to + int8_values_at(block));
      reinterpret_cast<std::uint16_t*>(to + int8_scales_at(block))[lane] = from.scale;
      for (std::int64_t i = 0; i < kElements; ++i) {
        values[(i / kGroup * kPanel + lane) * kGroup + i % kGroup] =
            static_cast<std::uint8_t>(from.values[static_cast<std::size_t>(i)] + 128);
      }
    }
  }
}

}  // namespace

PanelWeight::PanelWeight(const WeightView& weight, DType compute, const KernelTable& kernels,
                         Team& team)
    : shape_{weight.in_features, weight.out_features, compute}, bytes_(shape_.size_bytes()) {
  const auto pack = compute == DType::kBF16 ? kernels.pack_bf16 : kernels.pack_f32;
  team.share(shape_.num_panels(), shape_.depth * kPanel / 2,
             [&](std::int64_t part, std::int64_t begin, std::int64_t end) {
               for (std::int64_t panel = begin; panel < end; ++panel) {
                 if (compute == DType::kBlockI8) {
                   pack_blocks(weight, shape_, panel, bytes_.data() + panel * shape_.panel_bytes());
                   continue;
                 }
                 const PanelRows rows = rows_of(weight, shape_, panel, team.scratch(part));
                 pack({.rows = rows.data,
                       .row_stride = rows.stride,
                       .num_rows = std::min(kPanel, shape_.cols - panel * kPanel),
                       .depth = shape_.depth,
                       .panel = bytes_.data() + panel * shape_.panel_bytes()});
               }
             });
}

}  // namespace tidemill::engines::cpu
