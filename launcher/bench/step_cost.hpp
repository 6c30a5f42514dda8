// SPDX-License-Identifier: Apache-2.0
// What a step costs at least: the arithmetic and the bytes that no engine can do without.
#pragma once

#include <cstdint>

#include "engines/formats/model_files.hpp"
#include "engines/ops/cpu/peaks.hpp"

namespace tidemill::launcher {

/// Counts a model's arithmetic: 2 FLOP for a multiply-add, 2N a token forward.
class StepCost {
public:
  explicit StepCost(const engines::ModelConfig& config);

  /// Returns the FLOP of one token through all linear layers, the head left out.
  [[nodiscard]] double layers() const noexcept { return 2.0 * parameters_; }
  /// Returns the FLOP of one token through the head.
  [[nodiscard]] double head() const noexcept { return 2.0 * head_; }
  /// Returns the FLOP of causal attention over one sequence of `tokens` tokens: `products` products
  /// with each position that is seen, 2 forward and 4 backward.
  [[nodiscard]] double attention(double tokens, double products) const noexcept;
  /// Returns the FLOP of a prompt of `tokens` tokens up to the logits of its last one. Of the last
  /// layer, only keys and values are needed of the others.
  [[nodiscard]] double prompt(double tokens) const noexcept;
  /// Returns the bytes of weights that computing one token in `compute` reads.
  [[nodiscard]] double weight_bytes(DType compute) const;

private:
  double parameters_ = 0.0;      // of the linear layers
  double key_parameters_ = 0.0;  // of one layer's keys and values
  double head_ = 0.0;
  double query_cols_ = 0.0;
  double num_layers_ = 0.0;
};

/// Returns the peak that a step in `compute` is measured by, in FLOP/s. Whole numbers are compared
/// with the peak of bf16 too.
[[nodiscard]] double peak_flops(const engines::MachinePeaks& peaks, DType compute) noexcept;

}  // namespace tidemill::launcher
