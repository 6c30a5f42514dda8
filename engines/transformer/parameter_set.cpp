// SPDX-License-Identifier: Apache-2.0
#include "engines/transformer/parameter_set.hpp"

#include <algorithm>
#include <utility>

#include "base/check.hpp"
#include "base/float_tensor.hpp"

namespace tidemill::engines {

ParameterSet::ParameterSet(std::vector<ParameterSpec> specs) {
  std::ranges::sort(specs, {}, &ParameterSpec::name);
  std::int64_t total = 0;
  for (ParameterSpec& spec : specs) {
    std::int64_t size = 1;
    for (const std::int64_t extent : spec.shape) {
      size *= extent;
    }
    entries_.push_back({std::move(spec), total, size});
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
      entries_, name, {}, [](const Entry& entry) { return std::string_view(entry.spec.name); });
  return found != entries_.end() && found->spec.name == name ? &*found : nullptr;
}

std::span<float> ParameterSet::vector(std::string_view name) {
  const Entry* entry = find(name);
  TIDEMILL_CHECK(entry != nullptr) << name;
  return values(*entry);
}

Matrix ParameterSet::matrix(std::string_view name) {
  const Entry* entry = find(name);
  TIDEMILL_CHECK(entry != nullptr && entry->spec.shape.size() == 2) << name;
  const std::int64_t cols = entry->spec.shape[1];
  return {values(*entry).data(), entry->spec.shape[0], cols, cols};
}

void ParameterSet::set_zero() noexcept {
  std::ranges::fill(values_, 0.0F);
}

Status ParameterSet::load(const TensorMap& tensors) {
  for (const Entry& entry : entries_) {
    TIDEMILL_RETURN_IF_ERROR(check_float_tensor(tensors, entry.spec.name, entry.spec.shape));
    widen_floats(tensors.at(entry.spec.name), values(entry));
  }
  return {};
}

TensorMap ParameterSet::to_tensors(DType dtype) const {
  TensorMap tensors;
  for (const Entry& entry : entries_) {
    tensors[entry.spec.name] = make_float_tensor(values(entry), entry.spec.shape, dtype);
  }
  return tensors;
}

}  // namespace tidemill::engines
