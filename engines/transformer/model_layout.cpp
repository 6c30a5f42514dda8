// SPDX-License-Identifier: Apache-2.0
#include "engines/transformer/model_layout.hpp"

#include "base/check.hpp"

namespace tidemill::engines {
namespace {

const char* module_name(LinearKind kind) {
  switch (kind) {
    case LinearKind::kQuery: return "self_attn.q_proj";
    case LinearKind::kKey: return "self_attn.k_proj";
    case LinearKind::kValue: return "self_attn.v_proj";
    case LinearKind::kOutput: return "self_attn.o_proj";
    case LinearKind::kGate: return "mlp.gate_proj";
    case LinearKind::kUp: return "mlp.up_proj";
    case LinearKind::kDown: return "mlp.down_proj";
  }
  TIDEMILL_CHECK(false) << static_cast<int>(kind);
  return "";
}

}  // namespace

LinearModule linear_module(const ModelConfig& config, std::int64_t layer, LinearKind kind) {
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t inner = config.intermediate_size;
  const std::int64_t query = config.num_heads * config.head_dim;
  const std::int64_t key = config.num_kv_heads * config.head_dim;
  LinearModule module;
  module.path = "model.layers." + std::to_string(layer) + "." + module_name(kind);
  module.layer = layer;
  module.kind = kind;
  const auto set = [&module](std::int64_t in, std::int64_t out, bool bias) {
    module.in_features = in;
    module.out_features = out;
    module.bias = bias;
  };
  switch (kind) {
    case LinearKind::kQuery: set(hidden, query, config.qkv_bias); break;
    case LinearKind::kKey:
    case LinearKind::kValue: set(hidden, key, config.qkv_bias); break;
    case LinearKind::kOutput: set(query, hidden, config.output_bias); break;
    case LinearKind::kGate:
    case LinearKind::kUp: set(hidden, inner, config.mlp_bias); break;
    case LinearKind::kDown: set(inner, hidden, config.mlp_bias); break;
  }
  return module;
}

std::vector<LinearModule> linear_modules(const ModelConfig& config) {
  std::vector<LinearModule> modules;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    for (const LinearKind kind : kLinearKinds) {
      modules.push_back(linear_module(config, layer, kind));
    }
  }
  return modules;
}

}  // namespace tidemill::engines
