// SPDX-License-Identifier: Apache-2.0
// Memory for the intermediate results of one call of a bypass.
#pragma once

#include <cstdint>

#include "base/tensor/aligned_bytes.hpp"
#include "engines/ops/matrix.hpp"

namespace tidemill::engines {

/// A matrix of undefined content that lives for one call. It is as wide as a rank, or, for adapters
/// that scale a whole layer, as wide as the layer.
class ScratchRows {
public:
  ScratchRows() = default;
  ScratchRows(std::int64_t rows, std::int64_t cols)
      : memory_(rows * cols * std::int64_t{sizeof(float)}), rows_(rows), cols_(cols) {}
  [[nodiscard]] Matrix view() noexcept { return {memory_.as<float>(), rows_, cols_, cols_}; }

private:
  AlignedBytes memory_;
  std::int64_t rows_ = 0;
  std::int64_t cols_ = 0;
};

}  // namespace tidemill::engines
