// SPDX-License-Identifier: Apache-2.0
#include "engines/transformer/parameter_set.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "base/tensor/float_tensor.hpp"

namespace tidemill::engines {

ParameterSet::ParameterSet(const TensorShapes& shapes) {
  std::int64_t total = 0;
  for (const auto& [name, shape] : shapes) {
    std::int64_t size = 1;
    for (const std::int64_t extent : shape) {
      size *= extent;
    }
    entries_.push_back({name, shape, total, size});
    total += size;
  }
  values_.resize(static_cast<std::size_t>(total));
}

std::span<float> ParameterSet::values(const Entry& entry) noexcept {
  return std::span<float>(values_).subspan(static_cast<std::size_t>(entry.offset),
                                           static_cast<std::size_t>(entry.size));
}

std::span<const float> ParameterSet::values(const Entry& entry) const noexcept {
  return std::span<const float>(values_).subspan(static_cast<std::size_t>(entry.offset),
                                                 static_cast<std::size_t>(entry.size));
}

const ParameterSet::Entry* ParameterSet::find(std::string_view name) const noexcept {
  const auto found = std::ranges::lower_bound(
      entries_, name, {}, [](const Entry& entry) { return std::string_view{entry.name}; });
  return found != entries_.end() && found->name == name ? &*found : nullptr;
}

std::span<float> ParameterSet::vector(std::string_view name) {
  const Entry* entry = find(name);
  TIDEMILL_CHECK(entry != nullptr) << name;
  return values(*entry);
}

Matrix ParameterSet::matrix(std::string_view name) {
  const Entry* entry = find(name);
  TIDEMILL_CHECK(entry != nullptr && entry->shape.size() == 2) << name;
  const std::int64_t cols = entry->shape[1];
  return {values(*entry).data(), entry->shape[0], cols, cols};
}

void ParameterSet::set_zero() noexcept {
  std::ranges::fill(values_, 0.0F);
}

Status ParameterSet::load(const TensorMap& tensors) {
  for (const Entry& entry : entries_) {
    TIDEMILL_RETURN_IF_ERROR(check_float_tensor(tensors, entry.name, entry.shape));
    widen_floats(tensors.at(entry.name), values(entry));
  }
  return {};
}

TensorMap ParameterSet::to_tensors(DType dtype) const {
  TensorMap tensors;
  for (const Entry& entry : entries_) {
    tensors[entry.name] = make_float_tensor(values(entry), entry.shape, dtype);
  }
  return tensors;
}

TensorMap ParameterSet::borrow_tensors() const {
  TensorMap tensors;
  for (const Entry& entry : entries_) {
    Tensor& tensor = tensors[entry.name];
    tensor.dtype = DType::kF32;
    tensor.shape = entry.shape;
    tensor.data = Buffer::wrap(nullptr, std::as_bytes(values(entry)), DType::kF32);
  }
  return tensors;
}

}  // namespace tidemill::engines
