// SPDX-License-Identifier: Apache-2.0
#include "base/tensor/tensor.hpp"

#include <limits>

#include "base/tensor/block_nf4.hpp"

namespace tidemill {

std::optional<std::uint64_t> tensor_bytes(DType dtype, std::span<const std::int64_t> shape) {
  const auto block = static_cast<std::int64_t>(dtype_block_elements(dtype));
  if (block > 1 && (shape.empty() || shape.back() % block != 0)) {
    return std::nullopt;
  }
  constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  std::uint64_t bytes = dtype_block_bytes(dtype);
  for (std::size_t i = 0; i < shape.size(); ++i) {
    const bool last = i + 1 == shape.size();
    const auto factor = static_cast<std::uint64_t>(last ? shape[i] / block : shape[i]);
    if (factor != 0 && bytes > kMax / factor) {
      return std::nullopt;
    }
    bytes *= factor;
  }
  if (dtype == DType::kNf4) {
    // An element takes less than a byte, so the number of elements overflows first.
    const std::uint64_t blocks = bytes / dtype_block_bytes(dtype);
    return blocks > kMax / kNf4BlockElements ? std::nullopt
                                             : std::optional(bytes + nf4_shared_bytes(blocks));
  }
  return bytes;
}

}  // namespace tidemill
