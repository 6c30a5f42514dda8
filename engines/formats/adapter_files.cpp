// SPDX-License-Identifier: Apache-2.0
#include "engines/formats/adapter_files.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "base/files/tensor_file.hpp"

namespace tidemill::engines {
namespace {

constexpr std::array<std::string_view, 2> kAdapterFileNames{"adapter_config.json",
                                                            "adapter_model.safetensors"};
constexpr std::string_view kAdapterConfigName = kAdapterFileNames[0];
constexpr std::string_view kAdapterWeightsName = kAdapterFileNames[1];

void add_module(TensorShapes& shapes, const AdapterConfig& config, const AdapterModule& entry) {
  const ModelModule& module = entry.module;
  const std::string name = std::string(kAdapterPrefix) + module.path;
  if (config.kind == AdapterKind::kIa3) {
    shapes[name + ".ia3_l"] = entry.scales_input
                                  ? std::vector<std::int64_t>{1, module.in_features}
                                  : std::vector<std::int64_t>{module.out_features, 1};
    return;
  }
  const char* a = module.is_embedding ? ".lora_embedding_A" : ".lora_A.weight";
  const char* b = module.is_embedding ? ".lora_embedding_B" : ".lora_B.weight";
  shapes[name + a] = {entry.rank, module.in_features};
  shapes[name + b] = {module.out_features, entry.rank};
  if (config.lora_bias && !module.is_embedding) {
    shapes[name + ".lora_B.bias"] = {module.out_features};
  }
  if (config.use_dora) {
    shapes[name + ".lora_magnitude_vector"] = {module.out_features};
  }
}

void add_biases(TensorShapes& shapes, const AdapterConfig& config,
                const std::vector<AdapterModule>& modules, const ModelConfig& model) {
  std::set<std::string> targets;
  for (const AdapterModule& entry : modules) {
    targets.insert(entry.module.path);
  }
  for (const ModelModule& module : model_modules(model)) {
    const bool target = targets.contains(module.path);
    if (module.has_bias && (target || config.bias == AdapterBias::kAll)) {
      const char* suffix = target ? ".base_layer.bias" : ".bias";
      shapes[std::string(kAdapterPrefix) + module.path + suffix] = {module.out_features};
    }
  }
}

void add_saved(TensorShapes& shapes, const AdapterConfig& config, const ModelConfig& model) {
  TensorShapes parts = expected_tensors(model);
  parts["lm_head.weight"] = {model.vocab_size, model.hidden_size};  // a module even if tied
  for (const auto& [name, shape] : parts) {
    if (saves_module(config, std::string_view(name).substr(0, name.rfind('.')))) {
      shapes[std::string(kAdapterPrefix) + name] = shape;
    }
  }
}

}  // namespace

TensorShapes expected_adapter_tensors(const AdapterConfig& config,
                                      const std::vector<AdapterModule>& modules,
                                      const ModelConfig& model) {
  TensorShapes shapes;
  for (const AdapterModule& entry : modules) {
    add_module(shapes, config, entry);
  }
  if (config.bias != AdapterBias::kNone) {
    add_biases(shapes, config, modules, model);
  }
  add_saved(shapes, config, model);
  return shapes;
}

Result<AdapterFiles> assemble_adapter(AdapterConfig config, TensorMap tensors,
                                      const ModelConfig& model, const std::string& location) {
  AdapterFiles adapter;
  adapter.config = std::move(config);
  TIDEMILL_ASSIGN_OR_RETURN(adapter.modules, resolve_adapter(adapter.config, model, location));
  const TensorShapes expected = expected_adapter_tensors(adapter.config, adapter.modules, model);
  TIDEMILL_RETURN_IF_ERROR(check_tensors(expected, tensors, location));
  TIDEMILL_RETURN_IF_ERROR(check_finite_weights(tensors, location));
  adapter.tensors = std::move(tensors);
  adapter.location = location;
  return adapter;
}

Result<AdapterFiles> open_adapter(const std::filesystem::path& path, const ModelConfig& model) {
  const std::filesystem::path config_path = path / kAdapterConfigName;
  const std::filesystem::path weights_path = path / kAdapterWeightsName;
  AdapterFiles adapter;
  TIDEMILL_ASSIGN_OR_RETURN(adapter.config, read_adapter_config(config_path));
  TIDEMILL_ASSIGN_OR_RETURN(adapter.modules,
                            resolve_adapter(adapter.config, model, config_path.string()));
  TIDEMILL_ASSIGN_OR_RETURN(TensorFile file,
                            read_tensor_file(weights_path, TensorPlacement::kCopied));
  const TensorShapes expected = expected_adapter_tensors(adapter.config, adapter.modules, model);
  TIDEMILL_RETURN_IF_ERROR(check_tensors(expected, file.tensors, weights_path.string()));
  TIDEMILL_RETURN_IF_ERROR(check_finite_weights(file.tensors, weights_path.string()));
  adapter.tensors = std::move(file.tensors);
  adapter.location = config_path.string();
  return adapter;
}

std::span<const std::string_view> exported_adapter_names() {
  return kAdapterFileNames;
}

Status write_adapter(FileSystem& files, const std::filesystem::path& path,
                     const AdapterConfig& config, const ModelConfig& model,
                     const TensorMap& tensors) {
  const std::filesystem::path weights_path = path / kAdapterWeightsName;
  TIDEMILL_ASSIGN_OR_RETURN(const auto modules,
                            resolve_adapter(config, model, (path / kAdapterConfigName).string()));
  TIDEMILL_RETURN_IF_ERROR(check_tensors(expected_adapter_tensors(config, modules, model), tensors,
                                         weights_path.string()));
  TIDEMILL_RETURN_IF_ERROR(make_directory(files, path));
  TIDEMILL_RETURN_IF_ERROR(remove_temporary_files(files, path));
  const Status removed = remove_file(files, weights_path);
  if (removed.code() != Errc::kNotFound) {
    TIDEMILL_RETURN_IF_ERROR(removed);
  }
  TIDEMILL_RETURN_IF_ERROR(
      write_file(files, path / kAdapterConfigName, adapter_config_text(config)));
  return write_tensor_file(files, weights_path, tensors);
}

}  // namespace tidemill::engines
