// SPDX-License-Identifier: Apache-2.0
// Float tensors of any width as float32, and back.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.hpp"
#include "base/status.hpp"
#include "base/tensor.hpp"

namespace tidemill {

/// Returns whether the type's elements are floats of their own: kF32, kF16 or kBF16.
[[nodiscard]] bool is_float_type(DType dtype) noexcept;
/// Returns whether a weight may have this type and `widen_floats` reads it: a float, kBlockI8
/// or kNf4.
[[nodiscard]] bool is_weight_type(DType dtype) noexcept;

/// Checks that `tensors` holds a tensor of that name and shape, of a type of `is_weight_type`.
/// Errors: `kInvalidArgument` naming the tensor and what is wrong with it.
[[nodiscard]] Status check_float_tensor(const TensorMap& tensors, const std::string& name,
                                        std::span<const std::int64_t> shape);

/// Checks that no element is NaN or infinite.
/// Errors: `kInvalidArgument`: "element [3, 17] is NaN"; of a block's scale, its first element; of
/// what blocks of kNf4 share, the first element of the first block that is not finite; those of
/// `Buffer::copy_to`.
/// Requires a type of `is_weight_type`.
[[nodiscard]] Status check_finite(const Tensor& tensor);

/// Copies the elements of `tensor` to `out`, widening 16-bit floats and blocks (exact).
/// Requires a type of `is_weight_type` and `out` of the same number of elements.
void widen_floats(const Tensor& tensor, std::span<float> out);

/// Makes a tensor of `dtype` (one of `is_float_type`) from `values`, rounding to nearest, ties to
/// even. Requires as many values as `shape` has elements.
[[nodiscard]] Tensor make_float_tensor(std::span<const float> values,
                                       std::vector<std::int64_t> shape, DType dtype);

/// Returns `tensor`, of a type of `is_weight_type`, in `dtype`, one of `is_float_type`: widened
/// exactly, or rounded as by `make_float_tensor`. One that has the type already is shared.
[[nodiscard]] Tensor to_float_type(const Tensor& tensor, DType dtype);

/// Returns `tensors` with all weights in `dtype`.
[[nodiscard]] TensorMap to_float_type(const TensorMap& tensors, DType dtype);

/// Returns `tensors` with what is in blocks as kF32 (exact), for files that cannot hold blocks.
[[nodiscard]] TensorMap without_blocks(const TensorMap& tensors);

/// Returns `tensors` with the types that their namesakes in `like` have. Weights are rounded as by
/// `make_float_tensor`; what is no weight, or whose namesake is not a float, stays as it is.
[[nodiscard]] TensorMap with_types_of(const TensorMap& tensors, const TensorMap& like);

}  // namespace tidemill
