// SPDX-License-Identifier: Apache-2.0
// The values of a tensor of any type as float32, for comparisons.
#pragma once

#include <vector>

#include "base/tensor/float_tensor.hpp"

namespace tidemill {

/// Returns the values of `tensor`, widened to float32.
inline std::vector<float> widened(const Tensor& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.num_elements()));
  widen_floats(tensor, values);
  return values;
}

}  // namespace tidemill
