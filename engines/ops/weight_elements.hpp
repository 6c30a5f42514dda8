// SPDX-License-Identifier: Apache-2.0
// Element access for the types of weights and caches: reading, rounding, and checks of support.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/status.hpp"
#include "base/tensor/block_int8.hpp"
#include "base/tensor/block_nf4.hpp"
#include "base/tensor/dtype.hpp"
#include "base/tensor/float_tensor.hpp"
#include "engines/ops/op_types.hpp"

namespace tidemill::engines {

/// Checks that backends can read weights of type `stored` and compute products in type `compute`.
/// Errors: `kUnimplemented` naming the type.
[[nodiscard]] inline Status check_weight_types(DType stored, DType compute) {
  if (!is_weight_type(stored)) {
    return {Errc::kUnimplemented, "weights of type " + std::string(dtype_name(stored))};
  }
  if (compute != DType::kF32 && compute != DType::kBF16 && compute != DType::kBlockI8 &&
      compute != DType::kNf4) {
    return {Errc::kUnimplemented, "products in type " + std::string(dtype_name(compute))};
  }
  return {};
}

/// Checks that `weight` can be laid out for products in `compute`.
/// Errors: `kUnimplemented` naming the type. For block int8 and NF4 also if rows do not divide into
/// blocks of 32 (64), or if a weight is not finite or too large for a block's scale.
[[nodiscard]] Status check_preparable(const WeightView& weight, DType compute);

/// Returns element `index` of the flat weight, widened exactly. Requires a type that
/// `check_weight_types` accepts.
[[nodiscard]] inline float weight_element(const WeightView& weight, std::int64_t index) noexcept {
  switch (weight.dtype) {
    case DType::kF16: return f16_to_float(static_cast<const std::uint16_t*>(weight.data)[index]);
    case DType::kBF16: return bf16_to_float(static_cast<const std::uint16_t*>(weight.data)[index]);
    case DType::kBlockI8: return block_element(static_cast<const BlockI8*>(weight.data), index);
    case DType::kNf4:
      return nf4_element(nf4_parts(weight.data, weight.out_features * weight.in_features), index);
    default: return static_cast<const float*>(weight.data)[index];
  }
}

/// Returns `weight` as NF4. If it is NF4 already, the buffer borrows its bytes; otherwise the
/// buffer owns newly quantized ones. Requires that `check_preparable` accepts the weight.
[[nodiscard]] Buffer nf4_weight(const WeightView& weight);

/// Reads the rows of a weight as products in one type multiply them, for code that needs the weight
/// that a backend represents.
///
/// For kBlockI8 and kNf4, these are the elements of the quantized weight, for kNf4 rounded to
/// bfloat16 (ops.hpp). For kF32 and kBF16, they are the stored elements, widened and not rounded.
class ProductRows {
public:
  /// Borrows `weight`, unless it quantizes it. Requires that `check_preparable` accepts the weight
  /// for `compute`.
  ProductRows(const WeightView& weight, DType compute);

  /// Reads row `row` into `out` (I).
  void read(std::int64_t row, std::span<float> out) const;

private:
  WeightView weight_;
  DType compute_;
  Buffer nf4_;  // the whole weight: groups of scales go beyond rows
};

/// Stores `value` in the type of the destination: as a float, or rounded to bfloat16.
inline void store_element(float value, float* to) noexcept {
  *to = value;
}
inline void store_element(float value, std::uint16_t* to) noexcept {
  *to = float_to_bf16(value);
}

}  // namespace tidemill::engines
