// SPDX-License-Identifier: Apache-2.0
// Memory for the intermediate results of one call of a bypass.
#pragma once

#include <cstdint>

#include "engines/ops/ops.hpp"

namespace tidemill::engines {

/// A matrix of undefined content that lives for one call. It is as wide as a rank, or, for adapters
/// that scale a whole layer, as wide as the layer.
class ScratchRows {
public:
  ScratchRows() = default;
  ScratchRows(std::int64_t rows, std::int64_t cols, Ops& ops) : rows_(rows), cols_(cols) {
    block_ = ops.memory().allocate(rows * cols * std::int64_t{sizeof(float)}).value();
  }
  [[nodiscard]] Matrix view() const noexcept { return {block_.address(), rows_, cols_, cols_}; }

private:
  DeviceBlock block_;
  std::int64_t rows_ = 0;
  std::int64_t cols_ = 0;
};

}  // namespace tidemill::engines
