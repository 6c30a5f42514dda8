// SPDX-License-Identifier: Apache-2.0
// Fuzzes adapter_config.json and its selection of a model's modules.
#include "engines/formats/adapter_config.hpp"

#include "engines/formats/adapter_files.hpp"
#include "tests/fuzz/target.hpp"

namespace tidemill::fuzz {
namespace {

engines::ModelConfig small_model() {
  engines::ModelConfig model;
  model.vocab_size = 7;
  model.hidden_size = 4;
  model.intermediate_size = 6;
  model.num_layers = 2;
  model.num_heads = 2;
  model.num_kv_heads = 1;
  model.head_dim = 2;
  model.max_positions = 8;
  model.qkv_bias = true;
  model.sliding_windows = {0, 0};
  return model;
}

}  // namespace

void adapter_config(std::string_view input) {
  static const engines::ModelConfig model = small_model();
  const auto config = engines::parse_adapter_config(input, "FILE");
  if (!config.ok()) {
    require_refusal(config.status(), "FILE: ");
    return;
  }
  const auto again = engines::parse_adapter_config(adapter_config_text(config.value()), "AGAIN");
  require_ok(again.status(), "a written config can be read");
  require(again.value() == config.value(), "a config survives a round trip");

  const auto modules = engines::resolve_adapter(config.value(), model, "FILE");
  if (!modules.ok()) {
    require_refusal(modules.status(), "FILE: ");
    return;
  }
  require(!modules.value().empty() || !config.value().modules_to_save.empty() ||
              config.value().bias != engines::AdapterBias::kNone,
          "an adapter that changes nothing is refused");
  for (const auto& [name, shape] :
       engines::expected_adapter_tensors(config.value(), modules.value(), model)) {
    for (const std::int64_t extent : shape) {
      require(extent > 0, "tensors of an adapter are not empty: " + name);
    }
  }
}

}  // namespace tidemill::fuzz
