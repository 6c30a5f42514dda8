// SPDX-License-Identifier: Apache-2.0
// The intermediates of one call of a bypass.
#pragma once

#include <cstdint>
#include <vector>

#include "engines/ops/matrix.hpp"

namespace tidemill::engines {

/// A matrix of zeros, alive for one call: as wide as a rank, or, for kinds that scale a whole
/// layer, as the layer.
class ScratchRows {
public:
  ScratchRows() = default;
  ScratchRows(std::int64_t rows, std::int64_t cols)
      : values_(static_cast<std::size_t>(rows * cols)), rows_(rows), cols_(cols) {}
  [[nodiscard]] Matrix view() noexcept { return {values_.data(), rows_, cols_, cols_}; }

private:
  std::vector<float> values_;
  std::int64_t rows_ = 0;
  std::int64_t cols_ = 0;
};

}  // namespace tidemill::engines
