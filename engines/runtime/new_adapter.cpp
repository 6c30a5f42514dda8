// SPDX-License-Identifier: Apache-2.0
#include "engines/peft/lora_spec.hpp"
#include "engines/runtime/factory.hpp"

namespace tidemill::engines {

Result<AdapterFiles> make_lora_adapter(const AdapterConfig& config, const ModelConfig& model,
                                       std::uint64_t seed) {
  AdapterFiles adapter;
  adapter.config = config;
  adapter.place = "train.adapter";
  TIDEMILL_ASSIGN_OR_RETURN(adapter.modules, resolve_adapter(config, model, adapter.place));
  TIDEMILL_ASSIGN_OR_RETURN(const LoraSpec spec, lora_spec(config, adapter.modules));
  adapter.tensors = init_lora(spec, seed);
  return adapter;
}

}  // namespace tidemill::engines
