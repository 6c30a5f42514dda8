// SPDX-License-Identifier: Apache-2.0
// Conversions between float32 and float tensors of any width.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "base/tensor/dtype.hpp"
#include "base/tensor/tensor.hpp"

namespace tidemill {

/// Returns whether elements of this type are floats that are stored one by one: kF32, kF16 or
/// kBF16.
[[nodiscard]] bool is_float_type(DType dtype) noexcept;
/// Returns whether `widen_floats` can read this type, so that a weight may have it: a type of
/// `is_float_type`, kBlockI8 or kNf4.
[[nodiscard]] bool is_weight_type(DType dtype) noexcept;

/// Checks that `tensors` holds a tensor of that name and shape with a type of `is_weight_type`.
/// Errors: `kInvalidArgument` naming the tensor and what is wrong with it.
[[nodiscard]] Status check_float_tensor(const TensorMap& tensors, const std::string& name,
                                        std::span<const std::int64_t> shape);

/// Checks that no element is NaN or infinite. Requires a type of `is_weight_type`.
/// Errors: `kInvalidArgument`, such as "element [3, 17] is NaN". If the scale of an int8 block is
/// not finite, it names the first element of the block. Of a kNf4 tensor, it names the first
/// element of the first block whose scale is not finite. Also the errors of `Buffer::copy_to`.
[[nodiscard]] Status check_finite(const Tensor& tensor);

/// Copies the elements of `tensor` to `out` as float32. 16-bit floats and int8 blocks are widened
/// exactly; elements of kNf4 are those of `nf4_element`.
/// Requires a type of `is_weight_type`, and as many elements in `out` as in `tensor`.
void widen_floats(const Tensor& tensor, std::span<float> out);
/// Returns the elements of `tensor`, widened as by `widen_floats`.
[[nodiscard]] std::vector<float> float_values(const Tensor& tensor);

/// Writes `values` to `out` as elements of `dtype` (one of `is_float_type`), rounded to nearest,
/// ties to even. Requires as many elements in `out` as in `values`; they may be at any address.
void round_floats(std::span<const float> values, DType dtype, std::span<std::byte> out);

/// Returns a tensor of `dtype` (one of `is_float_type`) with `values`, rounded to nearest, ties to
/// even. Requires as many values as `shape` has elements.
[[nodiscard]] Tensor make_float_tensor(std::span<const float> values,
                                       std::vector<std::int64_t> shape, DType dtype);

/// Converts `tensor` to `dtype`: widens it as `widen_floats` does, then rounds it as
/// `make_float_tensor` does. If the tensor already has that type, the result shares its data.
/// Requires `is_weight_type` of the tensor's type, and `is_float_type` of `dtype`.
[[nodiscard]] Tensor to_float_type(const Tensor& tensor, DType dtype);

/// Returns `tensors` with all weights converted to `dtype`.
[[nodiscard]] TensorMap to_float_type(const TensorMap& tensors, DType dtype);

/// Returns `tensors` with blocks widened to kF32, for files that cannot hold blocks.
[[nodiscard]] TensorMap without_blocks(const TensorMap& tensors);

/// Returns `tensors`, each converted to the type of the tensor of the same name in `like`. Weights
/// are rounded as by `make_float_tensor`. A tensor stays as it is if it is not a weight, or if
/// `like` has no float tensor of its name.
[[nodiscard]] TensorMap with_types_of(const TensorMap& tensors, const TensorMap& like);

}  // namespace tidemill
