// SPDX-License-Identifier: Apache-2.0
#include "engines/ops/ops.hpp"

#include <utility>

namespace tidemill::engines {

Result<PreparedVector> Ops::prepare_vector(std::span<const float> values, PreparedVector old) {
  const std::int64_t size = std::ssize(values);
  PreparedVector vector = std::move(old);
  if (vector.size() != size) {
    vector = {};
    TIDEMILL_ASSIGN_OR_RETURN(DeviceBlock block,
                              memory().allocate(size * std::int64_t{sizeof(float)}));
    vector = PreparedVector(std::move(block), size);
  }
  if (size > 0) {
    write(values, Vector{vector.view().data, size});
  }
  return vector;
}

}  // namespace tidemill::engines
