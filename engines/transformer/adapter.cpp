// SPDX-License-Identifier: Apache-2.0
#include "engines/transformer/adapter.hpp"

#include <algorithm>
#include <utility>

#include "engines/formats/model_files.hpp"

namespace tidemill::engines {
namespace {

Result<LinearModule> find_module(const std::vector<LinearModule>& modules, const LoraModule& lora) {
  const auto found = std::ranges::find(modules, lora.path, &LinearModule::path);
  if (found == modules.end()) {
    return invalid_argument("adapter module " + lora.path + " is no linear layer of the model");
  }
  if (found->in_features != lora.in_features || found->out_features != lora.out_features) {
    return invalid_argument(
        "adapter module " + lora.path + " is " + std::to_string(lora.in_features) + " -> " +
        std::to_string(lora.out_features) + ", but the model's layer is " +
        std::to_string(found->in_features) + " -> " + std::to_string(found->out_features));
  }
  return *found;
}

}  // namespace

Result<std::shared_ptr<const Adapter>> Adapter::create(const ModelConfig& config,
                                                       const LoraSpec& spec,
                                                       const TensorMap& tensors, WeightUse use,
                                                       Ops& ops) {
  if (spec.empty()) {
    return invalid_argument("the adapter has no target module");
  }
  TIDEMILL_RETURN_IF_ERROR(check_tensors(lora_shapes(spec), tensors, "adapter"));
  const std::vector<LinearModule> modules = linear_modules(config);
  std::shared_ptr<Adapter> adapter(new Adapter);
  adapter->spec_ = spec;
  adapter->layers_.resize(static_cast<std::size_t>(config.num_layers));
  adapter->first_layer_ = config.num_layers;
  for (const LoraModule& lora : spec) {
    TIDEMILL_ASSIGN_OR_RETURN(const LinearModule module, find_module(modules, lora));
    TIDEMILL_ASSIGN_OR_RETURN(LoraBypass bypass, LoraBypass::create(lora, tensors, use, ops));
    adapter->size_bytes_ += bypass.size_bytes();
    adapter->first_layer_ = std::min(adapter->first_layer_, module.layer);
    adapter->layers_[static_cast<std::size_t>(module.layer)][module.kind] = std::move(bypass);
  }
  return std::shared_ptr<const Adapter>(std::move(adapter));
}

const LoraBypass* Adapter::bypass(std::int64_t layer, LinearKind kind) const {
  const auto& bypass = layers_[static_cast<std::size_t>(layer)][kind];
  return bypass.has_value() ? &*bypass : nullptr;
}

}  // namespace tidemill::engines
