// SPDX-License-Identifier: Apache-2.0
#include "engines/ops/cpu/panels.hpp"

#include <algorithm>
#include <array>
#include <atomic>

#include "base/block_int8.hpp"
#include "base/block_nf4.hpp"
#include "engines/ops/cpu/team.hpp"
#include "engines/ops/weight_elements.hpp"

namespace tidemill::engines::cpu {
namespace {

// Copies `count` elements of the flat weight from `first` on, in the type of the panels.
template <class Element>
void copy_elements(const WeightView& weight, std::int64_t first, std::int64_t count, Element* to) {
  for (std::int64_t i = 0; i < count; ++i) {
    store_element(weight_element(weight, first + i), to + i);
  }
}

// Returns the rows of panel `panel` in the panels' type: the weight's own where they already are.
const void* rows_of(const WeightView& weight, const PanelShape& shape, std::int64_t panel,
                    Scratch& scratch) {
  const std::int64_t row = panel * kPanel;
  const std::int64_t first = row * weight.in_features;
  if (weight.dtype == shape.dtype) {
    return static_cast<const std::byte*>(weight.data) +
           first * static_cast<std::int64_t>(dtype_bytes(weight.dtype));
  }
  const std::int64_t count = std::min(kPanel, weight.out_features - row) * weight.in_features;
  float* copy = scratch.floats(kPanel * weight.in_features);
  if (shape.dtype == DType::kBF16) {
    copy_elements(weight, first, count, reinterpret_cast<std::uint16_t*>(copy));
  } else {
    copy_elements(weight, first, count, copy);
  }
  return copy;
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

// One panel of NF4: pairs of features in turn, a byte for each output, then the blocks' codes.
void pack_nf4(const Nf4Parts& parts, const PanelShape& shape, std::int64_t panel, std::byte* to) {
  constexpr auto kElements = static_cast<std::int64_t>(kNf4BlockElements);
  const std::int64_t pairs = shape.depth / 2;
  const std::int64_t blocks = shape.depth / kElements;
  auto* codes = reinterpret_cast<std::uint8_t*>(to);
  for (std::int64_t lane = 0; lane < kPanel; ++lane) {
    const std::int64_t row = panel * kPanel + lane;
    const bool there = row < shape.cols;
    for (std::int64_t pair = 0; pair < pairs; ++pair) {
      codes[pair * kPanel + lane] = there
                                        ? parts.codes[static_cast<std::size_t>(row * pairs + pair)]
                                        : static_cast<std::uint8_t>(kNf4Zero << 4U | kNf4Zero);
    }
    for (std::int64_t block = 0; block < blocks; ++block) {
      codes[(pairs + block) * kPanel + lane] =
          there ? parts.block_codes[static_cast<std::size_t>(row * blocks + block)] : 0;
    }
  }
}

}  // namespace

PanelWeight::PanelWeight(const WeightView& weight, DType compute, const KernelTable& kernels,
                         WeightMemory& memory, Team& team)
    : shape_{weight.in_features, weight.out_features, compute},
      bytes_(memory.allocate(shape_.size_bytes())) {
  Buffer quantized;
  if (compute == DType::kNf4) {
    quantized = nf4_weight(weight);
    const Nf4Parts parts = nf4_parts(quantized.bytes().data(), shape_.cols * shape_.depth);
    auto* shared =
        reinterpret_cast<float*>(bytes_.data() + shape_.num_panels() * shape_.panel_bytes());
    std::copy(parts.group_scales.begin(), parts.group_scales.end(), shared);
    shared[parts.group_scales.size()] = parts.offset;
  }
  const auto pack = compute == DType::kBF16 ? kernels.pack_bf16 : kernels.pack_f32;
  std::atomic<bool> finite = compute == DType::kBF16 || compute == DType::kF32;
  team.share(shape_.num_panels(), shape_.depth * kPanel / 2,
             [&](std::int64_t part, std::int64_t begin, std::int64_t end) {
               for (std::int64_t panel = begin; panel < end; ++panel) {
                 if (compute == DType::kBlockI8) {
                   pack_blocks(weight, shape_, panel, bytes_.data() + panel * shape_.panel_bytes());
                   continue;
                 }
                 if (compute == DType::kNf4) {
                   pack_nf4(nf4_parts(quantized.bytes().data(), shape_.cols * shape_.depth), shape_,
                            panel, bytes_.data() + panel * shape_.panel_bytes());
                   continue;
                 }
                 const bool all = pack({.rows = rows_of(weight, shape_, panel, team.scratch(part)),
                                        .row_stride = shape_.depth,
                                        .num_rows = std::min(kPanel, shape_.cols - panel * kPanel),
                                        .depth = shape_.depth,
                                        .panel = bytes_.data() + panel * shape_.panel_bytes()});
                 if (!all) {
                   finite.store(false, std::memory_order_relaxed);
                 }
               }
             });
  seen_finite_ = finite.load(std::memory_order_relaxed);
}

}  // namespace tidemill::engines::cpu
