// SPDX-License-Identifier: Apache-2.0
// Lower bounds of the arithmetic and of the memory traffic of a step.
#pragma once

#include <cstdint>

#include "engines/formats/model_files.hpp"
#include "engines/ops/cpu/peaks.hpp"

namespace tidemill::bench {

/// Counts a model's arithmetic: 2 FLOP for a multiply-add, so 2N per token forward.
class StepCost {
public:
  explicit StepCost(const engines::ModelConfig& config);

  /// Returns the FLOP of one token through all linear layers except the head.
  [[nodiscard]] double layers() const noexcept { return 2.0 * parameters_; }
  /// Returns the FLOP of one token through the head.
  [[nodiscard]] double head() const noexcept { return 2.0 * head_; }
  /// Returns the FLOP of causal attention over one sequence of `tokens` tokens, with `products`
  /// products for each visible position: 2 forward, 4 backward.
  [[nodiscard]] double attention(double tokens, double products) const noexcept;
  /// Returns the FLOP of a prompt of `tokens` tokens up to the logits of its last token. In the
  /// last layer, the other tokens only need keys and values.
  [[nodiscard]] double prompt(double tokens) const noexcept;
  /// Returns the bytes of the weights that are read to compute one token in `compute`.
  [[nodiscard]] double weight_bytes(DType compute) const;

private:
  double parameters_ = 0.0;      // of the linear layers
  double key_parameters_ = 0.0;  // of one layer's keys and values
  double head_ = 0.0;
  double query_cols_ = 0.0;
  double num_layers_ = 0.0;
};

/// Returns the machine's peak that a step in `compute` is compared with: that of f32 or, for all
/// other types, that of bf16. Units: FLOP/s.
[[nodiscard]] double peak_flops(const engines::MachinePeaks& peaks, DType compute) noexcept;

}  // namespace tidemill::bench
