// SPDX-License-Identifier: Apache-2.0
#include "engines/ops/weight_elements.hpp"

#include <cmath>

namespace tidemill::engines {
namespace {

// From here on a block's scale would be infinite as a half; see base/block_int8.hpp.
constexpr float kTooLarge = 65520.0F * 127.0F;

}  // namespace

Status check_preparable(const WeightView& weight, DType compute) {
  TIDEMILL_RETURN_IF_ERROR(check_weight_types(weight.dtype, compute));
  if (compute != DType::kBlockI8) {
    return {};
  }
  constexpr std::int64_t kElements = BlockI8::kElements;
  if (weight.in_features % kElements != 0) {
    return {Errc::kUnimplemented, "rows of " + std::to_string(weight.in_features) +
                                      " weights do not divide into blocks of 32 for int8"};
  }
  if (weight.dtype == DType::kBlockI8) {
    return {};
  }
  const std::int64_t count = weight.out_features * weight.in_features;
  for (std::int64_t i = 0; i < count; ++i) {
    if (!(std::abs(weight_element(weight, i)) < kTooLarge)) {
      return {Errc::kUnimplemented,
              "element " + std::to_string(i) + " is not finite or too large for a block of int8"};
    }
  }
  return {};
}

}  // namespace tidemill::engines
