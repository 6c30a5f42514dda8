// SPDX-License-Identifier: Apache-2.0
#include "actors/tinker/lora_config.hpp"

namespace tidemill::actors::tinker {

engines::AdapterConfig to_adapter_config(const LoraSettings& lora, const std::string& base_model) {
  engines::AdapterConfig config;
  config.base_model = base_model;
  config.rank = lora.rank;
  config.alpha = kLoraAlpha;
  config.targets.names.clear();
  const auto add = [&](bool wanted, std::initializer_list<const char*> names) {
    if (wanted) {
      config.targets.names.insert(config.targets.names.end(), names.begin(), names.end());
    }
  };
  add(lora.train_attn, {"q_proj", "k_proj", "v_proj", "o_proj"});
  add(lora.train_mlp, {"gate_proj", "up_proj", "down_proj"});
  add(lora.train_unembed, {"lm_head"});
  return config;
}

}  // namespace tidemill::actors::tinker
