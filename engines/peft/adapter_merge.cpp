// SPDX-License-Identifier: Apache-2.0
// Merges an adapter into base weights, for export.
#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "base/tensor/float_tensor.hpp"
#include "engines/peft/adapter_spec.hpp"

namespace tidemill::engines {
namespace {

using Floats = std::vector<float>;

// Adds scale * B A to `weight` (O, I), or to the embedding table (I, O). Accumulates in double.
void add_product(const AdaptedModule& module, const Floats& a, const Floats& b, Floats& weight) {
  const bool table = module.path == kTablePath;
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
      weight[table ? i * out + o : o * in + i] += static_cast<float>(double{module.scale} * row[i]);
    }
  }
}

// Returns the type of a merged tensor: that of the base, or f32 if the base is quantized in blocks.
DType merged_type(const Tensor& tensor) {
  return is_float_type(tensor.dtype) ? tensor.dtype : DType::kF32;
}

class Merger {
public:
  Merger(const ModelConfig& model, const TensorMap& adapter, const TensorMap& base)
      : adapter_(adapter), merged_{model, base} {}

  Status merge(const AdaptedModule& module) {
    if (merged_.config.tie_word_embeddings &&
        (module.path == kTablePath || module.path == kHeadPath)) {
      untie();
    }
    TIDEMILL_RETURN_IF_ERROR(merge_weight(module));
    return merge_bias(module);
  }

  MergedModel take() { return std::move(merged_); }

private:
  void untie() {
    const auto table = merged_.tensors.find(std::string(kTablePath) + ".weight");
    merged_.config.tie_word_embeddings = false;
    if (table != merged_.tensors.end()) {
      merged_.tensors[std::string(kHeadPath) + ".weight"] = table->second;
    }
  }

  Floats adapter_values(const std::string& name) const { return float_values(adapter_.at(name)); }

  Status merge_weight(const AdaptedModule& module) {
    if (module.a.empty() && module.weight.empty() && module.input_scale.empty() &&
        module.output_scale.empty()) {
      return {};
    }
    const std::string name = module.path + ".weight";
    const auto in = static_cast<std::size_t>(module.in_features);
    const std::vector<std::int64_t> shape = weight_shape(module);
    TIDEMILL_RETURN_IF_ERROR(
        check_float_tensor(merged_.tensors, name, shape).with_context("base model"));
    Tensor& tensor = merged_.tensors.at(name);
    Floats weight = module.weight.empty() ? float_values(tensor) : adapter_values(module.weight);
    Floats row_factors;
    if (!module.magnitude.empty()) {
      row_factors = adapter_values(module.magnitude);
      const Floats norms =
          adapted_row_norms(module, {&tensor}, adapter_.at(module.a), adapter_.at(module.b));
      std::ranges::transform(row_factors, norms, row_factors.begin(), std::divides<>());
    }
    if (!module.output_scale.empty()) {
      row_factors = adapter_values(module.output_scale);
    }
    if (!module.a.empty()) {
      add_product(module, adapter_values(module.a), adapter_values(module.b), weight);
    }
    for (std::size_t i = 0; !row_factors.empty() && i < weight.size(); ++i) {
      weight[i] *= row_factors[i / in];
    }
    if (!module.input_scale.empty()) {
      const Floats factors = adapter_values(module.input_scale);
      for (std::size_t i = 0; i < weight.size(); ++i) {
        weight[i] *= factors[i % in];
      }
    }
    tensor = make_float_tensor(weight, shape, merged_type(tensor));
    return {};
  }

  Status merge_bias(const AdaptedModule& module) {
    const std::string name = module.path + ".bias";
    const bool scaled = !module.output_scale.empty() && merged_.tensors.contains(name);
    if (module.bias.empty() && module.c.empty() && !scaled) {
      return {};
    }
    if (!module.c.empty() && !merged_.tensors.contains(name)) {
      return invalid_argument("lora_bias: " + module.path + " has no bias to merge it into");
    }
    const std::vector<std::int64_t> shape = {module.out_features};
    TIDEMILL_RETURN_IF_ERROR(
        check_float_tensor(merged_.tensors, name, shape).with_context("base model"));
    Tensor& tensor = merged_.tensors.at(name);
    Floats bias = module.bias.empty() ? float_values(tensor) : adapter_values(module.bias);
    if (!module.c.empty()) {
      std::ranges::transform(
          bias, adapter_values(module.c), bias.begin(),
          [&module](float base, float added) { return base + module.scale * added; });
    }
    if (scaled) {
      std::ranges::transform(bias, adapter_values(module.output_scale), bias.begin(),
                             std::multiplies<>());
    }
    tensor = make_float_tensor(bias, shape, merged_type(tensor));
    return {};
  }

  const TensorMap& adapter_;
  MergedModel merged_;
};

}  // namespace

Result<MergedModel> merge_adapter(const AdapterSpec& spec, const TensorMap& adapter,
                                  const ModelConfig& model, const TensorMap& base) {
  TIDEMILL_RETURN_IF_ERROR(check_tensors(adapter_shapes(spec), adapter, "adapter"));
  Merger merger(model, adapter, base);
  for (const AdaptedModule& module : spec) {
    TIDEMILL_RETURN_IF_ERROR(merger.merge(module));
  }
  return merger.take();
}

}  // namespace tidemill::engines
