// SPDX-License-Identifier: Apache-2.0
// A named set of immutable tensors: the content of checkpoints, snapshots and models.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/buffer.hpp"
#include "base/tensor/dtype.hpp"

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

/// Returns the size in bytes of a tensor of that type and shape, including the data that the blocks
/// of kNf4 share. Returns nothing if a row cannot be cut into whole blocks, if a type with blocks
/// has no dimension, or if the size or the number of elements exceeds 2^63 - 1. The last holds even
/// if a later extent is 0. Requires extents of at least 0.
[[nodiscard]] std::optional<std::uint64_t> tensor_bytes(DType dtype,
                                                        std::span<const std::int64_t> shape);

/// Tensors by name, in name order: iteration order is part of every digest.
using TensorMap = std::map<std::string, Tensor>;

}  // namespace tidemill
