// SPDX-License-Identifier: Apache-2.0
// Converts the keys to a config. Each key becomes the corresponding field of config.json, and the
// reader of config.json checks sizes and ranges. Its errors are reported under the key's name.
#include "engines/formats/gguf_config.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "base/json/fields.hpp"
#include "base/text/quote.hpp"
#include "engines/formats/rope.hpp"

namespace tidemill::engines {
namespace {

constexpr IntegerRange kSizeRange{1, std::int64_t{1} << 31U};
constexpr IntegerRange kTokenRange{0, std::int64_t{1} << 31U};

// The keys of an architecture, without its name, that are read or do not affect the computation.
// Any other key could affect it.
constexpr std::array<std::string_view, 23> kKnownKeys{
    "vocab_size",
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "attention.causal",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scale_linear",
    "expert_count",
    "expert_used_count",
};

const GgufTensor* find_tensor(const GgufHeader& header, std::string_view name) {
  const auto found = std::find_if(header.tensors.begin(), header.tensors.end(),
                                  [name](const GgufTensor& t) { return t.name == name; });
  return found == header.tensors.end() ? nullptr : &*found;
}

// Returns the type of the matrices, as config.json names it.
std::string_view dtype_word(const GgufHeader& header) {
  bool all_f16 = true;
  bool all_bf16 = true;
  for (const GgufTensor& tensor : header.tensors) {
    const bool matrix = tensor.shape.size() > 1;
    all_f16 = all_f16 && (!matrix || tensor.dtype == DType::kF16);
    all_bf16 = all_bf16 && (!matrix || tensor.dtype == DType::kBF16);
  }
  if (all_f16 == all_bf16) {  // no matrices, or other types
    return "float32";
  }
  return all_f16 ? "float16" : "bfloat16";
}

class KeyReader {
public:
  KeyReader(const GgufHeader& header, const std::string& location)
      : header_(header), location_(location), keys_(header.keys, location) {}

  // Returns the config without the scaling that the tensor `kRopeFactorsName` describes.
  Result<ModelConfig> read();

private:
  [[nodiscard]] std::string key(std::string_view name) const {
    return architecture_ + "." + std::string(name);
  }
  // Adds the field `name` of config.json, which corresponds to `key`.
  void put(const char* name, Json value, std::string key) {
    config_.push_back({name, std::move(value)});
    renamed_.emplace_back(name, std::move(key));
  }
  void put_size(const char* name, std::string_view key_name) {
    put(name, keys_.required_integer(key(key_name), kSizeRange), key(key_name));
  }
  void refuse_unsupported(const std::string& key, const std::string& problem) {
    keys_.refuse(
        {Errc::kUnimplemented, location_ + ": " + quote_unless_plain(key) + ": " + problem});
  }
  void read_architecture();
  void refuse_unsupported_keys();
  void read_sizes();
  void read_heads();
  void read_biases();
  void read_rope();
  void read_scaling(Json::Object& rope, std::int64_t context);
  void read_tokens();
  [[nodiscard]] bool has(const std::string& tensor) const {
    return find_tensor(header_, tensor) != nullptr;
  }
  [[nodiscard]] Result<ModelConfig> checked() const;

  const GgufHeader& header_;
  const std::string& location_;
  JsonFields keys_;
  std::string architecture_;
  Json::Object config_;
  std::vector<std::pair<std::string, std::string>> renamed_;
};

void KeyReader::read_architecture() {
  architecture_ = keys_.string("general.architecture").value_or("");
  if (architecture_ != "llama" && architecture_ != "qwen2" && architecture_ != "qwen3") {
    refuse_unsupported(
        "general.architecture",
        (architecture_.empty() ? "missing; " : quote(architecture_) + " is not supported; ") +
            "only \"llama\", \"qwen2\" and \"qwen3\"");
  }
  if (keys_.string("general.type").value_or("model") != "model") {
    refuse_unsupported("general.type", "only \"model\" is supported");
  }
  put("model_type", architecture_, "general.architecture");
}

void KeyReader::refuse_unsupported_keys() {
  const std::string prefix = architecture_ + ".";
  for (const Json::Member& member : *header_.keys.if_object()) {
    if (!member.name.starts_with(prefix)) {
      continue;
    }
    const std::string_view name = std::string_view{member.name}.substr(prefix.size());
    if (std::find(kKnownKeys.begin(), kKnownKeys.end(), name) == kKnownKeys.end()) {
      refuse_unsupported(member.name, "this key is not supported");
    }
  }
  for (const std::string_view name :
       {"expert_count", "expert_used_count", "attention.sliding_window"}) {
    if (keys_.integer(key(name), {0, kSizeRange.max}).value_or(0) != 0) {
      refuse_unsupported(key(name), "only 0 is supported");
    }
  }
  if (!keys_.boolean(key("attention.causal")).value_or(true)) {
    refuse_unsupported(key("attention.causal"), "only true is supported");
  }
}

void KeyReader::read_sizes() {
  put_size("hidden_size", "embedding_length");
  put_size("intermediate_size", "feed_forward_length");
  put_size("num_hidden_layers", "block_count");
  put_size("max_position_embeddings", "context_length");
  const GgufTensor* table = find_tensor(header_, "token_embd.weight");
  if (table == nullptr) {
    keys_.refuse(invalid_argument(location_ + ": tensor \"token_embd.weight\": missing"));
    return;
  }
  const std::int64_t rows = table->shape.front();
  if (keys_.integer(key("vocab_size"), kSizeRange).value_or(rows) != rows) {
    keys_.refuse(key("vocab_size"), "must be " + std::to_string(rows) +
                                        ", the number of rows of \"token_embd.weight\"");
  }
  put("vocab_size", rows, "tensor \"token_embd.weight\"");
  put("rms_norm_eps", keys_.required_real(key("attention.layer_norm_rms_epsilon"), {0.0, 1.0}),
      key("attention.layer_norm_rms_epsilon"));
  put("tie_word_embeddings", !has("output.weight"), "tensor \"output.weight\"");
  put("torch_dtype", std::string(dtype_word(header_)), "tensors");
}

void KeyReader::read_heads() {
  const std::int64_t hidden = keys_.integer(key("embedding_length"), kSizeRange).value_or(1);
  const std::int64_t heads = keys_.required_integer(key("attention.head_count"), kSizeRange);
  put("num_attention_heads", heads, key("attention.head_count"));
  put("num_key_value_heads",
      keys_.integer(key("attention.head_count_kv"), kSizeRange).value_or(heads),
      key("attention.head_count_kv"));
  std::optional<std::int64_t> size = keys_.integer(key("attention.key_length"), kSizeRange);
  if (!size.has_value() && heads > 0) {
    if (hidden % heads != 0) {
      keys_.refuse(key("attention.head_count"),
                   std::to_string(heads) + " does not divide " + key("embedding_length") + ", " +
                       std::to_string(hidden) + ", and there is no " + key("attention.key_length"));
    }
    size = hidden / heads;
  }
  if (!size.has_value()) {
    return;
  }
  for (const std::string_view name : {"attention.value_length", "rope.dimension_count"}) {
    if (keys_.integer(key(name), kSizeRange).value_or(*size) != *size) {
      refuse_unsupported(key(name),
                         "only " + std::to_string(*size) + ", the head size, is supported");
    }
  }
  put("head_dim", *size, key("attention.key_length"));
}

void KeyReader::read_biases() {
  const bool queries = has("blk.0.attn_q.bias");
  const bool output = has("blk.0.attn_output.bias");
  if (architecture_ != "qwen2" && queries != output) {
    keys_.refuse({Errc::kUnimplemented,
                  location_ + ": tensor \"blk.0.attn_" + (queries ? "q" : "output") +
                      ".bias\": attention biases are supported on all four projections or none"});
  }
  if (architecture_ != "qwen2") {
    put("attention_bias", queries, "tensor \"blk.0.attn_q.bias\"");
  }
  if (architecture_ == "llama") {
    put("mlp_bias", has("blk.0.ffn_down.bias"), "tensor \"blk.0.ffn_down.bias\"");
  } else {
    put("use_sliding_window", false, key("attention.sliding_window"));
  }
}

void KeyReader::read_scaling(Json::Object& rope, std::int64_t context) {
  // Old files have the factor under another key. As in llama.cpp, a factor without a type scales
  // linearly.
  const bool old_style =
      keys_.has(key("rope.scale_linear")) && !keys_.has(key("rope.scaling.factor"));
  const std::string factor_key = key(old_style ? "rope.scale_linear" : "rope.scaling.factor");
  const double factor = keys_.real(factor_key, {}).value_or(0.0);
  const bool scales = keys_.has(factor_key) && factor != 1.0;
  const std::string type =
      keys_.string(key("rope.scaling.type")).value_or(scales ? "linear" : "none");
  if (type == "none") {
    return;
  }
  if (type != "linear" && type != "yarn") {
    refuse_unsupported(key("rope.scaling.type"), quote(type) +
                                                     " is not supported; only \"none\", "
                                                     "\"linear\" and \"yarn\"");
    return;
  }
  rope[0].value = type;
  rope.push_back({"factor", factor});
  renamed_.emplace_back("rope_parameters.factor", factor_key);
  if (type == "linear") {
    return;
  }
  rope.push_back(
      {"original_max_position_embeddings",
       keys_.integer(key("rope.scaling.original_context_length"), kSizeRange).value_or(context)});
  renamed_.emplace_back("rope_parameters.original_max_position_embeddings",
                        key("rope.scaling.original_context_length"));
  for (const char* beta : {"beta_fast", "beta_slow"}) {
    const std::string name = key("rope.scaling.yarn_" + std::string(beta));
    if (const auto value = keys_.real(name, {})) {
      rope.push_back({beta, *value});
      renamed_.emplace_back("rope_parameters." + std::string(beta), name);
    }
  }
}

void KeyReader::read_rope() {
  const std::int64_t context = keys_.integer(key("context_length"), kSizeRange).value_or(1);
  Json::Object rope{{"rope_type", "default"},
                    {"rope_theta", keys_.real(key("rope.freq_base"), {}).value_or(10000.0)}};
  renamed_.emplace_back("rope_parameters.rope_theta", key("rope.freq_base"));
  read_scaling(rope, context);
  put("rope_parameters", std::move(rope), key("rope"));
}

void KeyReader::read_tokens() {
  const auto token = [this](const char* name) {
    return keys_.integer("tokenizer.ggml." + std::string(name), kTokenRange);
  };
  Json::Array ends;
  for (const char* name : {"eos_token_id", "eot_token_id"}) {
    const auto id = token(name);
    const bool twice = !ends.empty() && id.has_value() && *ends[0].if_integer() == *id;
    if (id.has_value() && !twice) {
      ends.emplace_back(*id);
    }
  }
  if (!ends.empty()) {
    put("eos_token_id", std::move(ends), "tokenizer.ggml.eos_token_id");
  }
  if (const auto id = token("bos_token_id")) {
    put("bos_token_id", *id, "tokenizer.ggml.bos_token_id");
  }
  if (const auto id = token("padding_token_id")) {
    put("pad_token_id", *id, "tokenizer.ggml.padding_token_id");
  }
}

Result<ModelConfig> KeyReader::checked() const {
  Result<ModelConfig> config = parse_model_config(Json(config_).to_text(), location_);
  if (config.ok()) {
    return config;
  }
  const std::string& message = config.status().message();
  for (const auto& [field, key] : renamed_) {
    const std::string start = location_ + ": " + field + ": ";
    if (message.starts_with(start)) {
      return Status(config.status().code(),
                    location_ + ": " + key + ": " + message.substr(start.size()));
    }
  }
  return config;
}

Result<ModelConfig> KeyReader::read() {
  read_architecture();
  TIDEMILL_RETURN_IF_ERROR(keys_.status());
  refuse_unsupported_keys();
  read_sizes();
  read_heads();
  read_biases();
  read_rope();
  read_tokens();
  TIDEMILL_RETURN_IF_ERROR(keys_.status());
  return checked();
}

// -- frequencies ---------------------------------------------------------------------------------

// Returns whether the scaling of `config` divides the plain frequencies by `factors`.
bool scales_by(ModelConfig config, const std::vector<float>& factors) {
  constexpr double kTolerance = 1e-4;  // both sides come from float32
  const std::vector<float> scaled = rope_frequencies(config).inverse;
  config.rope.kind = RopeKind::kDefault;
  const std::vector<float> plain = rope_frequencies(config).inverse;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    const double factor = double{plain[i]} / double{scaled[i]};
    if (!(std::abs(factor - double{factors[i]}) <= kTolerance * factor)) {
      return false;
    }
  }
  return true;
}

Result<std::vector<float>> read_factors(const ReadableFile& file, const GgufTensor& tensor,
                                        const ModelConfig& config, const std::string& here) {
  if (tensor.dtype != DType::kF32 ||
      tensor.shape != std::vector<std::int64_t>{config.head_dim / 2}) {
    return invalid_argument(here + "must be " + std::to_string(config.head_dim / 2) +
                            " of type F32, one for each pair of head dimensions");
  }
  std::vector<float> factors(static_cast<std::size_t>(tensor.shape[0]));
  TIDEMILL_RETURN_IF_ERROR(file.read_at(tensor.begin, std::as_writable_bytes(std::span(factors))));
  return factors;
}

// Finds the llama3 scaling from which a converter computed `factors`. The scaling factor is the
// last and largest of them. The ends of the ramp are those of every published model. The original
// context is found by trying powers of two.
Status find_scaling(const std::vector<float>& factors, const std::string& here,
                    ModelConfig& config) {
  constexpr std::int64_t kPublished = 8192;
  constexpr std::int64_t kMaxContext = std::int64_t{1} << 20U;
  const double factor = std::round(double{factors.back()} * 1e4) / 1e4;
  RopeConfig rope = config.rope;
  rope.kind = RopeKind::kLlama3;
  rope.factor = factor;
  rope.low_freq_factor = 1.0;
  rope.high_freq_factor = 4.0;
  rope.original_max_positions = kPublished;
  ModelConfig tried = config;
  for (std::int64_t next = 32; factor >= 1.0 && factor <= 1e6 && next <= kMaxContext; next *= 2) {
    tried.rope = rope;
    if (scales_by(tried, factors)) {
      config = tried;
      return {};
    }
    rope.original_max_positions = next;
  }
  return {Errc::kUnimplemented,
          here +
              "not the factors of Llama 3.1's scaling; put the model's config.json next to the "
              "file"};
}

Status check_agreement(const ModelConfig& given, const ModelConfig& keys,
                       const std::string& location) {
  struct Row {
    const char* field;
    std::int64_t given;
    std::int64_t keys;
  };
  const std::array<Row, 7> rows{{
      {"model_type", static_cast<std::int64_t>(given.family),
       static_cast<std::int64_t>(keys.family)},
      {"num_hidden_layers", given.num_layers, keys.num_layers},
      {"hidden_size", given.hidden_size, keys.hidden_size},
      {"intermediate_size", given.intermediate_size, keys.intermediate_size},
      {"num_attention_heads", given.num_heads, keys.num_heads},
      {"num_key_value_heads", given.num_kv_heads, keys.num_kv_heads},
      {"head_dim", given.head_dim, keys.head_dim},
  }};
  for (const Row& row : rows) {
    if (row.given != row.keys) {
      return invalid_argument(
          location + ": does not match the config.json next to it: " + row.field + " differs");
    }
  }
  return {};
}

}  // namespace

Result<ModelConfig> gguf_config(const ReadableFile& file, const GgufHeader& header,
                                const std::optional<ModelConfig>& given) {
  const std::string location = file.path().string();
  TIDEMILL_ASSIGN_OR_RETURN(ModelConfig config, KeyReader(header, location).read());
  if (given.has_value()) {
    TIDEMILL_RETURN_IF_ERROR(check_agreement(*given, config, location));
    const DType dtype = config.dtype;
    config = *given;
    config.dtype = dtype;
  }
  const GgufTensor* tensor = find_tensor(header, kRopeFactorsName);
  if (tensor == nullptr) {
    return config;
  }
  const std::string here = location + ": tensor " + quote(tensor->name) + ": ";
  TIDEMILL_ASSIGN_OR_RETURN(const std::vector<float> factors,
                            read_factors(file, *tensor, config, here));
  if (!given.has_value() && config.rope.kind == RopeKind::kDefault) {
    TIDEMILL_RETURN_IF_ERROR(find_scaling(factors, here, config));
  } else if (!scales_by(config, factors)) {
    return invalid_argument(here + "does not match the model's frequency scaling");
  }
  return config;
}

}  // namespace tidemill::engines
