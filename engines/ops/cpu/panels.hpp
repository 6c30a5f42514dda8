// SPDX-License-Identifier: Apache-2.0
// The one layout in which a linear weight is resident.
//
// A weight W (O x I) is kept as panels of 16 output features, for y = x W^T: panel p holds, for
// each input feature in turn, the weights of outputs [16 p, 16 p + 16). bfloat16 panels hold input
// features in pairs (2k, 2k + 1 of one output lie side by side), which is what a dot product of
// pairs reads. Panels of block int8 hold input features by four (what a dot product of bytes
// reads), each weight with 128 added, and the scales of its blocks of 32. Panels of NF4 hold what
// bfloat16 panels would, a pair in a byte (its first element in the high half), and behind it a
// code for each block of 64 of each output; they are expanded a few at a time in the cache. The
// last panel is padded with zero outputs, an odd depth with a zero feature.
//
// dx = dy W needs panels of input features instead. They are made on the fly, a few panels at a
// time in the second-level cache, from 16 x 16 blocks transposed in registers: about 0.2
// instructions for an element that is then multiplied with every row of dy. So one copy of the
// weight serves both directions.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "base/dtype.hpp"
#include "base/result.hpp"
#include "engines/ops/cpu/kernels.hpp"
#include "engines/ops/cpu/weight_memory.hpp"
#include "engines/ops/ops.hpp"

namespace tidemill::engines::cpu {

class Team;

/// A linear weight of this backend, as panels. Immutable once packed.
class PanelWeight final : public PreparedWeight {
public:
  /// Packs `weight` in element type `compute`: kF32, kBF16, kBlockI8 or kNf4. Blocks come as the
  /// weight has them, or are made by `quantize_block` or `quantize_nf4`. What goes by once is read
  /// from the weight's file, a few panels at a time. Requires `memory` of `PanelShape::size_bytes`,
  /// which nobody else uses.
  /// Errors: those of `Buffer::copy_to`.
  [[nodiscard]] static Result<std::unique_ptr<PanelWeight>> create(const WeightView& weight,
                                                                   DType compute,
                                                                   const KernelTable& kernels,
                                                                   WeightBytes memory, Team& team);

  [[nodiscard]] std::int64_t out_features() const noexcept override { return shape_.cols; }
  [[nodiscard]] std::int64_t in_features() const noexcept override { return shape_.depth; }
  [[nodiscard]] std::int64_t size_bytes() const noexcept override { return bytes_.size(); }
  [[nodiscard]] bool seen_finite() const noexcept override { return seen_finite_; }
  [[nodiscard]] DType dtype() const noexcept { return shape_.dtype; }
  [[nodiscard]] const PanelShape& shape() const noexcept { return shape_; }
  [[nodiscard]] const std::byte* data() const noexcept { return bytes_.data(); }
  /// Returns where it lies, for the weight that comes in its place.
  [[nodiscard]] const WeightBytes& memory() const noexcept { return bytes_; }

private:
  class Packer;

  PanelWeight(PanelShape shape, WeightBytes bytes) : shape_(shape), bytes_(std::move(bytes)) {}

  PanelShape shape_;
  WeightBytes bytes_;
  bool seen_finite_ = false;
};

}  // namespace tidemill::engines::cpu
