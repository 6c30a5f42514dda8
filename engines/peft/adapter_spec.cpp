// SPDX-License-Identifier: Apache-2.0
#include "engines/peft/adapter_spec.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "base/tensor/float_tensor.hpp"
#include "base/text/quote.hpp"
#include "engines/formats/adapter_files.hpp"
#include "engines/ops/weight_elements.hpp"

namespace tidemill::engines {
namespace {

// The suffix that follows a module's path in the checkpoint name of a tensor, and the member that
// holds the name. The first matching suffix counts.
struct TensorSuffix {
  std::string_view suffix;
  std::string AdaptedModule::*member;
};
constexpr std::array<TensorSuffix, 10> kTensorSuffixes = {{
    {".lora_A.weight", &AdaptedModule::a},
    {".lora_B.weight", &AdaptedModule::b},
    {".lora_B.bias", &AdaptedModule::c},
    {".lora_embedding_A", &AdaptedModule::a},
    {".lora_embedding_B", &AdaptedModule::b},
    {".lora_magnitude_vector", &AdaptedModule::magnitude},
    {".ia3_l", &AdaptedModule::output_scale},
    {".base_layer.bias", &AdaptedModule::bias},
    {".bias", &AdaptedModule::bias},
    {".weight", &AdaptedModule::weight},
}};

Status check_config(const AdapterConfig& config, const ModelConfig& model) {
  if (config.lora_bias && config.use_dora) {
    return invalid_argument("lora_bias: cannot be used with use_dora");
  }
  TensorShapes parts = expected_tensors(model);
  parts[std::string(kHeadPath) + ".weight"] = {};
  for (const std::string& saved : config.modules_to_save) {
    AdapterConfig alone;
    alone.modules_to_save = {saved};
    const bool found = std::ranges::any_of(parts, [&alone](const auto& part) {
      const std::string_view name = part.first;
      return saves_module(alone, name.substr(0, name.rfind('.')));
    });
    if (!found || saved.empty()) {
      return invalid_argument("modules_to_save: " + quote(saved) +
                              " is not a layer, norm or embedding table of this model");
    }
  }
  return {};
}

// Stores the checkpoint name `name` of a tensor in the module that the tensor belongs to.
void add_tensor_name(const std::string& name, const std::vector<std::int64_t>& shape,
                     std::map<std::string, AdaptedModule>& modules) {
  const auto found = std::ranges::find_if(
      kTensorSuffixes, [&name](const TensorSuffix& known) { return name.ends_with(known.suffix); });
  const std::string path = name.substr(kAdapterPrefix.size(),
                                       name.size() - kAdapterPrefix.size() - found->suffix.size());
  AdaptedModule& module = modules[path];
  if (module.path.empty()) {  // not a linear layer, so a norm
    module.path = path;
    module.in_features = shape[0];
    module.out_features = shape[0];
  }
  module.*(found->member) = name;
}

}  // namespace

std::string lora_a_name(std::string_view path) {
  return std::string(kAdapterPrefix) + std::string(path) + ".lora_A.weight";
}

std::string lora_b_name(std::string_view path) {
  return std::string(kAdapterPrefix) + std::string(path) + ".lora_B.weight";
}

AdaptedModule lora_module(const std::string& path, std::int64_t in_features,
                          std::int64_t out_features, std::int64_t rank, float scale) {
  AdaptedModule module{path, in_features, out_features, rank, scale};
  module.a = lora_a_name(path);
  module.b = lora_b_name(path);
  return module;
}

Result<AdapterSpec> adapter_spec(const AdapterConfig& config,
                                 const std::vector<AdapterModule>& modules,
                                 const ModelConfig& model) {
  TIDEMILL_RETURN_IF_ERROR(check_config(config, model));
  std::map<std::string, AdaptedModule> by_path;
  for (const ModelModule& module : model_modules(model)) {
    by_path[module.path] = {module.path, module.in_features, module.out_features};
  }
  for (const auto& [name, shape] : expected_adapter_tensors(config, modules, model)) {
    add_tensor_name(name, shape, by_path);
  }
  for (const AdapterModule& target : modules) {
    AdaptedModule& module = by_path.at(target.module.path);
    if (!module.weight.empty()) {
      return invalid_argument("modules_to_save: " + module.path + " is also a target module");
    }
    if (config.kind == AdapterKind::kLora && target.rank < 1) {
      return invalid_argument("r: rank " + std::to_string(target.rank) +
                              " is less than 1 (module " + module.path + ")");
    }
    module.rank = target.rank;
    module.scale = static_cast<float>(target.scale);
    if (!std::isfinite(module.scale)) {
      return invalid_argument("lora_alpha: the scale of module " + module.path + " is not finite");
    }
    if (target.scales_input) {
      std::swap(module.input_scale, module.output_scale);
    }
  }
  AdapterSpec spec;
  for (auto& [path, module] : by_path) {
    if (module != AdaptedModule{path, module.in_features, module.out_features}) {
      spec.push_back(std::move(module));
    }
  }
  return spec;
}

Status check_adapter_training(const AdapterConfig& config) {
  if (config.dropout != 0.0) {
    return {Errc::kUnimplemented,
            "lora_dropout: training with dropout is not supported; set it to 0"};
  }
  return {};
}

TensorShapes adapter_shapes(const AdapterSpec& spec) {
  TensorShapes shapes;
  const auto add = [&shapes](const std::string& name, std::vector<std::int64_t> shape) {
    if (!name.empty()) {
      shapes[name] = std::move(shape);
    }
  };
  for (const AdaptedModule& module : spec) {
    const std::int64_t in = module.in_features;
    const std::int64_t out = module.out_features;
    add(module.a, {module.rank, in});
    add(module.b, {out, module.rank});
    add(module.c, {out});
    add(module.magnitude, {out});
    add(module.input_scale, {1, in});
    add(module.output_scale, {out, 1});
    add(module.bias, {out});
    add(module.weight, weight_shape(module));
  }
  return shapes;
}

std::vector<std::int64_t> weight_shape(const AdaptedModule& module) {
  if (module.path == kTablePath) {
    return {module.in_features, module.out_features};
  }
  if (module.path.ends_with("norm")) {
    return {module.out_features};
  }
  return {module.out_features, module.in_features};
}

bool needs_base_tensors(const AdapterSpec& spec) {
  return std::ranges::any_of(spec,
                             [](const AdaptedModule& module) { return !module.magnitude.empty(); });
}

std::string weight_name(const ModelConfig& model, std::string_view path) {
  const bool tied_head = path == kHeadPath && model.tie_word_embeddings;
  return std::string(tied_head ? kTablePath : path) + ".weight";
}

std::vector<float> adapted_row_norms(const AdaptedModule& module, const BaseWeight& base,
                                     const Tensor& a, const Tensor& b) {
  const ProductRows rows(weight_view(*base.tensor), base.compute);
  const std::vector<float> a_values = float_values(a);
  const std::vector<float> b_values = float_values(b);
  const auto in = static_cast<std::size_t>(module.in_features);
  const auto rank = static_cast<std::size_t>(module.rank);
  std::vector<float> norms(static_cast<std::size_t>(module.out_features));
  std::vector<float> weight(in);
  std::vector<float> product(in);
  for (std::size_t o = 0; o < norms.size(); ++o) {
    std::ranges::fill(product, 0.0F);
    for (std::size_t r = 0; r < rank; ++r) {
      const float factor = b_values[o * rank + r];
      for (std::size_t i = 0; factor != 0.0F && i < in; ++i) {  // a new B is all zero
        product[i] += factor * a_values[r * in + i];
      }
    }
    rows.read(static_cast<std::int64_t>(o), weight);
    double square = 0.0;
    for (std::size_t i = 0; i < in; ++i) {
      const double value = double{weight[i] + module.scale * product[i]};
      square += value * value;
    }
    norms[o] = static_cast<float>(std::sqrt(square));
  }
  return norms;
}

}  // namespace tidemill::engines
