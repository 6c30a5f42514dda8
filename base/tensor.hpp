// SPDX-License-Identifier: Apache-2.0
// A named set of immutable tensors: what checkpoints, snapshots and models are made of.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/buffer.hpp"
#include "base/dtype.hpp"

namespace tidemill {

/// An immutable dense tensor in C order.
struct Tensor {
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;  // empty: a scalar
  Buffer data;                      // exactly `tensor_bytes(dtype, shape)`

  /// Returns the number of elements.
  [[nodiscard]] std::int64_t num_elements() const noexcept {
    std::int64_t count = 1;
    for (const std::int64_t extent : shape) {
      count *= extent;
    }
    return count;
  }
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, Tensor& x) {
  return f(x.dtype, x.shape, x.data);
}

/// Returns the size of such a tensor's data: the product of `shape` in elements, or in blocks along
/// the last dimension. None if that is beyond 2^63 - 1, a block would be cut, or a blocked type has
/// no dimension. A 0 does not excuse an overflow before it. Requires extents of at least 0.
[[nodiscard]] std::optional<std::uint64_t> tensor_bytes(DType dtype,
                                                        std::span<const std::int64_t> shape);

/// Tensors by name, in name order: iteration order is part of every digest.
using TensorMap = std::map<std::string, Tensor>;

}  // namespace tidemill
