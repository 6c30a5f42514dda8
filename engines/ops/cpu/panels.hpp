// SPDX-License-Identifier: Apache-2.0
// The layout of a linear weight in memory: panels.
//
// A weight W (O x I) is stored as panels of 16 output features, for y = x W^T. Panel p holds, for
// each input feature in turn, the weights of outputs [16 p, 16 p + 16). The types differ:
//
//  - bfloat16 panels hold input features in pairs: elements 2k and 2k + 1 of an output are
//    adjacent, as a dot product of pairs reads them.
//  - Panels of block int8 hold input features in groups of four, as a dot product of bytes reads
//    them. Each weight has 128 added. The panel also holds the scales of the blocks of 32.
//  - Panels of NF4 have the order of bfloat16 panels, with a pair in each byte (the first element
//    in the high half). They are followed by the code of each block of 64 of each output. A few
//    panels at a time are expanded in the cache.
//
// The last panel is padded with zero outputs, and an odd depth with a zero feature.
//
// dx = dy W needs panels of input features instead. They are built on the fly, a few at a time in
// the second-level cache, by transposing 16 x 16 blocks in registers. That costs about 0.2
// instructions per element, and each element is then multiplied with every row of dy. One copy of
// the weight is therefore enough for both directions.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "base/result.hpp"
#include "base/tensor/dtype.hpp"
#include "engines/ops/cpu/kernels.hpp"
#include "engines/ops/cpu/weight_memory.hpp"
#include "engines/ops/host/host_ops.hpp"

namespace tidemill::engines::cpu {

class Team;

/// Holds a linear weight of this backend as panels. Immutable once all rows are packed.
class PanelWeight final : public PreparedWeight {
public:
  /// Packs `rows` of `weight` in element type `compute`: kF32, kBF16, kBlockI8 or kNf4. Blocks are
  /// copied if the weight is in blocks already; otherwise `quantize_block` or `quantize_nf4`
  /// computes them. If one pass over the weight is enough and it has a file, packing reads the file
  /// a few panels at a time. Requires `memory` of `PanelShape::size_bytes` bytes that no other
  /// weight uses; it holds the panels of the rows before `rows` already. Errors: those of
  /// `Buffer::copy_to`.
  [[nodiscard]] static Result<std::unique_ptr<PanelWeight>> create(const WeightView& weight,
                                                                   WeightRows rows, DType compute,
                                                                   const KernelTable& kernels,
                                                                   WeightBytes memory, Team& team);

  [[nodiscard]] std::int64_t out_features() const noexcept override { return shape_.cols; }
  [[nodiscard]] std::int64_t in_features() const noexcept override { return shape_.depth; }
  [[nodiscard]] std::int64_t size_bytes() const noexcept override { return bytes_.size(); }
  [[nodiscard]] bool seen_finite() const noexcept override { return seen_finite_; }
  [[nodiscard]] DType dtype() const noexcept { return shape_.dtype; }
  [[nodiscard]] const PanelShape& shape() const noexcept { return shape_; }
  [[nodiscard]] const std::byte* data() const noexcept { return bytes_.data(); }
  /// Reads row `row` (I), widened exactly. Requires panels of kBlockI8.
  void read_row(std::int64_t row, float* out) const noexcept;
  /// Says whether the rows that were packed before were seen to be finite.
  void add_seen(bool finite) noexcept { seen_finite_ = seen_finite_ && finite; }
  /// Returns the memory of the panels, so that the weight that replaces this one can reuse it.
  [[nodiscard]] const WeightBytes& memory() const noexcept { return bytes_; }

private:
  class Packer;

  PanelWeight(PanelShape shape, WeightBytes bytes) : shape_(shape), bytes_(std::move(bytes)) {}

  PanelShape shape_;
  WeightBytes bytes_;
  bool seen_finite_ = false;
};

}  // namespace tidemill::engines::cpu
