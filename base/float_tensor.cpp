// SPDX-License-Identifier: Apache-2.0
#include "base/float_tensor.hpp"

#include <algorithm>
#include <utility>

#include "base/check.hpp"

namespace tidemill {
namespace {

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

}  // namespace

bool is_float_type(DType dtype) noexcept {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

Status check_float_tensor(const TensorMap& tensors, const std::string& name,
                          std::span<const std::int64_t> shape) {
  const auto found = tensors.find(name);
  if (found == tensors.end()) {
    return invalid_argument("tensor " + name + " is missing");
  }
  const Tensor& tensor = found->second;
  if (!std::ranges::equal(tensor.shape, shape)) {
    return invalid_argument("tensor " + name + " has shape " + shape_text(tensor.shape) +
                            ", expected " + shape_text(shape));
  }
  if (!is_float_type(tensor.dtype)) {
    return invalid_argument("tensor " + name + " has type " +
                            std::string(dtype_name(tensor.dtype)) + ", expected F32, F16 or BF16");
  }
  return {};
}

void widen_floats(const Tensor& tensor, std::span<float> out) {
  TIDEMILL_CHECK(is_float_type(tensor.dtype)) << dtype_name(tensor.dtype);
  TIDEMILL_CHECK(tensor.data.size_bytes() == out.size() * dtype_bytes(tensor.dtype)) << out.size();
  if (tensor.dtype == DType::kF32) {
    std::ranges::copy(tensor.data.as<float>(), out.begin());
    return;
  }
  const auto widen = tensor.dtype == DType::kF16 ? f16_to_float : bf16_to_float;
  std::ranges::transform(tensor.data.as<std::uint16_t>(), out.begin(), widen);
}

Tensor make_float_tensor(std::span<const float> values, std::vector<std::int64_t> shape,
                         DType dtype) {
  TIDEMILL_CHECK(is_float_type(dtype)) << dtype_name(dtype);
  Tensor tensor{dtype, std::move(shape), {}};
  TIDEMILL_CHECK(tensor.num_elements() == static_cast<std::int64_t>(values.size()))
      << values.size();
  if (dtype == DType::kF32) {
    tensor.data = Buffer::adopt(std::vector<float>(values.begin(), values.end()), dtype);
    return tensor;
  }
  std::vector<std::uint16_t> bits(values.size());
  std::ranges::transform(values, bits.begin(), dtype == DType::kF16 ? float_to_f16 : float_to_bf16);
  tensor.data = Buffer::adopt(std::move(bits), dtype);
  return tensor;
}

Tensor to_float_type(const Tensor& tensor, DType dtype) {
  if (tensor.dtype == dtype) {
    return tensor;
  }
  std::vector<float> values(static_cast<std::size_t>(tensor.num_elements()));
  widen_floats(tensor, values);
  return make_float_tensor(values, tensor.shape, dtype);
}

TensorMap to_float_type(const TensorMap& tensors, DType dtype) {
  TensorMap converted;
  for (const auto& [name, tensor] : tensors) {
    converted.emplace(name, is_float_type(tensor.dtype) ? to_float_type(tensor, dtype) : tensor);
  }
  return converted;
}

TensorMap with_types_of(const TensorMap& tensors, const TensorMap& like) {
  TensorMap converted;
  for (const auto& [name, tensor] : tensors) {
    const auto found = like.find(name);
    const bool floats =
        found != like.end() && is_float_type(found->second.dtype) && is_float_type(tensor.dtype);
    converted.emplace(name, floats ? to_float_type(tensor, found->second.dtype) : tensor);
  }
  return converted;
}

}  // namespace tidemill
