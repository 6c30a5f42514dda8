// SPDX-License-Identifier: Apache-2.0
// Reads configurations. `model_config_write.cpp` writes them.
#include "engines/formats/model_config.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "base/json/fields.hpp"
#include "base/text/quote.hpp"

namespace tidemill::engines {
namespace {

constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 20U;

// Far beyond any model, but small enough that products of three fit in 63 bits.
constexpr IntegerRange kVocabRange{1, std::int64_t{1} << 24U};
constexpr IntegerRange kHiddenRange{1, std::int64_t{1} << 17U};
constexpr IntegerRange kIntermediateRange{1, std::int64_t{1} << 20U};
constexpr IntegerRange kLayerRange{1, 1024};
constexpr IntegerRange kHeadRange{1, 1024};
constexpr IntegerRange kHeadDimRange{2, 1024};
constexpr IntegerRange kPositionRange{1, std::int64_t{1} << 27U};
constexpr RealRange kThetaRange{1.1, 1e12};
constexpr RealRange kFactorRange{1.0, 1e6};
constexpr RealRange kPositiveRange{1e-6, 1e6};

constexpr std::int64_t kQwen3HeadDim = 128;
constexpr std::int64_t kQwenWindow = 4096;
constexpr std::int64_t kQwenMaxWindowLayers = 28;

struct FamilyRow {
  ModelFamily family;
  std::string_view model_type;
  std::string_view architecture;
};
constexpr std::array<FamilyRow, 3> kFamilies{{
    {ModelFamily::kLlama, "llama", "LlamaForCausalLM"},
    {ModelFamily::kQwen2, "qwen2", "Qwen2ForCausalLM"},
    {ModelFamily::kQwen3, "qwen3", "Qwen3ForCausalLM"},
}};

struct RopeRow {
  RopeKind kind;
  std::string_view name;
};
constexpr std::array<RopeRow, 4> kRopeKinds{{
    {RopeKind::kDefault, "default"},
    {RopeKind::kLinear, "linear"},
    {RopeKind::kLlama3, "llama3"},
    {RopeKind::kYarn, "yarn"},
}};

// Reads one object of config.json. In addition to JsonFields it refuses unsupported values.
class ConfigReader {
public:
  ConfigReader(const Json& root, std::string location)
      : root_(root), fields_(root, location), location_(std::move(location)) {}

  Result<ModelConfig> read();

private:
  void unsupported(std::string_view name, const std::string& problem) {
    fields_.refuse({Errc::kUnimplemented, location_ + ": " + std::string(name) + ": " + problem});
  }
  // Refuses a string field whose value is not the supported one.
  void expect(std::string_view name, std::string_view supported) {
    const auto value = fields_.string(name);
    if (value && *value != supported) {
      unsupported(name, quote(*value) + " is not supported; only " + quote(supported));
    }
  }
  void read_family();
  void refuse_unsupported_parts();
  void read_sizes();
  void read_biases();
  void read_dtype();
  void read_tokens();
  void read_windows();
  std::optional<std::int32_t> token(std::string_view name);
  void read_rope();
  std::optional<RopeConfig> rope_from(std::string_view name);
  RopeKind rope_kind(JsonFields& fields, const std::string& prefix);
  void read_yarn(JsonFields& fields, RopeConfig& rope);

  const Json& root_;
  JsonFields fields_;
  std::string location_;
  ModelConfig config_;
};

void ConfigReader::read_family() {
  const auto name = fields_.string("model_type");
  const auto* row = std::find_if(kFamilies.begin(), kFamilies.end(), [&name](const FamilyRow& r) {
    return name && r.model_type == *name;
  });
  if (row == kFamilies.end()) {
    constexpr std::string_view kKnown = "only \"llama\", \"qwen2\" and \"qwen3\"";
    unsupported("model_type",
                (name ? quote(*name) + " is not supported; " : "missing; ") + std::string(kKnown));
    return;
  }
  config_.family = row->family;
  const auto architectures = fields_.strings("architectures");
  if (architectures && !architectures->empty() && architectures->front() != row->architecture) {
    unsupported("architectures", quote(architectures->front()) + " is not supported; only " +
                                     quote(row->architecture));
  }
}

// Returns whether a member describes weights that `join_nf4_tensors` reads. Its list of unquantized
// layers is not needed, because the tensors themselves show which layers are quantized.
bool is_bitsandbytes_nf4(const Json* member) {
  const auto is = [member](const char* name, const char* expected) {
    const Json* value = member->find(name);
    return value != nullptr && value->if_string() != nullptr && *value->if_string() == expected;
  };
  return is("quant_method", "bitsandbytes") && is("bnb_4bit_quant_type", "nf4");
}

void ConfigReader::refuse_unsupported_parts() {
  expect("hidden_act", "silu");
  for (const std::string_view name : {"quantization_config", "compression_config"}) {
    if (fields_.has(name) && !is_bitsandbytes_nf4(fields_.find(name))) {
      unsupported(name, "only the nf4 quantization of bitsandbytes is supported");
    }
  }
  for (const std::string_view name : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    if (fields_.has(name)) {
      unsupported(name, "mixtures of experts are not supported");
    }
  }
  if (fields_.real("partial_rotary_factor", {0.0, 1.0}).value_or(1.0) != 1.0) {
    unsupported("partial_rotary_factor", "only 1 is supported");
  }
}

void ConfigReader::read_sizes() {
  config_.vocab_size = fields_.required_integer("vocab_size", kVocabRange);
  config_.hidden_size = fields_.required_integer("hidden_size", kHiddenRange);
  config_.intermediate_size = fields_.required_integer("intermediate_size", kIntermediateRange);
  config_.num_layers = fields_.required_integer("num_hidden_layers", kLayerRange);
  config_.num_heads = fields_.required_integer("num_attention_heads", kHeadRange);
  config_.num_kv_heads =
      fields_.integer("num_key_value_heads", kHeadRange).value_or(config_.num_heads);
  config_.max_positions = fields_.required_integer("max_position_embeddings", kPositionRange);
  config_.rms_norm_eps = fields_.real("rms_norm_eps", {1e-12, 1.0}).value_or(1e-6);
  config_.tie_word_embeddings = fields_.boolean("tie_word_embeddings").value_or(false);
  if (!fields_.status().ok()) {
    return;
  }
  if (config_.num_heads % config_.num_kv_heads != 0) {
    fields_.refuse("num_key_value_heads", std::to_string(config_.num_kv_heads) +
                                              " does not divide num_attention_heads, " +
                                              std::to_string(config_.num_heads));
  }
  if (const auto head_dim = fields_.integer("head_dim", kHeadDimRange)) {
    config_.head_dim = *head_dim;
  } else if (config_.family == ModelFamily::kQwen3) {
    config_.head_dim = kQwen3HeadDim;
  } else if (config_.hidden_size % config_.num_heads != 0) {
    fields_.refuse("num_attention_heads",
                   std::to_string(config_.num_heads) + " does not divide hidden_size, " +
                       std::to_string(config_.hidden_size) + ", and there is no head_dim");
  } else {
    config_.head_dim = config_.hidden_size / config_.num_heads;
  }
  if (config_.head_dim % 2 != 0 || config_.head_dim > kHeadDimRange.max) {
    fields_.refuse("head_dim", "must be even and at most " + std::to_string(kHeadDimRange.max) +
                                   ", not " + std::to_string(config_.head_dim));
  }
}

void ConfigReader::read_biases() {
  const bool attention_bias = fields_.boolean("attention_bias").value_or(false);
  const bool mlp_bias = fields_.boolean("mlp_bias").value_or(false);
  switch (config_.family) {
    case ModelFamily::kLlama:
      config_.qkv_bias = attention_bias;
      config_.output_bias = attention_bias;
      config_.mlp_bias = mlp_bias;
      break;
    case ModelFamily::kQwen2:  // fixed by the architecture; its configs do not have these fields
      config_.qkv_bias = true;
      break;
    case ModelFamily::kQwen3:
      config_.qkv_bias = attention_bias;
      config_.output_bias = attention_bias;
      config_.qk_norm = true;
      break;
  }
}

void ConfigReader::read_dtype() {
  const std::string_view key = fields_.has("dtype") ? "dtype" : "torch_dtype";
  const std::string name = fields_.string(key).value_or("float32");
  if (name == "float32") {
    config_.dtype = DType::kF32;
  } else if (name == "float16") {
    config_.dtype = DType::kF16;
  } else if (name == "bfloat16") {
    config_.dtype = DType::kBF16;
  } else {
    unsupported(key,
                quote(name) + " is not supported; only \"float32\", \"float16\", \"bfloat16\"");
  }
}

// Reads a token id. Some configs have padding and start ids outside the vocabulary (-1, or one past
// the end). They mean that there is no such token.
std::optional<std::int32_t> ConfigReader::token(std::string_view name) {
  const auto id = fields_.integer(name, {-1, std::int64_t{1} << 30U});
  if (!id || *id < 0 || *id >= config_.vocab_size) {
    return std::nullopt;
  }
  return static_cast<std::int32_t>(*id);
}

void ConfigReader::read_tokens() {
  config_.bos_token_id = token("bos_token_id");
  config_.pad_token_id = token("pad_token_id");
  for (const std::int64_t id : fields_.integers("eos_token_id", {0, config_.vocab_size - 1})
                                   .value_or(std::vector<std::int64_t>())) {
    config_.eos_token_ids.push_back(static_cast<std::int32_t>(id));
  }
}

void ConfigReader::read_windows() {
  config_.sliding_windows.assign(static_cast<std::size_t>(config_.num_layers), 0);
  if (config_.family == ModelFamily::kLlama) {
    return;
  }
  const bool use = fields_.boolean("use_sliding_window").value_or(false);
  auto window = fields_.integer("sliding_window", kPositionRange);
  if (root_.find("sliding_window") == nullptr) {
    window = kQwenWindow;  // only if absent: a null turns the window off
  }
  const auto first =
      fields_.integer("max_window_layers", {0, kLayerRange.max}).value_or(kQwenMaxWindowLayers);
  const auto types = fields_.strings("layer_types");
  if (types && types->size() != config_.sliding_windows.size()) {
    fields_.refuse("layer_types", std::to_string(types->size()) + " entries for " +
                                      std::to_string(config_.num_layers) + " layers");
    return;
  }
  for (std::size_t layer = 0; layer < config_.sliding_windows.size(); ++layer) {
    bool slides = use && static_cast<std::int64_t>(layer) >= first;
    if (types) {
      const std::string& type = (*types)[layer];
      slides = type == "sliding_attention";
      if (!slides && type != "full_attention") {
        unsupported("layer_types", quote(type) +
                                       " is not supported; only \"full_attention\" and "
                                       "\"sliding_attention\"");
      }
      if (slides && (!use || !window)) {
        fields_.refuse("layer_types",
                       "\"sliding_attention\" needs use_sliding_window and "
                       "sliding_window");
      }
    }
    config_.sliding_windows[layer] = slides ? window.value_or(0) : 0;
  }
}

RopeKind ConfigReader::rope_kind(JsonFields& fields, const std::string& prefix) {
  const std::string_view key = fields.has("rope_type") ? "rope_type" : "type";
  const std::string name = fields.string(key).value_or("default");
  for (const RopeRow& row : kRopeKinds) {
    if (row.name == name) {
      return row.kind;
    }
  }
  unsupported(prefix + std::string(key), quote(name) +
                                             " is not supported; only \"default\", "
                                             "\"linear\", \"llama3\" and \"yarn\"");
  return RopeKind::kDefault;
}

void ConfigReader::read_yarn(JsonFields& fields, RopeConfig& rope) {
  rope.factor = fields.required_real("factor", kFactorRange);
  rope.original_max_positions = fields.integer("original_max_position_embeddings", kPositionRange)
                                    .value_or(config_.max_positions);
  rope.beta_fast = fields.real("beta_fast", kPositiveRange).value_or(rope.beta_fast);
  rope.beta_slow = fields.real("beta_slow", kPositiveRange).value_or(rope.beta_slow);
  rope.attention_factor = fields.real("attention_factor", kPositiveRange);
  rope.mscale = fields.real("mscale", {0.0, 1e6});
  rope.mscale_all_dim = fields.real("mscale_all_dim", {0.0, 1e6});
  rope.truncate = fields.boolean("truncate").value_or(true);
  if (rope.beta_fast < rope.beta_slow) {
    fields.refuse("beta_fast", "must not be smaller than beta_slow");
  }
}

// Reads the object `name`. Returns nullopt if it is absent.
std::optional<RopeConfig> ConfigReader::rope_from(std::string_view name) {
  const Json* object = fields_.find(name);
  if (object == nullptr) {
    return std::nullopt;
  }
  const std::string prefix = std::string(name) + ".";
  JsonFields fields(*object, location_, prefix);
  RopeConfig rope;
  if (const Json::Object* members = object->if_object()) {
    for (const Json::Member& member : *members) {
      if (member.value.if_object() != nullptr) {
        unsupported(name, "parameters per layer type are not supported");
        return std::nullopt;
      }
    }
  }
  rope.kind = rope_kind(fields, prefix);
  rope.theta = fields.real("rope_theta", kThetaRange)
                   .value_or(fields_.real("rope_theta", kThetaRange).value_or(rope.theta));
  if (fields.real("partial_rotary_factor", {0.0, 1.0}).value_or(1.0) != 1.0) {
    unsupported(prefix + "partial_rotary_factor", "only 1 is supported");
  }
  switch (rope.kind) {
    case RopeKind::kDefault: break;
    case RopeKind::kLinear: rope.factor = fields.required_real("factor", kFactorRange); break;
    case RopeKind::kLlama3:
      rope.factor = fields.required_real("factor", kFactorRange);
      rope.low_freq_factor = fields.required_real("low_freq_factor", kPositiveRange);
      rope.high_freq_factor = fields.required_real("high_freq_factor", kPositiveRange);
      rope.original_max_positions =
          fields.required_integer("original_max_position_embeddings", kPositionRange);
      if (rope.low_freq_factor >= rope.high_freq_factor) {
        fields.refuse("low_freq_factor", "must be smaller than high_freq_factor");
      }
      break;
    case RopeKind::kYarn: read_yarn(fields, rope); break;
  }
  fields_.refuse(fields.status());
  return rope;
}

void ConfigReader::read_rope() {
  const auto parameters = rope_from("rope_parameters");
  const auto scaling = rope_from("rope_scaling");
  if (parameters && scaling && *parameters != *scaling) {
    fields_.refuse("rope_scaling", "contradicts rope_parameters");
  }
  if (parameters || scaling) {
    config_.rope = parameters ? *parameters : *scaling;
  } else {
    config_.rope.theta = fields_.real("rope_theta", kThetaRange).value_or(config_.rope.theta);
  }
}

Result<ModelConfig> ConfigReader::read() {
  read_family();
  refuse_unsupported_parts();
  read_sizes();
  TIDEMILL_RETURN_IF_ERROR(fields_.status());  // the functions below rely on the sizes
  read_biases();
  read_dtype();
  read_tokens();
  read_windows();
  read_rope();
  TIDEMILL_RETURN_IF_ERROR(fields_.status());
  return config_;
}

Result<Json> parse(std::string_view text, const std::string& location) {
  Result<Json> json = parse_json(text);
  return json.ok() ? std::move(json) : json.status().with_context(location);
}

}  // namespace

std::string_view family_name(ModelFamily family) noexcept {
  return kFamilies.at(static_cast<std::size_t>(family)).model_type;
}

Result<ModelConfig> parse_model_config(std::string_view text, const std::string& location) {
  TIDEMILL_ASSIGN_OR_RETURN(const Json json, parse(text, location));
  return ConfigReader(json, location).read();
}

Result<ModelConfig> read_model_config(const std::filesystem::path& path) {
  TIDEMILL_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kMaxFileBytes));
  return parse_model_config(text, path.string());
}

Result<GenerationConfig> parse_generation_config(std::string_view text,
                                                 const std::string& location) {
  constexpr std::int64_t kMaxToken = std::int64_t{1} << 24U;
  TIDEMILL_ASSIGN_OR_RETURN(const Json json, parse(text, location));
  JsonFields fields(json, location);
  GenerationConfig config;
  for (const std::int64_t id :
       fields.integers("eos_token_id", {0, kMaxToken}).value_or(std::vector<std::int64_t>())) {
    config.eos_token_ids.push_back(static_cast<std::int32_t>(id));
  }
  config.do_sample = fields.boolean("do_sample");
  config.temperature = fields.real("temperature", {0.0, 1e6});
  config.top_k = fields.integer("top_k", {0, kMaxToken});
  config.top_p = fields.real("top_p", {0.0, 1.0});
  config.min_p = fields.real("min_p", {0.0, 1.0});
  config.repetition_penalty = fields.real("repetition_penalty", {1e-6, 1e6});
  config.max_new_tokens = fields.integer("max_new_tokens", {1, kPositionRange.max});
  TIDEMILL_RETURN_IF_ERROR(fields.status());
  return config;
}

Result<GenerationConfig> read_generation_config(const std::filesystem::path& path) {
  TIDEMILL_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kMaxFileBytes));
  return parse_generation_config(text, path.string());
}

}  // namespace tidemill::engines
