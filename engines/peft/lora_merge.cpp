// SPDX-License-Identifier: Apache-2.0
// Merging of an adapter into base weights, for export.
#include <utility>
#include <vector>

#include "base/float_tensor.hpp"
#include "engines/peft/lora_spec.hpp"

namespace tidemill::engines {
namespace {

std::vector<float> floats_of(const Tensor& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.num_elements()));
  widen_floats(tensor, values);
  return values;
}

// Adds scale * B A to `weight` (O, I); the product is accumulated in double.
void add_product(const LoraModule& module, const std::vector<float>& a, const std::vector<float>& b,
                 std::vector<float>& weight) {
  const auto rank = static_cast<std::size_t>(module.rank);
  const auto in = static_cast<std::size_t>(module.in_features);
  const auto out = static_cast<std::size_t>(module.out_features);
  std::vector<double> row(in);
  for (std::size_t o = 0; o < out; ++o) {
    row.assign(in, 0.0);
    for (std::size_t r = 0; r < rank; ++r) {
      const double factor = double{b[o * rank + r]};
      for (std::size_t i = 0; i < in; ++i) {
        row[i] += factor * double{a[r * in + i]};
      }
    }
    for (std::size_t i = 0; i < in; ++i) {
      weight[o * in + i] += static_cast<float>(double{module.scale} * row[i]);
    }
  }
}

}  // namespace

Result<TensorMap> merge_lora(const LoraSpec& spec, const TensorMap& adapter,
                             const TensorMap& base) {
  TIDEMILL_RETURN_IF_ERROR(check_tensors(lora_shapes(spec), adapter, "adapter"));
  TensorMap merged = base;
  for (const LoraModule& module : spec) {
    const std::string name = module.path + ".weight";
    const std::vector<std::int64_t> shape = {module.out_features, module.in_features};
    TIDEMILL_RETURN_IF_ERROR(check_float_tensor(base, name, shape).with_context("base model"));
    Tensor& tensor = merged.at(name);
    std::vector<float> weight = floats_of(tensor);
    add_product(module, floats_of(adapter.at(lora_a_name(module.path))),
                floats_of(adapter.at(lora_b_name(module.path))), weight);
    tensor = make_float_tensor(weight, shape, tensor.dtype);
  }
  return merged;
}

}  // namespace tidemill::engines
