// SPDX-License-Identifier: Apache-2.0
#include "engines/ops/weight_elements.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace tidemill::engines {
namespace {

// From this magnitude on, the scale of a block would overflow a half; see
// base/tensor/block_int8.hpp.
constexpr float kTooLarge = 65520.0F * 127.0F;

}  // namespace

Status check_preparable(const WeightView& weight, DType compute) {
  TIDEMILL_RETURN_IF_ERROR(check_weight_types(weight.dtype, compute));
  if (compute != DType::kBlockI8 && compute != DType::kNf4) {
    return {};
  }
  const bool int8 = compute == DType::kBlockI8;
  const std::string type = int8 ? "int8" : "nf4";
  const auto block = static_cast<std::int64_t>(dtype_block_elements(compute));
  if (weight.in_features % block != 0) {
    return {Errc::kUnimplemented, "rows of " + std::to_string(weight.in_features) +
                                      " weights do not divide into blocks of " +
                                      std::to_string(block) + " for " + type};
  }
  if (weight.dtype == compute) {
    return {};
  }
  const float limit = int8 ? kTooLarge : kNf4MaxMagnitude;
  const std::int64_t count = weight.out_features * weight.in_features;
  for (std::int64_t i = 0; i < count; ++i) {
    if (!(std::abs(weight_element(weight, i)) < limit)) {
      return {Errc::kUnimplemented, "element " + std::to_string(i) +
                                        " is not finite or too large for a block of " + type};
    }
  }
  return {};
}

Buffer nf4_weight(const WeightView& weight) {
  const std::int64_t count = weight.out_features * weight.in_features;
  if (weight.dtype == DType::kNf4) {
    const auto bytes = tensor_bytes(DType::kNf4, std::vector<std::int64_t>{count});
    return Buffer::wrap(nullptr, {static_cast<const std::byte*>(weight.data), *bytes}, DType::kNf4);
  }
  return quantize_nf4(count, [&](std::int64_t first, std::span<float> out) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = weight_element(weight, first + static_cast<std::int64_t>(i));
    }
  });
}

ProductRows::ProductRows(const WeightView& weight, DType compute)
    : weight_(weight), compute_(compute) {
  if (compute == DType::kNf4 && weight.dtype != DType::kNf4) {
    nf4_ = nf4_weight(weight);
    weight_.data = nf4_.bytes().data();
    weight_.dtype = DType::kNf4;
  }
}

void ProductRows::read(std::int64_t row, std::span<float> out) const {
  const std::int64_t first = row * weight_.in_features;
  if (weight_.dtype == DType::kNf4) {
    widen_nf4(nf4_parts(weight_.data, weight_.out_features * weight_.in_features), first, out);
  } else {
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = weight_element(weight_, first + static_cast<std::int64_t>(i));
    }
  }
  if (compute_ == DType::kNf4) {
    std::ranges::transform(out, out.begin(),
                           [](float x) { return bf16_to_float(float_to_bf16(x)); });
  }
  if (compute_ != DType::kBlockI8 || weight_.dtype == DType::kBlockI8) {
    return;
  }
  constexpr std::size_t kElements = BlockI8::kElements;
  for (std::size_t begin = 0; begin < out.size(); begin += kElements) {
    const auto values = out.subspan(begin).first<kElements>();
    const BlockI8 block = quantize_block(values);
    for (std::size_t i = 0; i < kElements; ++i) {
      values[i] = block_element(&block, static_cast<std::int64_t>(i));
    }
  }
}

}  // namespace tidemill::engines
