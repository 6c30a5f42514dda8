// SPDX-License-Identifier: Apache-2.0
// Writes model configs in the style of Transformers 4.
#include <algorithm>
#include <string>

#include "base/check.hpp"
#include "base/json/json.hpp"
#include "engines/formats/model_config.hpp"

namespace tidemill::engines {
namespace {

std::string_view architecture(ModelFamily family) {
  switch (family) {
    case ModelFamily::kLlama: return "LlamaForCausalLM";
    case ModelFamily::kQwen2: return "Qwen2ForCausalLM";
    case ModelFamily::kQwen3: return "Qwen3ForCausalLM";
  }
  return "";
}

std::string_view dtype_word(DType dtype) {
  switch (dtype) {
    case DType::kF16: return "float16";
    case DType::kBF16: return "bfloat16";
    default: return "float32";
  }
}

Json token(const std::optional<std::int32_t>& id) {
  return id ? Json(std::int64_t{*id}) : Json();
}

Json tokens(const std::vector<std::int32_t>& ids) {
  if (ids.empty()) {
    return {};
  }
  if (ids.size() == 1) {
    return std::int64_t{ids.front()};
  }
  Json::Array list;
  for (const std::int32_t id : ids) {
    list.emplace_back(std::int64_t{id});
  }
  return list;
}

void add_optional(Json::Object& object, const char* name, const std::optional<double>& value) {
  if (value) {
    object.push_back({name, *value});
  }
}

Json rope_scaling(const RopeConfig& rope) {
  switch (rope.kind) {
    case RopeKind::kDefault: return {};
    case RopeKind::kLinear: return Json::Object{{"rope_type", "linear"}, {"factor", rope.factor}};
    case RopeKind::kLlama3:
      return Json::Object{{"rope_type", "llama3"},
                          {"factor", rope.factor},
                          {"low_freq_factor", rope.low_freq_factor},
                          {"high_freq_factor", rope.high_freq_factor},
                          {"original_max_position_embeddings", rope.original_max_positions}};
    case RopeKind::kYarn: break;
  }
  Json::Object yarn{{"rope_type", "yarn"},
                    {"factor", rope.factor},
                    {"original_max_position_embeddings", rope.original_max_positions},
                    {"beta_fast", rope.beta_fast},
                    {"beta_slow", rope.beta_slow}};
  add_optional(yarn, "attention_factor", rope.attention_factor);
  add_optional(yarn, "mscale", rope.mscale);
  add_optional(yarn, "mscale_all_dim", rope.mscale_all_dim);
  if (!rope.truncate) {
    yarn.push_back({"truncate", false});
  }
  return yarn;
}

// Writes both the rule (`max_window_layers`) and the list (`layer_types`). Older readers know only
// the rule, which can express only "all layers from this one on".
void add_windows(Json::Object& object, const ModelConfig& config) {
  const auto& windows = config.sliding_windows;
  const auto first = std::find_if(windows.begin(), windows.end(), [](auto w) { return w != 0; });
  const bool use = first != windows.end();
  object.push_back({"use_sliding_window", use});
  object.push_back({"sliding_window", use ? Json(*first) : Json()});
  object.push_back({"max_window_layers", std::int64_t{first - windows.begin()}});
  if (!use) {
    return;
  }
  Json::Array types;
  for (const std::int64_t window : windows) {
    TIDEMILL_CHECK(window == 0 || window == *first) << "a model has one window size";
    types.emplace_back(window != 0 ? "sliding_attention" : "full_attention");
  }
  object.push_back({"layer_types", std::move(types)});
}

}  // namespace

std::string model_config_text(const ModelConfig& config) {
  Json::Object object{{"architectures", Json::Array{std::string(architecture(config.family))}},
                      {"model_type", std::string(family_name(config.family))},
                      {"vocab_size", config.vocab_size},
                      {"hidden_size", config.hidden_size},
                      {"intermediate_size", config.intermediate_size},
                      {"num_hidden_layers", config.num_layers},
                      {"num_attention_heads", config.num_heads},
                      {"num_key_value_heads", config.num_kv_heads},
                      {"hidden_act", "silu"},
                      {"max_position_embeddings", config.max_positions},
                      {"rms_norm_eps", config.rms_norm_eps},
                      {"rope_theta", config.rope.theta},
                      {"rope_scaling", rope_scaling(config.rope)},
                      {"tie_word_embeddings", config.tie_word_embeddings},
                      {"bos_token_id", token(config.bos_token_id)},
                      {"eos_token_id", tokens(config.eos_token_ids)},
                      {"pad_token_id", token(config.pad_token_id)},
                      {"initializer_range", 0.02},
                      {"attention_dropout", 0.0},
                      {"use_cache", true},
                      {"torch_dtype", std::string(dtype_word(config.dtype))}};
  // Configs of Qwen2 usually have no head_dim, but readers of Qwen2 configs honor the field.
  if (config.family != ModelFamily::kQwen2 ||
      config.head_dim * config.num_heads != config.hidden_size) {
    object.push_back({"head_dim", config.head_dim});
  }
  if (config.family != ModelFamily::kQwen2) {
    TIDEMILL_CHECK(config.qkv_bias == config.output_bias) << "one field describes both";
    object.push_back({"attention_bias", config.qkv_bias});
  }
  if (config.family == ModelFamily::kLlama) {
    object.push_back({"mlp_bias", config.mlp_bias});
  } else {
    add_windows(object, config);
  }
  return Json(std::move(object)).to_text();
}

Status write_model_config(FileSystem& files, const std::filesystem::path& path,
                          const ModelConfig& config) {
  return write_file(files, path, model_config_text(config));
}

}  // namespace tidemill::engines
