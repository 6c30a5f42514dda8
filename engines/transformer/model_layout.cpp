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

const char* norm_name(NormKind kind) {
  switch (kind) {
    case NormKind::kInput: return "input_layernorm";
    case NormKind::kAttention: return "post_attention_layernorm";
    case NormKind::kQuery: return "self_attn.q_norm";
    case NormKind::kKey: return "self_attn.k_norm";
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

std::map<std::string, ModuleSite> module_sites(const ModelConfig& config) {
  using Kind = ModuleSite::Kind;
  std::map<std::string, ModuleSite> sites;
  for (const LinearModule& module : linear_modules(config)) {
    sites[module.path] = {Kind::kLinear,    module.layer,       module.kind,
                          NormKind::kInput, module.in_features, module.out_features};
  }
  const auto add = [&sites](const std::string& path, Kind kind, std::int64_t layer, std::int64_t in,
                            std::int64_t out) -> ModuleSite& {
    ModuleSite& site = sites[path];
    site.kind = kind;
    site.layer = layer;
    site.in_features = in;
    site.out_features = out;
    return site;
  };
  const std::int64_t hidden = config.hidden_size;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    for (const NormKind kind : kNormKinds) {
      const bool per_head = kind == NormKind::kQuery || kind == NormKind::kKey;
      if (!per_head || config.qk_norm) {
        const std::int64_t size = per_head ? config.head_dim : hidden;
        add("model.layers." + std::to_string(layer) + "." + norm_name(kind), Kind::kNorm, layer,
            size, size)
            .norm = kind;
      }
    }
  }
  add("model.embed_tokens", Kind::kTable, 0, config.vocab_size, hidden);
  add("model.norm", Kind::kFinalNorm, config.num_layers, hidden, hidden);
  add("lm_head", Kind::kHead, config.num_layers, hidden, config.vocab_size);
  return sites;
}

}  // namespace tidemill::engines
