// SPDX-License-Identifier: Apache-2.0
// Weights in the layout of the built-in kernels, or of oneDNN.
#pragma once

#include <cstdint>
#include <memory>

#include "base/dtype.hpp"
#include "engines/ops/cpu/onednn_matmul.hpp"
#include "engines/ops/cpu/scratch.hpp"
#include "engines/ops/ops.hpp"

namespace tidemill::engines::cpu {

class Team;

/// A matrix B (depth x cols) in panels of 16 columns, float or bfloat16: see `ProductJob`.
struct PackedMatrix {
  std::int64_t depth = 0;
  std::int64_t cols = 0;
  DType dtype = DType::kF32;
  AlignedBytes panels;
};

/// One direction of a linear layer: either packed here or by oneDNN.
struct LinearOperand {
  PackedMatrix builtin;                  // empty when oneDNN has it
  std::unique_ptr<OneDnnWeight> onednn;  // null when packed here
};

/// A linear weight of this backend.
class PackedWeight final : public PreparedWeight {
public:
  PackedWeight(std::int64_t out_features, std::int64_t in_features, DType compute)
      : out_features_(out_features), in_features_(in_features), compute_(compute) {}

  [[nodiscard]] std::int64_t out_features() const noexcept override { return out_features_; }
  [[nodiscard]] std::int64_t in_features() const noexcept override { return in_features_; }
  [[nodiscard]] std::int64_t size_bytes() const noexcept override;
  [[nodiscard]] DType compute() const noexcept { return compute_; }

  LinearOperand forward;   // B = W^T
  LinearOperand backward;  // B = W; empty when prepared for forward alone

private:
  std::int64_t out_features_;
  std::int64_t in_features_;
  DType compute_;
};

/// Which of its two uses a packed matrix has.
enum class Direction : std::uint8_t { kForward, kBackward };

/// Packs W^T (forward) or W (backward) in element type `compute`.
[[nodiscard]] PackedMatrix pack_matrix(const WeightView& weight, DType compute, Direction direction,
                                       Team& team);

}  // namespace tidemill::engines::cpu
