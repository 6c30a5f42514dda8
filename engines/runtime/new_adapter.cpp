// SPDX-License-Identifier: Apache-2.0
#include "engines/peft/adapter_spec.hpp"
#include "engines/runtime/factory.hpp"

namespace tidemill::engines {

Result<AdapterFiles> make_adapter(const AdapterConfig& config, const ModelFiles& model,
                                  std::uint64_t seed) {
  AdapterFiles adapter;
  adapter.config = config;
  adapter.place = "train.adapter";
  TIDEMILL_ASSIGN_OR_RETURN(adapter.modules, resolve_adapter(config, model.config, adapter.place));
  auto spec = adapter_spec(config, adapter.modules, model.config);
  if (!spec.ok()) {
    return spec.status().with_context(adapter.place);
  }
  TIDEMILL_ASSIGN_OR_RETURN(adapter.tensors,
                            init_adapter(spec.value(), model.config, model.tensors, seed));
  return adapter;
}

}  // namespace tidemill::engines
