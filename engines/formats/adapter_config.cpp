// SPDX-License-Identifier: Apache-2.0
// Reads and writes the text of adapter configs. `adapter_modules.cpp` applies them to a model.
#include "engines/formats/adapter_config.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/files/file.hpp"
#include "base/json/fields.hpp"
#include "base/text/quote.hpp"

namespace tidemill::engines {
namespace {

constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 20U;
constexpr IntegerRange kRankRange{1, 65536};
constexpr RealRange kAlphaRange{0.0, 1e9};
constexpr std::size_t kMaxPatterns = 10'000;
constexpr std::string_view kAllLinear = "all-linear";

// Features that change the computation and have no counterpart in `AdapterConfig`. Null, false and
// empty values count as absent.
constexpr std::array<std::string_view, 11> kUnsupportedFeatures{"alora_invocation_tokens",
                                                                "arrow_config",
                                                                "ensure_weight_tying",
                                                                "kasa_config",
                                                                "layer_replication",
                                                                "monteclora_config",
                                                                "target_parameters",
                                                                "trainable_token_indices",
                                                                "use_bdlora",
                                                                "use_qalora",
                                                                "velora_config"};

// Initializations of an adapter that leave the base weights unchanged. All others modify them.
constexpr std::array<std::string_view, 3> kSupportedInits{"gaussian", "eva", "orthogonal"};

bool is_set(const Json& value) {
  const bool* flag = value.if_bool();
  const Json::Array* list = value.if_array();
  const Json::Object* object = value.if_object();
  return !value.is_null() && (flag == nullptr || *flag) && (list == nullptr || !list->empty()) &&
         (object == nullptr || !object->empty());
}

class AdapterReader {
public:
  AdapterReader(const Json& root, std::string location)
      : fields_(root, location), location_(std::move(location)) {}

  Result<AdapterConfig> read() {
    read_kind();
    refuse_unsupported_features();
    config_.base_model = fields_.string("base_model_name_or_path").value_or("");
    read_selectors();
    config_.modules_to_save = fields_.strings("modules_to_save").value_or(Names());
    if (config_.kind == AdapterKind::kLora) {
      read_lora();
    }
    TIDEMILL_RETURN_IF_ERROR(fields_.status());
    return config_;
  }

private:
  using Names = std::vector<std::string>;

  void unsupported(std::string_view name, const std::string& problem) {
    fields_.refuse({Errc::kUnimplemented, location_ + ": " + std::string(name) + ": " + problem});
  }

  void read_kind() {
    const std::string kind = fields_.string("peft_type").value_or("");
    if (kind == "IA3") {
      config_.kind = AdapterKind::kIa3;
    } else if (kind != "LORA") {
      unsupported("peft_type", quote(kind) + " is not supported; only \"LORA\" and \"IA3\"");
    }
    const auto task = fields_.string("task_type");
    if (task && *task != "CAUSAL_LM") {
      unsupported("task_type", quote(*task) + " is not supported; only \"CAUSAL_LM\"");
    }
  }

  void refuse_unsupported_features() {
    for (const std::string_view name : kUnsupportedFeatures) {
      const Json* value = fields_.find(name);
      if (value != nullptr && is_set(*value)) {
        unsupported(name, "not supported");
      }
    }
    const Json* init = fields_.find("init_lora_weights");
    if (init != nullptr && init->if_bool() == nullptr) {
      const std::string name = fields_.string("init_lora_weights").value_or("");
      if (std::find(kSupportedInits.begin(), kSupportedInits.end(), name) ==
          kSupportedInits.end()) {
        unsupported("init_lora_weights",
                    quote(name) + " is not supported: it changes the base weights too");
      }
    }
  }

  ModuleSelector selector(std::string_view name) {
    ModuleSelector out;
    const Json* value = fields_.find(name);
    if (value == nullptr) {
      return out;
    }
    if (const std::string* text = value->if_string()) {
      out.kind =
          *text == kAllLinear ? ModuleSelector::Kind::kAllLinear : ModuleSelector::Kind::kRegex;
      out.regex = *text == kAllLinear ? "" : *text;
    } else {
      out.names = fields_.strings(name).value_or(Names());
    }
    return out;
  }

  void read_selectors() {
    if (fields_.has("target_modules")) {
      config_.targets = selector("target_modules");
    } else if (config_.kind == AdapterKind::kIa3) {
      fields_.refuse("target_modules", "missing");
    }
    config_.excluded = selector("exclude_modules");
    if (config_.excluded.kind == ModuleSelector::Kind::kAllLinear) {
      fields_.refuse("exclude_modules", "\"all-linear\" would exclude every linear layer");
    }
    if (config_.kind == AdapterKind::kIa3) {
      config_.feedforward = selector("feedforward_modules");
    }
  }

  // Reads an object of numbers in file order.
  template <class T, class Read>
  void read_pattern(std::string_view name, std::vector<std::pair<std::string, T>>& out, Read read) {
    const Json* value = fields_.find(name);
    if (value == nullptr) {
      return;
    }
    JsonFields members(*value, location_, std::string(name) + ".");
    const Json::Object* object = value->if_object();
    if (object != nullptr && object->size() > kMaxPatterns) {
      fields_.refuse(name, "more than " + std::to_string(kMaxPatterns) + " patterns");
      return;
    }
    for (std::size_t i = 0; object != nullptr && i < object->size(); ++i) {
      out.emplace_back((*object)[i].name, read(members, (*object)[i].name));
    }
    fields_.refuse(members.status());
  }

  void read_bias() {
    const std::string bias = fields_.string("bias").value_or("none");
    if (bias == "all") {
      config_.bias = AdapterBias::kAll;
    } else if (bias == "lora_only") {
      config_.bias = AdapterBias::kTargets;
    } else if (bias != "none") {
      fields_.refuse("bias", "must be \"none\", \"all\" or \"lora_only\", not " + quote(bias));
    }
  }

  void read_lora() {
    config_.rank = fields_.integer("r", kRankRange).value_or(config_.rank);
    config_.alpha = fields_.real("lora_alpha", kAlphaRange).value_or(config_.alpha);
    config_.dropout = fields_.real("lora_dropout", {0.0, 0.999}).value_or(0.0);
    config_.use_rslora = fields_.boolean("use_rslora").value_or(false);
    config_.use_dora = fields_.boolean("use_dora").value_or(false);
    config_.lora_bias = fields_.boolean("lora_bias").value_or(false);
    read_bias();
    read_pattern("rank_pattern", config_.rank_pattern, [](JsonFields& f, const std::string& name) {
      return f.required_integer(name, kRankRange);
    });
    read_pattern(
        "alpha_pattern", config_.alpha_pattern,
        [](JsonFields& f, const std::string& name) { return f.required_real(name, kAlphaRange); });
    config_.layers_to_transform = fields_.integers("layers_to_transform", {0, 1'000'000});
    const auto layers_pattern = fields_.strings("layers_pattern");
    const bool names = config_.targets.kind == ModuleSelector::Kind::kNames;
    if (config_.layers_to_transform && !names) {
      fields_.refuse("layers_to_transform", "cannot be used with a string as target_modules");
    }
    if (layers_pattern && !names) {
      fields_.refuse("layers_pattern", "cannot be used with a string as target_modules");
    }
    if (config_.layers_to_transform && config_.layers_to_transform->empty()) {
      config_.layers_to_transform.reset();  // an empty list restricts nothing
    }
    config_.layers_pattern = layers_pattern.value_or(Names());
    if (!config_.layers_pattern.empty() && !config_.layers_to_transform) {
      fields_.refuse("layers_pattern", "needs layers_to_transform");
    }
  }

  JsonFields fields_;
  std::string location_;
  AdapterConfig config_;
};

Json strings(const std::vector<std::string>& values) {
  Json::Array list;
  for (const std::string& value : values) {
    list.emplace_back(value);
  }
  return list;
}

Json strings_or_null(const std::vector<std::string>& values) {
  return values.empty() ? Json() : strings(values);
}

// Whole numbers are written as integers, because PEFT declares the fields as integers.
Json number(double value) {
  constexpr double kLargest = 1e15;
  return std::floor(value) == value && std::fabs(value) < kLargest
             ? Json(static_cast<std::int64_t>(value))
             : Json(value);
}

Json selector_json(const ModuleSelector& selector) {
  switch (selector.kind) {
    case ModuleSelector::Kind::kAllLinear: return std::string(kAllLinear);
    case ModuleSelector::Kind::kRegex: return selector.regex;
    case ModuleSelector::Kind::kNames: break;
  }
  return strings(selector.names);
}

std::string bias_name(AdapterBias bias) {
  switch (bias) {
    case AdapterBias::kNone: return "none";
    case AdapterBias::kAll: return "all";
    case AdapterBias::kTargets: return "lora_only";
  }
  return "none";
}

void add_lora(Json::Object& object, const AdapterConfig& config) {
  Json::Object ranks;
  for (const auto& [name, rank] : config.rank_pattern) {
    ranks.push_back({name, rank});
  }
  Json::Object alphas;
  for (const auto& [name, alpha] : config.alpha_pattern) {
    alphas.push_back({name, number(alpha)});
  }
  Json layers;
  if (config.layers_to_transform) {
    Json::Array list;
    for (const std::int64_t layer : *config.layers_to_transform) {
      list.emplace_back(layer);
    }
    layers = std::move(list);
  }
  object.push_back({"r", config.rank});
  object.push_back({"lora_alpha", number(config.alpha)});
  object.push_back({"lora_dropout", config.dropout});
  object.push_back({"bias", bias_name(config.bias)});
  object.push_back({"use_rslora", config.use_rslora});
  object.push_back({"use_dora", config.use_dora});
  if (config.lora_bias) {  // unknown to older versions of PEFT
    object.push_back({"lora_bias", true});
  }
  object.push_back({"rank_pattern", std::move(ranks)});
  object.push_back({"alpha_pattern", std::move(alphas)});
  object.push_back({"layers_to_transform", std::move(layers)});
  object.push_back({"layers_pattern", strings_or_null(config.layers_pattern)});
  object.push_back({"init_lora_weights", true});
}

}  // namespace

Result<AdapterConfig> parse_adapter_config(std::string_view text, const std::string& location) {
  const Result<Json> json = parse_json(text);
  TIDEMILL_RETURN_IF_ERROR(json.status().with_context(location));
  return AdapterReader(json.value(), location).read();
}

Result<AdapterConfig> read_adapter_config(const std::filesystem::path& path) {
  TIDEMILL_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kMaxFileBytes));
  return parse_adapter_config(text, path.string());
}

std::string adapter_config_text(const AdapterConfig& config) {
  const bool lora = config.kind == AdapterKind::kLora;
  Json::Object object{
      {"peft_type", lora ? "LORA" : "IA3"},
      {"task_type", "CAUSAL_LM"},
      {"base_model_name_or_path", config.base_model.empty() ? Json() : Json(config.base_model)},
      {"revision", Json()},
      {"inference_mode", true},
      {"fan_in_fan_out", false},
      {"target_modules", selector_json(config.targets)},
      {"modules_to_save", strings_or_null(config.modules_to_save)}};
  if (config.excluded != ModuleSelector()) {  // unknown to older versions of PEFT
    object.push_back({"exclude_modules", selector_json(config.excluded)});
  }
  if (lora) {
    add_lora(object, config);
  } else {
    object.push_back({"feedforward_modules", selector_json(config.feedforward)});
  }
  return Json(std::move(object)).to_text();
}

}  // namespace tidemill::engines
